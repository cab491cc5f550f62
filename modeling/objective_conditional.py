"""The language models conditioned on a sentence's vector that DiffCSE compares itself with (Chuang et al., 2022,
Table 3).

Shape suffixes: R rows of the copies, K tokens, M scored tokens, V vocabulary, H hidden size.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from torch import Tensor, nn
from transformers import PreTrainedConfig

from .backbone import build_backbone, load_backbone
from .conditional_encoder import ConditionalEncoder
from .distributed import token_mean
from .editing import ConditionedConfig, EditingConfig, EditingObjective
from .fast_rows import map_rows
from .losses import corrective_loss_sum
from .masked_lm_head import MaskedLMHead
from .objectives import EditSpec, Encode, MaskedCopy, Objective, Views
from .settings import check_number


@dataclass
class ConditionalMaskedLMConfig(ConditionedConfig):
    """Settings of :class:`ConditionalMaskedLM`, besides those of :class:`ConditionedConfig` (Table 3).

    Arguments:
        weight: w; the paper gives none, the default is DiffCSE's λ.
    """

    name: ClassVar[str] = "conditional_mlm"
    weight: float = 0.005


@dataclass
class CorrectiveLMConfig(ConditionedConfig, EditingConfig):
    """Settings of :class:`CorrectiveLM`, besides those of :class:`ConditionedConfig` and :class:`EditingConfig`.

    An inserted or deleted token has no original to recover, so the only edit operation is ``replace``.

    Arguments:
        weight: w; the paper gives none, the default is DiffCSE's λ.
        copy_weight: w_c, the factor of the copy mechanism's loss; 50 in COCO-LM.
    """

    name: ClassVar[str] = "corrective_lm"
    weight: float = 0.005
    copy_weight: float = 50.0

    _allowed: ClassVar[dict[str, tuple[Any, ...]]] = {"edit_operation": ("replace",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("corrective_lm_copy_weight", self.copy_weight, 0)


class ConditionalMaskedLM(Objective):
    """w·L_CMLM: predict the masked tokens from the rest and the sentence's vector (Table 3, "Conditional MLM")

    L = L_NCE + w·L_CMLM,  L_CMLM = (1/|M|) Σ_{t∈M} −log p(x_t | x′, z)
    """

    config_class = ConditionalMaskedLMConfig
    from_all_layers = True
    cacheable = True
    compares_views = False

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        z = views.vectors(self.config.condition)
        L_CMLM, accuracy = self.token_means(self.masked_copy(views, batch, z), encode)
        return {"conditional_mlm": self.config.weight * L_CMLM}, {"conditional_mlm_accuracy": accuracy}

    def predict(self, copy: MaskedCopy, encode: Encode) -> tuple[Tensor, Tensor]:
        """Return −log p(x_t | x′, z) of each masked token, and whether the likeliest token is right, (M,) each."""
        _, losses_M, correct_M = self.lm(copy)
        return losses_M, correct_M

    def __init__(self, config: ConditionalMaskedLMConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.reads_z = config.condition == "z"
        self.lm = ConditionalLM(encoder_config)

    @property
    def batch_spec(self) -> EditSpec:
        return self.config.batch_spec

    def init_from_checkpoint(self, name_or_path: str) -> None:
        self.lm.load_from(name_or_path)


class CorrectiveLM(EditingObjective):
    """w·L_CLM: recover every original token from the edited sentence and the vector, by copying it (with probability
    c_t) or by the language model p (Table 3, "Conditional Corrective LM"; COCO-LM, Meng et al., 2021)

    L = L_NCE + w·L_CLM,
    L_CLM = (1/|S|) Σ_{t∈S} [ −log( 1[x″_t = x_t]·ċ_t + (1 − ċ_t)·p_t(x_t) ) + w_c·BCE(c_t, 1[x″_t = x_t]) ]

    ċ is c without gradient.
    """

    config_class = CorrectiveLMConfig
    cacheable = True
    compares_views = False
    from_all_layers = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        copy = self.edited_copy(batch, encode, views.vectors(self.config.condition))
        losses_M, c_M = self.run(copy, encode)
        same_M, M = copy.changed_M == 0, len(losses_M)
        L_CLM = token_mean(corrective_loss_sum(losses_M, c_M, same_M, self.config.copy_weight), M)
        accuracy = token_mean(((c_M.detach() > 0) == same_M).float().sum(), M)
        return {"corrective_lm": self.config.weight * L_CLM}, {"corrective_lm_copy_accuracy": accuracy}

    def predict(self, copy: MaskedCopy, encode: Encode) -> tuple[Tensor, Tensor]:
        """Return −log p_t(x_t) and the logit of copying for each scored token, (M,) each."""
        states_MH, losses_M, _ = self.lm(copy)
        return losses_M, map_rows(self.copy_head, states_MH).squeeze(-1).float()

    def __init__(self, config: CorrectiveLMConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.reads_z = config.condition == "z"
        self.lm = ConditionalLM(encoder_config)
        self.copy_head = nn.Linear(encoder_config.hidden_size, 1)

    def init_from_checkpoint(self, name_or_path: str) -> None:
        self.lm.load_from(name_or_path)


class ConditionalLM(nn.Module):
    """An encoder that reads a sentence's vector in place of its first token, with the family's masked-LM head."""

    def __init__(self, encoder_config: PreTrainedConfig) -> None:
        super().__init__()
        self.encoder = ConditionalEncoder(build_backbone(deepcopy(encoder_config)), encoder_config.hidden_size)
        self.head = MaskedLMHead(encoder_config)

    def forward(self, copy: MaskedCopy) -> tuple[Tensor, Tensor, Tensor]:
        """Return, at the scored positions, the states (M, H), the cross-entropy of the labels (M,) in nats, and
        whether the likeliest token is the label (M,)."""
        states_MH = self.encoder(copy.ids, copy.mask, copy.vectors, copy.positions)
        words_VE = cast(Tensor, self.encoder.model.get_input_embeddings().weight)
        return states_MH, *self.head(states_MH, copy.labels, words_VE)

    def load_from(self, name_or_path: str) -> None:
        """Fill the encoder and the head from a masked-LM checkpoint.

        Raises:
            ValueError: the checkpoint has no masked-LM head. A random head would be useless here.
        """
        model = self.encoder.model
        self.encoder.model = load_backbone(name_or_path, model.config, type(model))
        if missing := self.head.load_from(name_or_path):
            raise ValueError(f"{name_or_path} has no masked-LM head: it lacks {missing[0]!r}")
