"""DiffCSE's replaced token detection (Chuang et al., 2022, "DiffCSE: Difference-based Contrastive Learning for
Sentence Embeddings").

Shape suffixes: R rows of the edited copies, K tokens, M scored tokens, H hidden size.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, PreTrainedConfig

from .backbone import build_backbone, load_backbone
from .conditional_encoder import ConditionalEncoder
from .distributed import token_mean
from .editing import ConditionedConfig, EditingConfig, EditingObjective
from .fast_rows import map_rows
from .generator import check_same_vocabulary
from .hub import from_hub
from .losses import token_cross_entropy_sum
from .objectives import EditedCopy, Encode, MaskedCopy, Views
from .vector_gap import vector_gap


@dataclass
class ReplacedTokenDetectionConfig(ConditionedConfig, EditingConfig):
    """Settings of :class:`ReplacedTokenDetection`, besides those of :class:`EditingConfig` and
    :class:`ConditionedConfig`.

    Arguments:
        weight: λ (Table 8).
        rtd_positions: the loss is a mean over the ``real`` tokens (the sentence's own that are not special), or over
            ``all``, padding and special tokens included.
        discriminator: name or path of its first weights, any encoder with the vocabulary; None means the backbone's
            checkpoint.
        discriminator_config: the configuration of another discriminator; ``from_backbone`` writes it.
    """

    name: ClassVar[str] = "rtd"
    weight: float = 0.005
    rtd_positions: str = "real"
    discriminator: str | None = None
    discriminator_config: dict[str, Any] | None = None

    _allowed: ClassVar[dict[str, tuple[Any, ...]]] = {"rtd_positions": ("real", "all")}

    def complete(self, name_or_path: str) -> None:
        super().complete(name_or_path)
        if self.discriminator not in (None, name_or_path):
            check_same_vocabulary(name_or_path, str(self.discriminator), f"{self.name}_discriminator")
            self.discriminator_config = from_hub(AutoConfig, str(self.discriminator)).to_dict()
            self.discriminator_config.pop("_name_or_path", None)


class ReplacedTokenDetection(EditingObjective):
    """λ·L_RTD: a discriminator D finds the replaced tokens of the edited sentence x″, given the sentence's vector (§3)

    L = L_NCE + λ·L_RTD,  L_RTD = (1/|S|) Σ_{t∈S} −log D(1[x″_t ≠ x_t] | x″, z)

    S is the set of scored tokens of all processes. D reads z in place of its first token's embedding.

    The diagnostic ``rtd_gap`` is the loss given another sentence's vector, minus that given its own
    (``vector_gap.py``). At 0 the discriminator ignores the vector.
    """

    config_class = ReplacedTokenDetectionConfig
    cacheable = True
    compares_views = False
    from_all_layers = True
    may_stay_new = ("discriminator.condition.",)  # a discriminator from pre-training has read no vector

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        S = None if self.config.rtd_positions == "all" else "scored"
        copy = self.edited_copy(batch, encode, views.vectors(self.config.condition), S)
        (logits_M2,) = self.run(copy, encode)
        L_RTD = token_mean(token_cross_entropy_sum(logits_M2, copy.changed_M), len(copy.changed_M))
        metrics = rtd_accuracies(logits_M2.detach(), copy.changed_M)
        gap = {"rtd_gap": self.gap(copy, encode)} if self.measures_gap else {}
        return {"rtd": self.config.weight * L_RTD}, metrics | gap

    def predict(self, copy: MaskedCopy, encode: Encode) -> tuple[Tensor]:
        """Return the logits of D for the scored tokens, (M, 2)."""
        return (map_rows(self.head, self.discriminator(copy.ids, copy.mask, copy.vectors, copy.positions)),)

    def gap(self, copy: EditedCopy, encode: Encode) -> Tensor:
        """Return ``rtd_gap``, (): how much D loses with another sentence's vector, in nats per token."""
        changed_M = copy.changed_M

        def losses(twice: MaskedCopy) -> Tensor:
            (logits_P2,) = self.predict(twice, encode)
            changed_P = changed_M[: len(logits_P2) // 2].repeat(2)
            return cross_entropy(logits_P2.float(), changed_P, reduction="none")

        return vector_gap(self, copy, losses)

    def __init__(self, config: ReplacedTokenDetectionConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.reads_z = config.condition == "z"
        own = deepcopy(encoder_config)
        if config.discriminator_config is not None:
            fields = dict(config.discriminator_config)
            own = AutoConfig.for_model(fields.pop("model_type"), **fields)
        self.discriminator = ConditionalEncoder(build_backbone(own), encoder_config.hidden_size)
        self.head = nn.Linear(own.hidden_size, 2)

    def init_from_checkpoint(self, name_or_path: str) -> None:
        skeleton = self.discriminator.model
        source = self.config.discriminator or name_or_path
        self.discriminator.model = load_backbone(source, skeleton.config, type(skeleton))


def rtd_accuracies(logits_M2: Tensor, labels_M: Tensor) -> dict[str, Tensor]:
    """Return the shares of the replaced and of the kept tokens that the discriminator finds, () each."""
    right_M = (logits_M2.argmax(-1) == labels_M).float()
    kinds = {"replaced": labels_M.float(), "kept": (1 - labels_M).float()}
    return {f"rtd_accuracy_{kind}": token_mean((right_M * of).sum(), of.sum()) for kind, of in kinds.items()}
