"""DiffCSE's edited sentences as examples of the contrast (Chuang et al., 2022, Table 15).

Shape suffixes: B sentences of this process, Q sentences of all processes, K tokens, H hidden size.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from .distributed import gather_rows, own_columns
from .editing import EditingConfig, EditingObjective
from .losses import cosine_logits, info_nce
from .objectives import Encode, Views


@dataclass
class EditedContrastConfig(EditingConfig):
    """Settings of :class:`EditedContrast`, besides those of :class:`EditingConfig`.

    Arguments:
        weight: w; the paper gives none.
        use_edited_as: edited sentences are further ``positive`` or ``negative`` examples (Table 15).
    """

    name: ClassVar[str] = "edited"
    weight: float = 1.0
    probability: float = 0.15
    use_edited_as: str = "negative"

    _allowed: ClassVar[dict[str, tuple[Any, ...]]] = {"use_edited_as": ("positive", "negative")}


class EditedContrast(EditingObjective):
    """w·L_edited: the edited sentences x″ as further examples of the contrast, without discriminator (Table 15)

    positive: L = L_NCE + w · (1/B) Σ_i −log exp s(z_i, z″_i) / Σ_j exp s(z_i, z″_j),  s = cos/τ
    negative: L = L_NCE + w · (1/B) Σ_i log(1 + Σ_j exp s(z_i, z″_j) / Σ_k exp s(z_i, z_k))

    At w = 1 the negative form is L_NCE with all x″ in its denominators (without hard_negative_weight and
    mask_identical). An edited sentence that equals its original is not used as a negative.
    """

    config_class = EditedContrastConfig
    cacheable = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        copy, τ = self.edited_copy(batch, encode), encode.temperature
        z_edited_BH = encode.project(copy.ids, copy.mask)  # type: ignore[misc]  # the model always gives it
        with torch.autocast(views.z.device.type, enabled=False):
            z = views.z.float()
            s_BQ = cosine_logits(z[0], gather_rows(z_edited_BH.float()), τ)
            positive = self.config.use_edited_as == "positive"
            loss = info_nce(s_BQ, own_columns(z[0])) if positive else more_negatives(s_BQ, z, copy.changed, τ)
        return {"edited": self.config.weight * loss}, {}


def more_negatives(s_BQ: Tensor, z_VBH: Tensor, changed_BK: Tensor, temperature: float) -> Tensor:
    """Return (1/B) Σ_i log(1 + Σ_j exp s(z_i, z″_j) / Σ_k exp s(z_i, z_k)), without the unchanged x″_j."""
    unchanged_Q = gather_rows((changed_BK.sum(1) == 0).long()) == 1
    keys = torch.cat([gather_rows(view) for view in z_VBH[1:]])
    plain_B = cosine_logits(z_VBH[0], keys, temperature).logsumexp(1)
    return F.softplus(s_BQ.masked_fill(unchanged_Q, -1e4).logsumexp(1) - plain_B).mean()
