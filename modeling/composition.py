"""A vector of two texts, from the vector of each (Chanchani and Huang, 2023, "Composition-contrastive Learning for
Sentence Embeddings").

Shape suffixes: B sentences, R texts, N = P·B vectors of P kinds, H hidden size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

#: The mean of both, or the first half of the dimensions from the first text and the rest from the second.
COMPOSITIONS = ("mean", "first_last")


def composed(h_RH: Tensor, texts: Sequence[int], how: str) -> Tensor:
    """Return one vector for each sentence and kind, (N, H), kind by kind.

    Arguments:
        h_RH: the vectors of the texts, kind by kind; of a kind with two texts, all first ones before all second ones.
        texts: P, the number of texts of each kind, 1 or 2.
        how: of :data:`COMPOSITIONS`.
    """
    B = len(h_RH) // sum(texts)
    kinds = [part.unflatten(0, (-1, B)) for part in h_RH.split([count * B for count in texts])]
    return torch.cat([part[0] if len(part) == 1 else composed_pair(part[0], part[1], how) for part in kinds])


def composed_pair(first_BH: Tensor, second_BH: Tensor, how: str) -> Tensor:
    """Return the vector of two texts, (B, H)."""
    if how == "mean":
        return (first_BH + second_BH) / 2
    half = first_BH.shape[1] // 2
    return torch.cat([first_BH[:, :half], second_BH[:, half:]], dim=1)
