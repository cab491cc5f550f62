"""How much worse an auxiliary network predicts from another sentence's vector.

Shape suffixes: R rows of the copies, K tokens, M scored positions, P counted ones, H hidden size.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from .fast_counts import first_rows, repeat_rows
from .objectives import MaskedCopy

#: The number of each process's copies on which the diagnostic is measured.
GAP_ROWS = 16


@torch.no_grad()
def vector_gap(network: nn.Module, copy: MaskedCopy, losses: Callable[[MaskedCopy], Tensor]) -> Tensor:
    """Return the mean loss with another sentence's vector minus that with the sentence's own, () in nats per token.

    It is measured on the tokens of the first ``GAP_ROWS`` copies of this process, without dropout. No random number
    is drawn, so training is the same with it and without it. At 0 the network ignores the vector. It costs one
    forward pass over twice these rows.

    Arguments:
        network: the network that ``losses`` runs; its dropout is off meanwhile.
        copy: all copies, with their vectors. A row gets the vector of the row before.
        losses: returns the loss of each scored position of some first rows of the copy, which come twice: with their
            own vectors, then with those of others.
    """
    few, counted_P = first_copies(copy)
    others_RH = copy.vectors.roll(1, dims=0)[: len(few.ids)]
    with without_dropout(network):
        own_P, other_P = losses(twice(few, others_RH)).chunk(2)
    return ((other_P - own_P) * counted_P).sum() / counted_P.sum().clamp_min(1)


def twice(copy: MaskedCopy, others_RH: Tensor) -> MaskedCopy:
    """Return the rows of the copy, then the same rows with other vectors."""
    positions = copy.positions
    return replace(
        copy,
        ids=copy.ids.repeat(2, 1),
        mask=repeat_rows(copy.mask, 2),
        positions=None if positions is None else torch.cat([positions, positions + copy.ids.numel()]),
        labels=copy.labels.repeat(2),
        vectors=torch.cat([copy.vectors, others_RH]),
    )


def first_copies(copy: MaskedCopy) -> tuple[MaskedCopy, Tensor]:
    """Return the first ``GAP_ROWS`` copies with their share of the scored positions, and 1 for a position that counts
    (P,), else 0.

    The number of positions in these rows is on the device. Their share is known on the host: P = M·rows/R, rounded
    up. Positions behind the rows do not count.
    """
    R, K = copy.ids.shape
    rows = min(GAP_ROWS, R)
    few = replace(copy, ids=copy.ids[:rows], mask=first_rows(copy.mask, rows), vectors=copy.vectors[:rows])
    if copy.positions is None:
        labels_P = copy.labels[: rows * K]
        return replace(few, labels=labels_P), torch.ones_like(labels_P, dtype=torch.float32)
    P = -(-len(copy.positions) * rows // R)
    inside_P = copy.positions[:P] < rows * K
    positions_P = torch.where(inside_P, copy.positions[:P], 0)
    return replace(few, positions=positions_P, labels=copy.labels[:P]), inside_P.float()


@contextmanager
def without_dropout(network: nn.Module) -> Iterator[None]:
    """Put a network into eval mode inside the context."""
    flags = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training
