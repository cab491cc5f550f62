"""What DiffCSE compares itself with in Table 3: language models conditioned on a sentence's vector.

Shape suffixes: R rows of the copies, K tokens, M masked places, S scored tokens, V vocabulary, H hidden size.
"""

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig

from .conditional_encoder import ConditionalEncoder, conditions
from .configuration_diffcse import ConditionalMaskedLMConfig, CorrectiveLMConfig
from .distributed import token_mean
from .masked_lm import MaskedLMHead
from .modeling_cse import build_backbone, load_backbone
from .modeling_diffcse import EditingObjective
from .objectives import EditSpec, Encode, Objective, Views


class ConditionalLM(nn.Module):
    """An encoder with a sentence's vector in place of its first token, and the family's masked-LM head."""

    def __init__(self, encoder_config: PreTrainedConfig) -> None:
        super().__init__()
        self.encoder = ConditionalEncoder(build_backbone(copy.deepcopy(encoder_config)), encoder_config.hidden_size)
        self.head = MaskedLMHead(encoder_config)

    def load_from(self, name_or_path: str) -> None:
        """Raises ValueError where the checkpoint has no masked-LM head: there is no use for a random one here."""
        model = self.encoder.model
        self.encoder.model = load_backbone(name_or_path, model.config, type(model))
        if missing := self.head.load_from(name_or_path):
            raise ValueError(f"{name_or_path} has no masked-LM head: it lacks {missing[0]!r}")

    def forward(
        self, ids_RK: Tensor, mask_RK: Tensor, vectors_RH: Tensor, places_S: Tensor, labels_S: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """At places of the flattened ids: states (S, H), cross-entropy of the labels (S,), and whether the likeliest
        token is the label's (S,)."""
        states_SH = self.encoder(ids_RK, mask_RK, vectors_RH, places_S)
        words = cast(Tensor, self.encoder.model.get_input_embeddings().weight)
        return states_SH, *self.head(states_SH, labels_S, words)


class ConditionalMaskedLM(Objective):
    """The masked tokens are told from the rest and the sentence's vector (Table 3, "Conditional MLM")

    L = L_NCE + w · (1/|M|) Σ_{t∈M} −log p(x_t | x′, z)
    """

    config_class = ConditionalMaskedLMConfig
    cacheable = True

    def __init__(self, config: ConditionalMaskedLMConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.lm = ConditionalLM(encoder_config)

    @property
    def batch_spec(self) -> EditSpec:
        return self.config.batch_spec

    def init_from_checkpoint(self, name_or_path: str) -> None:
        self.lm.load_from(name_or_path)

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        ids_RK, mask_RK = batch["conditional_mlm_input_ids"], batch["conditional_mlm_attention_mask"]
        places_M = batch["conditional_mlm_positions"]
        labels_M = batch["conditional_mlm_originals"].flatten().index_select(0, places_M)
        vectors_RH = conditions(views, self.config.condition, self.config.views, len(ids_RK))
        rows, places = (ids_RK, mask_RK, vectors_RH), (places_M, labels_M)
        losses_M, correct_M = encode.chunks(lambda *chunk: self.lm(*chunk)[1:], rows, places)
        loss, accuracy = (token_mean(each.sum(), len(labels_M)) for each in (losses_M, correct_M.float()))
        return {"conditional_mlm": self.config.weight * loss}, {"conditional_mlm_accuracy": accuracy}


class CorrectiveLM(EditingObjective):
    """Every token of the original is told from the edited sentence and the vector, by copying (with probability c_t)
    or by the language model p (Table 3, "Conditional Corrective LM"; the loss of COCO-LM, Meng et al., 2021)

    L = L_NCE + w · (1/|S|) Σ_{t∈S} [ −log( 1[x″_t = x_t]·ċ_t + (1 − ċ_t)·p_t(x_t) ) + w_c·BCE(c_t, 1[x″_t = x_t]) ]

    where ċ is c without gradient.
    """

    config_class = CorrectiveLMConfig
    cacheable = True

    def __init__(self, config: CorrectiveLMConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.lm = ConditionalLM(encoder_config)
        self.copy_head = nn.Linear(encoder_config.hidden_size, 1)

    def init_from_checkpoint(self, name_or_path: str) -> None:
        self.lm.load_from(name_or_path)

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        edited_RK, mask_RK, changed_RK = self.edited(batch, encode.chunks)
        places_S = batch["corrective_lm_scored"]
        originals_S = batch["corrective_lm_originals"].flatten().index_select(0, places_S)
        same_S = changed_RK.flatten().index_select(0, places_S) == 0
        vectors_RH = conditions(views, self.config.condition, self.config.views, len(edited_RK))

        def correct(*chunk: Tensor) -> tuple[Tensor, Tensor]:
            states_SH, losses_S, _ = self.lm(*chunk)
            return losses_S, self.copy_head(states_SH).squeeze(-1).float()

        losses_S, copy_S = encode.chunks(correct, (edited_RK, mask_RK, vectors_RH), (places_S, originals_S))
        total = corrective_loss_sum(losses_S, copy_S, same_S, self.config.copy_weight)
        right = ((copy_S.detach() > 0) == same_S).float().sum()
        metrics: dict[str, Any] = {"corrective_lm_copy_accuracy": token_mean(right, len(places_S))}
        return {"corrective_lm": self.config.weight * token_mean(total, len(places_S))}, metrics


def corrective_loss_sum(losses_S: Tensor, copy_S: Tensor, same_S: Tensor, copy_weight: float) -> Tensor:
    """Σ over tokens of COCO-LM's loss; ``losses_S`` are −log p_t(x_t), ``copy_S`` logits of copying."""
    by_model_S = F.logsigmoid(-copy_S.detach()) - losses_S
    either_S = torch.logaddexp(F.logsigmoid(copy_S.detach()), by_model_S)
    lm = -torch.where(same_S, either_S, by_model_S).sum()
    return lm + copy_weight * F.binary_cross_entropy_with_logits(copy_S, same_S.to(copy_S.dtype), reduction="sum")
