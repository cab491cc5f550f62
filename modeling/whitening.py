"""Shuffled group whitening (Zhuo et al., 2023, "WhitenedCSE: Whitening-based Contrastive Learning of Sentence
Embeddings"), as its released code computes it.

Shape suffixes: N rows of this process, H hidden size, G groups of D = H/G dimensions.
"""

import torch
from torch import Tensor

from .distributed import from_first_process, sum_over_processes

#: The smallest eigenvalue of a covariance as a share of the largest: with fewer rows than dimensions some are 0.
SMALLEST = 1e-6


def group_whitened(h_NH: Tensor, groups: int, order_H: Tensor) -> Tensor:
    """Whiten groups of dimensions, (N, H): in each, the rows of all processes get mean 0 and covariance 1 (ZCA)

    h_g ← (h_g − μ_g) · C_g^(−1/2),  μ_g and C_g the mean and the covariance (over N, not N − 1) of the group's columns

    C^(−1/2) is a constant: gradients flow through h and μ.

    Arguments:
        groups: G, which divides H.
        order_H: (H,) int64, a permutation of the dimensions, the same on all processes. Every D of them in a row are a
            group. They return to their places.
    """
    rows, H = h_NH.shape
    x_NH = h_NH.to(torch.promote_types(h_NH.dtype, torch.float32)).index_select(1, order_H)
    x_GND = x_NH.view(rows, groups, H // groups).transpose(0, 1)
    count = sum_over_processes(x_GND.new_full((), float(rows)))
    x_GND = x_GND - sum_over_processes(x_GND.sum(1, keepdim=True)) / count
    with torch.no_grad():
        C_GDD = sum_over_processes(x_GND.transpose(1, 2) @ x_GND) / count
        λ_GD, U_GDD = torch.linalg.eigh(C_GDD)
        least_G1 = (SMALLEST * λ_GD[:, -1:]).clamp_min(torch.finfo(λ_GD.dtype).tiny)
        W_GDD = U_GDD * torch.maximum(λ_GD, least_G1).rsqrt()[:, None] @ U_GDD.transpose(1, 2)
    whitened_NH = (x_GND @ W_GDD).transpose(0, 1).flatten(1)
    return whitened_NH.index_select(1, order_H.argsort()).to(h_NH.dtype)


def order_of_dimensions(size: int, shuffle: bool, device: torch.device) -> Tensor:
    """Return a permutation of the dimensions, (size,) int64, the first process's draw on all; without ``shuffle`` the
    order as it is."""
    if not shuffle:
        return torch.arange(size, device=device)
    return from_first_process(torch.randperm(size, device=device))
