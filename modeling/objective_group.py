"""PCL's contrast of all positives of a sentence (Wu et al., 2022, "PCL: Peer-Contrastive Learning with Diverse
Augmentations for Unsupervised Sentence Embeddings"), as its released code computes it.

Shape suffixes: B sentences of this process, K of all processes, P positives of a sentence, H hidden size.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .distributed import gather_rows, own_columns
from .losses import group_contrast, group_logits
from .objectives import Encode, Objective, Views
from .settings import ObjectiveConfig


@dataclass
class GroupContrastConfig(ObjectiveConfig):
    """Settings of :class:`GroupContrast`.

    Arguments:
        weight: factor of the term.
    """

    name: ClassVar[str] = "group"
    weight: float = 1.0


class GroupContrast(Objective):
    """L_group: all positives of a sentence against the other sentences of the batch (PCL's peer-positive contrast)

    L = L_NCE + w·L_group,  L_group = −(1/B) Σ_i mean_k ( y_ik · log σ(p_ik) + (1 − y_ik) · log(1 − σ(p_ik)) )

    p_i = softmax over the group of i: its positives, cos(z1_i, z_p_i)/τ with y = 1, and the other sentences,
    cos(z1_i, z1_j)/τ with y = 0. The positives are the second view and the further positives (``further_positives``).
    τ is the contrast's.

    The diagnostic ``group_positives`` is the sum of p over the positives, 1 at best.
    """

    config_class = GroupContrastConfig
    config: GroupContrastConfig
    cacheable = True
    reads_positives = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.autocast(views.z.device.type, enabled=False):
            z1_BH, z_PBH = views.z[0].float(), views.positives.float()
            logits = group_logits(z1_BH, z_PBH, gather_rows(z1_BH), own_columns(z1_BH), encode.temperature)
            L_group, positives = group_contrast(logits, len(z_PBH))
        return {"group": self.config.weight * L_group}, {"group_positives": positives.detach()}
