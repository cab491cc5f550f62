"""Pool the states of a plain encoder to one vector for each text."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from csekit.modeling.fast_packing import run_encoder
from csekit.modeling.pooling import NEEDS_HIDDEN_STATES, check_layers, flat_place_of, pool, single_offset


@dataclass
class PooledOutput:
    """The output of :class:`PooledBackbone`.

    Arguments:
        sentence_embedding: (b, H).
    """

    sentence_embedding: torch.Tensor


class PooledBackbone(nn.Module):
    """A plain encoder with a pooling, in the form that ``encode`` expects of a model.

    Arguments:
        backbone: an ``AutoModel``.
        pooling: one of ``POOLINGS``, or 'lasttoken'.
        mask_offset: for 'mask', the place of the mask token (``sentence_frame(...).mask_offset``).
        head: layers applied to the pooled vector (a SentenceTransformer's Dense, Normalize).

    Raises:
        ValueError: a pooling over layers, and a model with an encoder and a decoder.
    """

    def __init__(
        self, backbone: nn.Module, pooling: str, mask_offset: int | None = None, head: nn.Module | None = None
    ) -> None:
        super().__init__()
        check_layers(pooling, backbone)
        self.backbone = backbone
        self.config = getattr(backbone, "config", None)
        self.pooling, self.mask_offset = ("mask", -1) if pooling == "lasttoken" else (pooling, mask_offset)
        self.head = head or nn.Identity()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> PooledOutput:
        offset = single_offset(self.pooling, self.mask_offset)
        if offset is not None and isinstance(self.backbone, PreTrainedModel):
            places_N = flat_place_of(attention_mask, offset)
            output = run_encoder(self.backbone, attention_mask, input_ids, places_M=places_N, each_row=True)
            return PooledOutput(self.head(output.last_hidden_state))
        layers = self.pooling in NEEDS_HIDDEN_STATES
        if isinstance(self.backbone, PreTrainedModel):
            batch = self.backbone, attention_mask, input_ids
            output = run_encoder(*batch, packed=False, output_hidden_states=layers)
        else:
            output = self.backbone(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=layers)
        states = output.hidden_states if layers else (output.last_hidden_state,)
        return PooledOutput(self.head(pool(self.pooling, states, attention_mask, mask_offset=self.mask_offset)))
