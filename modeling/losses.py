"""The losses as pure functions of tensors.

Shape suffixes: B rows of this process, K keys (columns, of all processes), M tokens, V vocabulary, H hidden size.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def cosine_logits(queries_BH: Tensor, keys_KH: Tensor, temperature: float) -> Tensor:
    """Return cos(q_i, k_j) / τ, (B, K), the similarities of SimCSE Eq. 1."""
    return F.normalize(queries_BH, dim=-1) @ F.normalize(keys_KH, dim=-1).T / temperature


def info_nce(
    logits_BK: Tensor, positives_B: Tensor, excluded_BK: Tensor | None = None, weights_BK: Tensor | None = None
) -> Tensor:
    """Return InfoNCE (SimCSE Eq. 1), () in nats: the mean over rows i of −log exp(l_ip) / Σ_k α_ik exp(l_ik).

    Arguments:
        logits_BK: (B, K) similarities divided by τ.
        positives_B: (B,) int64, the column p of each row's positive.
        excluded_BK: (B, K) bool, columns to leave out of a row's denominator. The positive always stays.
        weights_BK: (B, K) α of at least 0, without gradient, 1 at the positives; None: 1 everywhere.
    """
    if weights_BK is not None:
        logits_BK = logits_BK + weights_BK.log()
    if excluded_BK is not None:
        own = F.one_hot(positives_B, logits_BK.shape[1]).bool()
        logits_BK = logits_BK.masked_fill(excluded_BK & ~own, float("-inf"))
    return F.cross_entropy(logits_BK, positives_B)


def with_angular_margin(logits_BK: Tensor, positives_B: Tensor, margin: float, temperature: float) -> Tensor:
    """Return the similarities with cos(θ + m)/τ instead of cos θ/τ at each row's positive, (B, K) (ArcCSE's ArcCon).

    For θ > π − m the cosine would rise again. There the value is cos θ + cos m − 1, which goes on falling from −1.

    Arguments:
        logits_BK: cos θ/τ.
        positives_B: (B,) int64, the column of each row's positive.
        margin: m in radians, in [0, π/2).
    """
    if margin == 0:
        return logits_BK
    cosine_B1 = logits_BK.gather(1, positives_B[:, None]) * temperature
    sine_B1 = (1 - cosine_B1.square()).clamp_min(1e-6).sqrt()  # its gradient is infinite at 0
    shifted_B1 = cosine_B1 * math.cos(margin) - sine_B1 * math.sin(margin)
    shifted_B1 = torch.where(cosine_B1 < -math.cos(margin), cosine_B1 + math.cos(margin) - 1, shifted_B1)
    return logits_BK.scatter(1, positives_B[:, None], shifted_B1 / temperature)


def group_logits(z1_BH: Tensor, positives_PBH: Tensor, keys_KH: Tensor, own_B: Tensor, temperature: float) -> Tensor:
    """Return the similarities of each sentence to its group divided by τ, (B, P + K): its own positives,
    cos(z1_i, z_p_i), then the other sentences, cos(z1_i, k_j), with −∞ at its own key.

    Arguments:
        own_B: (B,) int64, the column of each row's own key among the K.
    """
    positives_BP = F.cosine_similarity(z1_BH, positives_PBH, dim=-1).T / temperature
    others_BK = cosine_logits(z1_BH, keys_KH, temperature).scatter(1, own_B[:, None], -torch.inf)
    return torch.cat([positives_BP, others_BK], dim=1)


def group_contrast(logits_BG: Tensor, positives: int) -> tuple[Tensor, Tensor]:
    """Return PCL's loss of all positives as its code computes it, and the positives' share of the softmax, () each.

    The loss is the binary cross-entropy of σ(p), p the softmax over the group: the mean over rows and over the G − 1
    members of a group. As σ(p) lies between 0.5 and 0.73, it cannot come near 0.

    Arguments:
        logits_BG: from :func:`group_logits`, the positives first.
        positives: their number.
    """
    p_BG = logits_BG.softmax(-1)
    member_BG = logits_BG > -torch.inf
    positive_B = p_BG[:, :positives].sum(-1)
    loss_B = (F.softplus(p_BG) * member_BG).sum(-1) - positive_B
    return (loss_B / member_BG.sum(-1)).mean(), positive_B.mean()


def group_divergence(logits_BG: Tensor, targets_BG: Tensor) -> Tensor:
    """Return Q·log(Q / P) of the softmaxes P and Q of two groups, (): the mean over rows and over the G − 1 members.

    Arguments:
        logits_BG, targets_BG: from :func:`group_logits`, those of P and of Q.
    """
    absent_BG = logits_BG == -torch.inf
    log_P_BG, log_Q_BG = (each.log_softmax(-1).masked_fill(absent_BG, 0.0) for each in (logits_BG, targets_BG))
    divergence_B = (log_Q_BG.exp() * (log_Q_BG - log_P_BG)).sum(-1)
    return (divergence_B / (~absent_BG).sum(-1)).mean()


def squared_norm_reconstruction(z1_BH: Tensor, z2_BH: Tensor) -> Tensor:
    """Return the mean over rows of ‖ẑ1 − ẑ2‖², ẑ = z / ‖z‖, () in [0, 4]: InforMin-CL Eq. 8 with the right sign."""
    return (F.normalize(z1_BH, dim=-1) - F.normalize(z2_BH, dim=-1)).square().sum(-1).mean()


def mse_reconstruction(z1_BH: Tensor, z2_BH: Tensor) -> Tensor:
    """Return InforMin-CL's loss as its code computes it, (): element means of both directions, (4/H)(1 − cos)."""
    return 2 * F.mse_loss(F.normalize(z1_BH, dim=-1), F.normalize(z2_BH, dim=-1))


def dimension_contrast_sum(correlation_HH: Tensor) -> Tensor:
    """Return Σ_ij (C_ij − δ_ij)², () (MSSE Eq. 4).

    With B rows, C has rank B − 1 at most. The minimum is therefore max(H − (B − 1), 0), at C_ii = (B − 1) / H for all
    i."""
    diagonal_H = correlation_HH.diagonal()
    return (diagonal_H - 1).square().sum() + correlation_HH.square().sum() - diagonal_H.square().sum()


def dimension_contrast_balanced(correlation_HH: Tensor) -> Tensor:
    """Return mean_i (C_ii − 1)² + mean_{i≠j} C_ij², (): MSSE Eq. 4 with means instead of sums.

    The H² − H pairs of different dimensions then weigh as much as the H pairs of the same one. The minimum for B ≤ H
    has all C_ii at 1 / (1 + (H / (B − 1) − 1) / (H − 1)): 0.997 at B = 256, H = 768."""
    diagonal_H = correlation_HH.diagonal()
    others = max(correlation_HH.numel() - len(diagonal_H), 1)
    return (diagonal_H - 1).square().mean() + (correlation_HH.square().sum() - diagonal_H.square().sum()) / others


def dimension_contrast_released(correlation_HH: Tensor) -> Tensor:
    """Return 2·Σ_i (C_ii − 1)² + 0.05·Σ_{i≠j} C_ij², (): the parts of MSSE Eq. 4 as its repository weighs them."""
    diagonal_H = correlation_HH.diagonal()
    others = correlation_HH.square().sum() - diagonal_H.square().sum()
    return 2 * (diagonal_H - 1).square().sum() + 0.05 * others


def token_cross_entropy_sum(logits_MV: Tensor, labels_M: Tensor) -> Tensor:
    """Return the cross-entropy summed over tokens, () in nats; 0 (with gradient) without tokens."""
    return F.cross_entropy(logits_MV.float(), labels_M, reduction="sum")


def corrective_loss_sum(losses_M: Tensor, copy_M: Tensor, same_M: Tensor, copy_weight: float) -> Tensor:
    """Return COCO-LM's corrective loss (Meng et al., 2021, Eqs. 4 and 5) summed over tokens, ().

    Arguments:
        losses_M: −log p_t(x_t) of the language model, in nats.
        copy_M: the logits of copying the token.
        same_M: bool, True if the token is the original.
        copy_weight: factor of the copy mechanism's binary cross-entropy.
    """
    by_model_M = F.logsigmoid(-copy_M.detach()) - losses_M
    either_M = torch.logaddexp(F.logsigmoid(copy_M.detach()), by_model_M)
    lm = -torch.where(same_M, either_M, by_model_M).sum()
    return lm + copy_weight * F.binary_cross_entropy_with_logits(copy_M, same_M.to(copy_M.dtype), reduction="sum")


class _Scale(torch.autograd.Function):
    """Multiply by ``value`` in the forward pass and the gradient by ``gradient`` in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float, gradient: float) -> Tensor:
        ctx.gradient = gradient
        return x * value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return gradient * ctx.gradient, None, None


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x; its gradient is multiplied by ``factor``."""
    return _Scale.apply(x, 1.0, factor)


def scale_value(x: Tensor, factor: float) -> Tensor:
    """Return ``factor``·x; its gradient is not multiplied."""
    return _Scale.apply(x, factor, 1.0)


@torch.no_grad()
def contrast_diagnostics(logits_BK: Tensor, positives_B: Tensor, temperature: float) -> dict[str, Tensor]:
    """Return diagnostics of the contrast by name, each ().

    ``positive_cosine`` and ``negative_cosine`` are mean cosines. ``alignment`` E‖ẑ1 − ẑ2‖² and ``uniformity``
    log E exp(−2‖ẑ1 − ẑ2'‖²) (Wang & Isola, 2020) are taken between the two views, from the similarities of the loss.
    """
    B, K = logits_BK.shape
    cosine_BK = logits_BK.detach() * temperature
    both_2BK = torch.stack([cosine_BK, torch.exp(4 * cosine_BK - 4)])  # on a GPU few sums are faster than many
    of_positives_2 = both_2BK.gather(2, positives_B.expand(2, B)[..., None]).sum((1, 2))
    cosine, kernel = ((both_2BK.sum((1, 2)) - of_positives_2) / max(B * K - B, 1)).unbind()
    positive = of_positives_2[0] / B
    return {
        "positive_cosine": positive,
        "negative_cosine": cosine,
        "alignment": 2 - 2 * positive,
        "uniformity": kernel.clamp_min(1e-12).log(),
    }
