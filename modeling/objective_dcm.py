"""MSSE's dimension-level contrast ("Harnessing Dimension-level Contrastive Learning and Information Compensation
Mechanism for Sentence Embedding Enhancement", anonymous ACL submission).

Shape suffixes: V views, B sentences of this process, H hidden size.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from .distributed import sum_over_processes
from .losses import dimension_contrast_balanced, dimension_contrast_released, dimension_contrast_sum
from .objectives import Encode, Objective, Views
from .settings import ObjectiveConfig, check_choice

_REDUCTIONS = {
    "released": dimension_contrast_released,
    "sum": dimension_contrast_sum,
    "balanced": dimension_contrast_balanced,
}
REPRESENTATIONS = ("h", "z")


@dataclass
class DimensionContrastConfig(ObjectiveConfig):
    """Settings of :class:`DimensionContrast`.

    Arguments:
        weight: μ of Eq. 10. The paper's repository has 0.2; Appendix A has 0.8, and does not say for which form. On
            minilm-wiki a hundredth of the repository's weight does about as well without labels, and far better with
            them.
        reduction: ``released`` has the weights of the paper's repository, 2 for the same dimensions and 0.05 for
            different ones. ``sum`` is Eq. 4 exactly. With B rows its minimum, H − (B − 1), has correlations of
            (B − 1)/H between the two views of a dimension: a third at B = 256, H = 768. ``balanced`` takes means
            over the same and over different dimensions.
        representation: ``h`` (the pooled state, as in Eqs. 2 and 3) or ``z`` (projected).

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "dcm"
    weight: float = 0.002
    reduction: str = "released"
    representation: str = "h"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "reduction", tuple(_REDUCTIONS))
        check_choice(self, "representation", REPRESENTATIONS)


class DimensionContrast(Objective):
    """μ·L_DCM: a dimension correlates with itself over the two views, and with no other one (Eqs. 3, 4 and 10)

    released: L = L_NCE + μ·L_DCM,  L_DCM = 2 Σ_i (C_ii − 1)² + 0.05 Σ_{i≠j} C_ij²
    sum:      L = L_NCE + μ·L_DCM,  L_DCM = Σ_ij (C_ij − δ_ij)²
    balanced: L = L_NCE + μ·L_DCM,  L_DCM = (1/H) Σ_i (C_ii − 1)² + (1/(H² − H)) Σ_{i≠j} C_ij²

    C_ij = corr(column i of H, column j of H⁺), over the rows of all processes

    Diagnostics: ``dcm_diagonal`` is the mean of C_ii (1: each dimension agrees with itself), ``dcm_off_diagonal`` the
    root mean square of the other C_ij (0: dimensions are uncorrelated).
    """

    config_class = DimensionContrastConfig
    config: DimensionContrastConfig
    cacheable = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        h_VBH = views.z if self.reads_z else views.h
        with torch.autocast(h_VBH.device.type, enabled=False):
            C_HH = cross_correlation(h_VBH[0].float(), h_VBH[1].float())
            L_DCM = _REDUCTIONS[self.config.reduction](C_HH)
        return {"dcm": self.config.weight * L_DCM}, correlation_diagnostics(C_HH.detach())

    def __init__(self, config: DimensionContrastConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.reads_z = config.representation == "z"


def cross_correlation(h1_BH: Tensor, h2_BH: Tensor) -> Tensor:
    """Return C (H, H), the correlation of each dimension of one view with each dimension of the other (MSSE Eq. 3).

    It is taken over the rows of all processes, with gradient. A dimension that does not vary, up to rounding beside
    its mean, or whose deviation is less than a millionth of the dimensions' (their root mean square), has
    correlation 0, without gradient.
    """
    H = h1_BH.shape[1]
    both_BD = torch.cat([h1_BH, h2_BH], dim=1)  # D = 2H
    rows = sum_over_processes(both_BD.new_full((1,), float(len(both_BD))))
    mean_D = sum_over_processes(both_BD.sum(0)) / rows
    centred_BD = both_BD - mean_D
    products_HH = centred_BD[:, :H].T @ centred_BD[:, H:]
    squares_2H = centred_BD.square().sum(0).unflatten(0, (2, H))
    moments = sum_over_processes(torch.cat([products_HH, squares_2H]))
    squares_D = moments[H:].flatten()
    least_D = (1e-10 * rows * mean_D.square()).clamp_min(1e-12 * squares_D.detach().mean())
    varies_D = squares_D > least_D
    scale_D = torch.where(varies_D, squares_D, 1.0).rsqrt() * varies_D
    return moments[:H] * scale_D[:H, None] * scale_D[H:]


def correlation_diagnostics(C_HH: Tensor) -> dict[str, Tensor]:
    """Return the mean of the diagonal and the root mean square of the other entries, () each."""
    diagonal_H = C_HH.diagonal()
    others = max(C_HH.numel() - len(diagonal_H), 1)
    off = ((C_HH.square().sum() - diagonal_H.square().sum()).clamp_min(0) / others).sqrt()
    return {"dcm_diagonal": diagonal_H.mean(), "dcm_off_diagonal": off}
