"""The losses, as pure functions of tensors.

Shape suffixes: B rows of this process, K keys (columns, of all processes), M tokens, V vocabulary, H hidden size.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def cosine_logits(queries_BH: Tensor, keys_KH: Tensor, temperature: float) -> Tensor:
    """sim(q, k) / τ with the cosine as similarity (SimCSE Eq. 1). Returns (B, K)."""
    return F.normalize(queries_BH, dim=-1) @ F.normalize(keys_KH, dim=-1).T / temperature


def info_nce(logits_BK: Tensor, positives_B: Tensor, excluded_BK: Tensor | None = None) -> Tensor:
    """InfoNCE (SimCSE Eq. 1): −log exp(l_ip) / Σ_k exp(l_ik), mean over rows.

    Arguments:
        logits_BK: (B, K) similarities over τ.
        positives_B: (B,) int64, the column of each row's positive.
        excluded_BK: (B, K) bool, columns left out of a row's denominator. A positive is never left out.
    """
    if excluded_BK is not None:
        own = F.one_hot(positives_B, logits_BK.shape[1]).bool()
        logits_BK = logits_BK.masked_fill(excluded_BK & ~own, float("-inf"))
    return F.cross_entropy(logits_BK, positives_B)


def squared_norm_reconstruction(z1_BH: Tensor, z2_BH: Tensor) -> Tensor:
    """InforMin-CL Eq. 8 with its sign set right: mean over rows of ‖ẑ1 − ẑ2‖², ẑ = z / ‖z‖. In [0, 4]."""
    return (F.normalize(z1_BH, dim=-1) - F.normalize(z2_BH, dim=-1)).square().sum(-1).mean()


def mse_reconstruction(z1_BH: Tensor, z2_BH: Tensor) -> Tensor:
    """The released form of InforMin-CL: mean over elements, both directions added, (4/H)(1 − cos)."""
    return 2 * F.mse_loss(F.normalize(z1_BH, dim=-1), F.normalize(z2_BH, dim=-1))


def dimension_contrast_sum(correlation_HH: Tensor) -> Tensor:
    """MSSE Eq. 4: Σ_ij (C_ij − δ_ij)². With B rows the rank of C is at most B − 1, so it never falls below
    max(H − (B − 1), 0), which it reaches with all C_ii at (B − 1) / H."""
    diagonal_H = correlation_HH.diagonal()
    return (diagonal_H - 1).square().sum() + correlation_HH.square().sum() - diagonal_H.square().sum()


def dimension_contrast_balanced(correlation_HH: Tensor) -> Tensor:
    """MSSE Eq. 4 with means for sums: mean_i (C_ii − 1)² + mean_{i≠j} C_ij². The H² − H pairs of different dimensions
    then weigh as much as the H of the same. Its minimum has all C_ii at 1 / (1 + (H / (B − 1) − 1) / (H − 1)) where
    B ≤ H: 0.997 at B = 256, H = 768."""
    diagonal_H = correlation_HH.diagonal()
    others = max(correlation_HH.numel() - len(diagonal_H), 1)
    return (diagonal_H - 1).square().mean() + (correlation_HH.square().sum() - diagonal_H.square().sum()) / others


def token_cross_entropy_sum(logits_MV: Tensor, labels_M: Tensor) -> Tensor:
    """Σ over tokens of the cross-entropy; 0 (with gradient) for no token."""
    return F.cross_entropy(logits_MV.float(), labels_M, reduction="sum")


@torch.no_grad()
def contrast_diagnostics(logits_BK: Tensor, positives_B: Tensor, temperature: float) -> dict[str, Tensor]:
    """Mean cosine of positives and of negatives, and Wang & Isola's (2020) alignment and uniformity, taken between the
    two views so that the similarities of the loss serve: E‖ẑ1 − ẑ2‖² and log E exp(−2‖ẑ1 − ẑ2'‖²)."""
    cosine_BK = logits_BK.detach() * temperature
    positive_B = cosine_BK.gather(1, positives_B[:, None]).squeeze(1)
    negatives = cosine_BK.numel() - len(positive_B)
    kernel_BK = torch.exp(4 * cosine_BK - 4)
    kernel = (kernel_BK.sum() - torch.exp(4 * positive_B - 4).sum()) / max(negatives, 1)
    return {
        "positive_cosine": positive_B.mean(),
        "negative_cosine": (cosine_BK.sum() - positive_B.sum()) / max(negatives, 1),
        "alignment": 2 - 2 * positive_B.mean(),
        "uniformity": kernel.clamp_min(1e-12).log(),
    }
