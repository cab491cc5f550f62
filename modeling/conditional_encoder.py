"""An encoder that reads a sentence's vector in the place of its first token.

Shape suffixes: R rows, K tokens, S wanted ones, H width of the vectors, E width of the embedding layer, D hidden size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .auxiliary_head import embeddings_module
from .objectives import Views
from .unpadding import run_encoder


def embedding_width(model: PreTrainedModel) -> int:
    """E, the width of what the embedding layer gives: less than the hidden size where the family projects it later
    (ELECTRA, ALBERT)."""
    parent, name = embeddings_module(model)
    projections = [module for module in getattr(parent, name).modules() if isinstance(module, nn.Linear)]
    words: Any = model.get_input_embeddings()
    return int(projections[-1].out_features if projections else words.embedding_dim)


@contextmanager
def first_position(model: PreTrainedModel, vectors_RE: Tensor, starts_R: Tensor) -> Iterator[None]:
    """Inside, the output of the model's embedding layer (after norm and dropout) is ``vectors_RE`` at each row's first
    token: position 0, or ``starts_R`` in a packed batch."""

    def replace(module: nn.Module, arguments: Any, states: Any) -> Tensor:
        if not isinstance(states, Tensor) or states.shape[-1] != vectors_RE.shape[-1]:
            raise ValueError(
                f"{type(model).__name__}: the output of {type(module).__name__} is no embedding layer's of width "
                f"{vectors_RE.shape[-1]}; this family cannot be a discriminator"
            )
        vectors = vectors_RE.to(states.dtype)
        if len(states) < len(vectors):  # packed: one row of all tokens
            return states.index_copy(1, starts_R, vectors.unsqueeze(0))
        return torch.cat([vectors.unsqueeze(1), states[:, 1:]], dim=1)

    parent, name = embeddings_module(model)
    handle = getattr(parent, name).register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()


class ConditionalEncoder(nn.Module):
    """A family's own encoder, its embedding at position 0 replaced by a given vector.

    Arguments:
        model: an encoder without a pooling layer.
        width: H of the vectors. Where it is not the embedding layer's, a linear map of its own stands between.
    """

    def __init__(self, model: PreTrainedModel, width: int) -> None:
        super().__init__()
        self.model = model
        needed = embedding_width(model)
        self.condition = nn.Identity() if needed == width else nn.Linear(width, needed)

    def forward(self, ids_RK: Tensor, mask_RK: Tensor, vectors_RH: Tensor, places_S: Tensor | None = None) -> Tensor:
        """The last states (S, D) at places of the flattened (R·K); without places all, (R·K, D), padding included."""
        lengths_R = mask_RK.sum(1)
        with first_position(self.model, self.condition(vectors_RH), lengths_R.cumsum(0) - lengths_R):
            if places_S is None:
                return run_encoder(self.model, mask_RK, ids_RK, packed=False).last_hidden_state.flatten(0, 1)
            return run_encoder(self.model, mask_RK, ids_RK, places_M=places_S).last_hidden_state


def conditions(views: Views, kind: str, count: int, rows: int) -> Tensor:
    """(R, H) vectors of the first ``count`` views, ``z`` or ``h``, one for each of the view-major copies; again from
    the first where the next sentences follow the same."""
    vectors = (views.z if kind == "z" else views.h)[:count].flatten(0, 1)
    return vectors.repeat(rows // len(vectors), 1)
