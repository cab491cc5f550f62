"""The masked LM as an auxiliary objective: SimCSE + MLM (InfoCSE Tables 1 and 10), β of InforMin-CL (Table 6)."""

import copy
import logging
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from .distributed import token_mean
from .objectives import Encode, MaskingSpec, Objective, ObjectiveConfig, Views
from .row_counts import first_rows
from .vocabulary_loss import vocabulary_cross_entropy

logger = logging.getLogger(__name__)


@dataclass
class MaskedLMConfig(ObjectiveConfig):
    """Settings of :class:`MaskedLM`.

    Arguments:
        weight: of the term; 0.1 in SimCSE + MLM and in InforMin-CL (β).
        probability: share of masked tokens.
        views: 2 masks both views, 1 halves the cost.
    """

    name: ClassVar[str] = "mlm"
    weight: float = 0.1
    probability: float = 0.15
    views: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.probability < 1:
            raise ValueError(f"{self.name}_probability must lie between 0 and 1, got {self.probability!r}")
        if self.views not in (1, 2):
            raise ValueError(f"{self.name}_views must be 1 or 2, got {self.views!r}")


class _Passthrough(nn.Module):
    """Stands where a masked LM has its backbone and hands on the states that it is given."""

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)


def _take_out(model: nn.Module, decoder: nn.Module, vocabulary: int) -> None:
    """Put an identity in the decoder's place; its parent may hold an alias of the output bias, which goes too."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child is decoder:
                setattr(module, name, nn.Identity())
                for alias, parameter in list(module.named_parameters(recurse=False)):
                    if parameter.shape == (vocabulary,):
                        module.register_parameter(alias, None)


class MaskedLMHead(nn.Module):
    """The masked-LM head of whatever family the encoder belongs to, without backbone.

    The family's own ``…ForMaskedLM`` computes the transform; only the rows that are needed meet the vocabulary. The
    output matrix, ``tied`` to the word embeddings, is passed in at call time, so that no key is stored twice; a head
    that is not tied has its own.
    """

    def __init__(self, encoder_config: PreTrainedConfig, tied: bool = True) -> None:
        super().__init__()
        config = copy.deepcopy(encoder_config)
        config.tie_word_embeddings = False  # nothing left inside to tie
        device = torch.empty(0).device  # the meta device while from_pretrained builds the model
        with torch.device("meta"):
            model = AutoModelForMaskedLM.from_config(config)
        setattr(model, model.base_model_prefix, _Passthrough())
        decoder = model.get_output_embeddings()
        _take_out(model, decoder, decoder.out_features)
        self.model = model.to_empty(device=device)
        self.bias = nn.Parameter(torch.zeros(decoder.out_features)) if decoder.bias is not None else None
        self.decoder = None if tied else nn.Linear(decoder.in_features, decoder.out_features, bias=False)

    def forward(
        self, states_MH: Tensor, labels_M: Tensor, word_embeddings_VE: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(M, H) states of masked tokens, (M,) labels, (V, E) output matrix of a tied head → the cross-entropy of each
        token, and whether the likeliest one is right, (M,) each."""
        transformed_ME, matrix_VE = self.transform(states_MH, word_embeddings_VE)
        return vocabulary_cross_entropy(transformed_ME, matrix_VE, self.bias, labels_M)

    def logits(self, states_MH: Tensor, word_embeddings_VE: Tensor | None = None) -> Tensor:
        """(M, H) states of masked tokens, (V, E) output matrix of a tied head → (M, V)."""
        transformed_ME, matrix_VE = self.transform(states_MH, word_embeddings_VE)
        return F.linear(transformed_ME, matrix_VE, self.bias)

    def transform(self, states_MH: Tensor, word_embeddings_VE: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the output matrix is multiplied with, (M, E), and that matrix, (V, E)."""
        transformed_ME = self.model(inputs_embeds=states_MH.unsqueeze(0)).logits.squeeze(0)
        return transformed_ME, cast(Tensor, word_embeddings_VE) if self.decoder is None else self.decoder.weight

    def init_from(self, name_or_path: str) -> None:
        """Copy the head of a checkpoint; one without a masked-LM head gives a new head, and a warning."""
        missing = self.load_from(name_or_path)
        if missing:
            logger.warning("%s has no masked-LM head (%s): the head of 'mlm' starts random.", name_or_path, missing[0])

    def copy_to(self, masked_lm: PreTrainedModel) -> None:
        """Copy the head into a whole ``…ForMaskedLM`` of its family."""
        masked_lm.load_state_dict(self.model.state_dict(), strict=False)
        if self.bias is not None:
            masked_lm.get_output_embeddings().bias.data.copy_(self.bias.data)

    def load_from(self, name_or_path: str) -> list[str]:
        """Copy the head of a masked-LM checkpoint. Returns the names of weights that the checkpoint lacks.

        Raises:
            ValueError: the head is tied, and the checkpoint's output matrix is not its word embedding.
        """
        source, info = AutoModelForMaskedLM.from_pretrained(
            name_or_path, output_loading_info=True, dtype=torch.float32
        )
        decoder, embeddings = source.get_output_embeddings(), source.get_input_embeddings()
        if self.decoder is not None:
            self.decoder.weight.data.copy_(decoder.weight.data)
        elif decoder.weight is not embeddings.weight and not torch.equal(decoder.weight, embeddings.weight):
            raise ValueError(
                f"{name_or_path}: the output matrix of the masked-LM head is not tied to the word embeddings"
            )
        state = source.state_dict()
        own = self.model.state_dict()
        missing = sorted(set(info["missing_keys"]) & set(own))
        self.model.load_state_dict({name: state[name] for name in own})
        if self.bias is not None:
            self.bias.data.copy_(decoder.bias.data)
        return missing


class MaskedLM(Objective):
    """β·L_MLM: masked copies of the views through the SAME encoder, cross-entropy over the masked tokens

    L = L_NCE + β · (1/|M|) Σ_{t∈M} −log p(x_t | masked copy)
    """

    config_class = MaskedLMConfig
    reads_z = False
    cacheable = True

    def __init__(self, config: MaskedLMConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.head = MaskedLMHead(encoder_config)

    @property
    def batch_spec(self) -> MaskingSpec:
        return MaskingSpec(probability=self.config.probability, views=self.config.views)

    def init_from_checkpoint(self, name_or_path: str) -> None:
        self.head.init_from(name_or_path)

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        input_ids, positions, labels = batch["mlm_input_ids"], batch["mlm_positions"], batch["mlm_labels"]

        def predict(ids_NL: Tensor, mask_NL: Tensor, positions_M: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
            return self.head(encode(ids_NL, mask_NL, positions_M), labels_M, encode.word_embeddings)

        rows = (input_ids, first_rows(views.attention_mask, len(input_ids)))
        losses, correct = encode.chunks(predict, rows, (positions, labels))
        loss, accuracy = (token_mean(each.sum(), len(labels)) for each in (losses, correct.float()))
        return {"mlm": self.config.weight * loss}, {"mlm_accuracy": accuracy}
