"""The masked-LM head of any family, without its backbone.

Shape suffixes: M masked tokens, H hidden size, E width of the output matrix, V vocabulary.
"""

import copy
import logging
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from .fast_rows import fill_rows
from .fast_vocabulary_loss import IGNORED, vocabulary_cross_entropy
from .hub import from_hub
from .quiet import quiet_weights

logger = logging.getLogger(__name__)


class StatesAlone(BaseModelOutput):
    """The output of a backbone of any family: None for fields of a single family (Longformer, LUKE, BART)."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Passthrough(nn.Module):
    """Replaces the backbone of a masked LM and returns the states that it gets."""

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> BaseModelOutput:
        return StatesAlone(last_hidden_state=inputs_embeds)


def _take_out(model: nn.Module, decoder: nn.Module, vocabulary: int) -> None:
    """Replace the decoder by an identity and remove its parent's alias of the output bias, if there is one."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child is decoder:
                setattr(module, name, nn.Identity())
                for alias, parameter in list(module.named_parameters(recurse=False)):
                    if parameter.shape == (vocabulary,):
                        module.register_parameter(alias, None)


@torch.no_grad()
def _check_alone(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Raise ValueError for a head, on the meta device, that does not run without its backbone and its decoder."""
    like = next(model.parameters(), torch.empty(0))
    try:
        model(inputs_embeds=torch.empty(1, 1, config.hidden_size, device="meta", dtype=like.dtype))
    except Exception as error:
        raise ValueError(
            f"the family {config.model_type!r} has no masked-LM head that works without its backbone and its output "
            f"matrix, which an objective needs ({type(error).__name__}: {error})"
        ) from error


class MaskedLMHead(nn.Module):
    """The masked-LM head of the encoder's family, without backbone.

    The family's own ``…ForMaskedLM`` computes the transform. Only the masked tokens are multiplied with the output
    matrix. A ``tied`` head gets the word embeddings as output matrix at call time, so that no weight is stored twice;
    any other head has its own matrix.

    Arguments:
        encoder_config: the encoder's configuration.
        tied: True to use the word embeddings as output matrix.

    Raises:
        ValueError: the family has no masked LM, or one whose head needs its backbone or its output matrix.
    """

    def __init__(self, encoder_config: PreTrainedConfig, tied: bool = True) -> None:
        super().__init__()
        config = copy.deepcopy(encoder_config)
        config.tie_word_embeddings = False  # the model inside has no word embeddings
        if type(config) not in AutoModelForMaskedLM._model_mapping:
            raise ValueError(f"the family {config.model_type!r} has no masked LM, whose head an objective needs")
        device = torch.empty(0).device  # the meta device while from_pretrained builds the model
        with torch.device("meta"):
            model = AutoModelForMaskedLM.from_config(config)
        decoder = model.get_output_embeddings()  # some families find it by way of the backbone
        setattr(model, model.base_model_prefix, Passthrough())
        _take_out(model, decoder, decoder.out_features)
        _check_alone(model, config)
        self.model = model.to_empty(device=device)
        self.bias = nn.Parameter(torch.zeros(decoder.out_features)) if decoder.bias is not None else None
        self.decoder = None if tied else nn.Linear(decoder.in_features, decoder.out_features, bias=False)

    def forward(
        self, states_MH: Tensor, labels_M: Tensor, word_embeddings_VE: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of each masked token in nats, and whether the likeliest token is right, (M,) each.

        Arguments:
            states_MH: the encoder's states.
            labels_M: the original ids.
            word_embeddings_VE: the output matrix of a tied head.
        """
        M = len(labels_M)
        states_MH, labels_M = fill_rows(states_MH), fill_rows(labels_M, IGNORED)
        transformed_ME, matrix_VE = self.transform(states_MH, word_embeddings_VE)
        losses_M, correct_M = vocabulary_cross_entropy(transformed_ME, matrix_VE, self.bias, labels_M)
        return losses_M[:M], correct_M[:M]

    def logits(self, states_MH: Tensor, word_embeddings_VE: Tensor | None = None) -> Tensor:
        """Return the logits (M, V); see ``forward``."""
        transformed_ME, matrix_VE = self.transform(fill_rows(states_MH), word_embeddings_VE)
        return F.linear(transformed_ME, matrix_VE, self.bias)[: len(states_MH)]

    def transform(self, states_MH: Tensor, word_embeddings_VE: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the transformed states (M, E) and the output matrix (V, E)."""
        transformed_ME = self.model(inputs_embeds=states_MH.unsqueeze(0)).logits.squeeze(0)
        return transformed_ME, cast(Tensor, word_embeddings_VE) if self.decoder is None else self.decoder.weight

    def init_from(self, name_or_path: str) -> None:
        """Copy the head of a checkpoint. If the checkpoint has none, the head stays new, with a warning."""
        missing = self.load_from(name_or_path)
        if missing:
            logger.warning("%s has no masked-LM head (%s): the head of 'mlm' starts random.", name_or_path, missing[0])

    def copy_to(self, masked_lm: PreTrainedModel) -> None:
        """Copy the head into a complete ``…ForMaskedLM`` of its family."""
        masked_lm.load_state_dict(self.model.state_dict(), strict=False)
        if self.bias is not None:
            masked_lm.get_output_embeddings().bias.data.copy_(self.bias.data)

    def load_from(self, name_or_path: str) -> list[str]:
        """Copy the head of a masked-LM checkpoint. Return the names of the weights that the checkpoint lacks.

        Raises:
            ValueError: the head is tied, but the checkpoint's output matrix differs from its word embeddings.
        """
        with quiet_weights():
            source, info = from_hub(AutoModelForMaskedLM, name_or_path, output_loading_info=True, dtype=torch.float32)
        decoder, embeddings = source.get_output_embeddings(), source.get_input_embeddings()
        if self.decoder is not None:
            self.decoder.weight.data.copy_(decoder.weight.data)
        elif decoder.weight is not embeddings.weight and not torch.equal(decoder.weight, embeddings.weight):
            raise ValueError(
                f"{name_or_path}: the output matrix of the masked-LM head is not tied to the word embeddings; "
                "with the objective 'mlm', mlm_tied=False takes it"
            )
        state = source.state_dict()
        own = self.model.state_dict()
        missing = sorted(set(info["missing_keys"]) & set(own))
        self.model.load_state_dict({name: state[name] for name in own})
        if self.bias is not None:
            self.bias.data.copy_(decoder.bias.data)
        return missing
