"""An encoder that reads a sentence's vector in place of its first token.

Shape suffixes: R rows, K tokens, S wanted positions, H width of the vectors, E width of the embedding layer,
D hidden size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .backbone import embeddings_module
from .fast_packing import run_encoder


def embedding_width(model: PreTrainedModel) -> int:
    """Return E, the width of the embedding layer's output. It is below the hidden size if the family projects it later
    (ELECTRA, ALBERT).

    Raises:
        ValueError: the family has word embeddings of its own kind (I-BERT), or none in a module of their own.
    """
    parent, name = embeddings_module(model)
    projections = [module for module in getattr(parent, name).modules() if isinstance(module, nn.Linear)]
    words: Any = model.get_input_embeddings()
    if not isinstance(words, nn.Embedding):
        raise ValueError(
            f"the family {model.config.model_type!r} has word embeddings of its own kind, {type(words).__name__}, "
            "which 'rtd', 'conditional_mlm', 'corrective_lm' and perturbations do not change: choose other "
            "objectives, or another encoder"
        )
    return int(projections[-1].out_features if projections else words.embedding_dim)


@contextmanager
def first_position(model: PreTrainedModel, vectors_RE: Tensor, starts_R: Tensor) -> Iterator[None]:
    """Replace the embedding of each row's first token by ``vectors_RE`` inside the context.

    The first token is at position 0, in a packed batch at ``starts_R``. The embedding layer's norm and dropout come
    before the replacement.
    """

    def replace(module: nn.Module, arguments: Any, states: Any) -> Tensor:
        if not isinstance(states, Tensor) or states.shape[-1] != vectors_RE.shape[-1]:
            raise ValueError(
                f"{type(model).__name__} cannot be a discriminator: the output of {type(module).__name__} must be "
                f"embeddings of width {vectors_RE.shape[-1]}"
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
    """A family's encoder whose embedding at position 0 is replaced by a given vector.

    Arguments:
        model: an encoder without a pooling layer.
        width: H of the vectors. If the embedding layer has another width, a trained linear map converts them.
    """

    def __init__(self, model: PreTrainedModel, width: int) -> None:
        super().__init__()
        self.model = model
        needed = embedding_width(model)
        self.condition = nn.Identity() if needed == width else nn.Linear(width, needed)

    def forward(self, ids_RK: Tensor, mask_RK: Tensor, vectors_RH: Tensor, places_S: Tensor | None = None) -> Tensor:
        """Return the last states (S, D) at positions of the flattened (R·K). Without positions return all of them,
        (R·K, D), padding included."""
        lengths_R = mask_RK.sum(1)
        with first_position(self.model, self.condition(vectors_RH), lengths_R.cumsum(0) - lengths_R):
            if places_S is None:
                return run_encoder(self.model, mask_RK, ids_RK, packed=False).last_hidden_state.flatten(0, 1)
            return run_encoder(self.model, mask_RK, ids_RK, places_M=places_S).last_hidden_state
