"""Views whose token embeddings are perturbed (ConSERT, Yan et al., 2021): tokens and features cut off, single elements
dropped, tokens shuffled. The collator draws what is cut and where tokens go (``PerturbationSpec``).

Shape suffixes: N rows, L tokens, E width of the embedding layer, T packed tokens.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .backbone import embeddings_module
from .settings import check_type

#: The kinds of changes of a view's token embeddings.
CHANGES = ("token_cutoff", "feature_cutoff", "dropout", "shuffle")
#: Their name among the copies of a batch.
PERTURBATIONS = "perturbations"
#: The share that is cut or dropped if a kind comes without one.
RATE = 0.2


def parse_changes(field: str, value: str | None) -> tuple[tuple[str, float], ...]:
    """Return the kinds and rates of a setting such as ``token_cutoff:0.15+shuffle``.

    Raises:
        ValueError: an unknown kind, a kind twice, or a rate that is not between 0 and 1.
    """
    check_type(field, value, str | None)
    found: dict[str, float] = {}
    for part in value.split("+") if value is not None else ():
        kind, given, rate = part.partition(":")
        try:
            share = float(rate) if given else RATE
        except ValueError:
            share = -1.0
        if kind not in CHANGES or kind in found or not 0 < share < 1 or (given and kind == "shuffle"):
            raise ValueError(
                f"{field} must be different ones of {', '.join(map(repr, CHANGES))}, joined by '+', all but the last "
                f"with ':RATE' between 0 and 1 if it is not {RATE}, got {value!r}"
            )
        found[kind] = share
    return tuple(found.items())


@dataclass(frozen=True)
class Kept:
    """The embeddings that stay in a batch; the others become 0.

    Arguments:
        tokens_NL, features_NE: bool, False where a whole token or a whole feature is cut off.
        elements_NLE: bool, False where a single element is dropped; None if none is.
    """

    tokens_NL: Tensor
    features_NE: Tensor
    elements_NLE: Tensor | None = None

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """The tensors with one entry per row."""
        given = (self.tokens_NL, self.features_NE, self.elements_NLE)
        return tuple(each for each in given if each is not None)

    def factors(self) -> Tensor:
        """Return 1 where an element stays, else 0, bool (N, L, E)."""
        both_NLE = self.tokens_NL[:, :, None] & self.features_NE[:, None, :]
        return both_NLE if self.elements_NLE is None else both_NLE & self.elements_NLE


def perturbed(ids_NL: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, Kept | None]:
    """Return the ids with the shuffled tokens in their new places, and the embeddings that stay, as the batch says.
    Rows behind those of the first two views do not change."""
    order_RL = batch.get(f"{PERTURBATIONS}_order")
    if order_RL is not None:
        ids_NL = torch.cat([ids_NL[: len(order_RL)].gather(1, order_RL), ids_NL[len(order_RL) :]])
    kept = [batch.get(f"{PERTURBATIONS}_{name}") for name in ("tokens", "features", "elements")]
    if kept[0] is None:
        return ids_NL, None
    missing = len(ids_NL) - len(kept[0])
    return ids_NL, Kept(*(None if part is None else _with_ones(part, missing) for part in kept))  # type: ignore[arg-type]


def _with_ones(part_R: Tensor, rows: int) -> Tensor:
    """Return R rows and further rows of True behind them."""
    return torch.cat([part_R, part_R.new_ones((rows, *part_R.shape[1:]))])


@contextmanager
def scaled_embeddings(model: Any, factors: Tensor | None) -> Iterator[None]:
    """Multiply an encoder's embeddings, behind their norm and dropout, by factors inside the context.

    Arguments:
        factors: (N, L, E), or (1, T, E) in a packed batch; None changes nothing.
    """
    if factors is None:
        yield
        return

    def scale(module: nn.Module, arguments: Any, states: Tensor) -> Tensor:
        return states * factors.to(states.dtype)

    parent, name = embeddings_module(model)
    handle = getattr(parent, name).register_forward_hook(scale)
    try:
        yield
    finally:
        handle.remove()
