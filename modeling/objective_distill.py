"""Distillation of a frozen teacher: its vectors (Reimers and Gurevych, 2020, "Making Monolingual Sentence Embeddings
Multilingual using Knowledge Distillation"), or the similarities between them.

Shape suffixes: V views, B sentences of this process, K keys of all processes, D size of z and of the teacher's
vectors.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize
from transformers import PreTrainedConfig

from .distributed import gather_rows, own_columns
from .losses import cosine_logits
from .objective_rank import agreement
from .objectives import Encode, Objective, Views
from .settings import ObjectiveConfig, check_choice

LOSSES = ("mse", "cosine", "similarities")


@dataclass
class DistillationConfig(ObjectiveConfig):
    """Settings of :class:`Distillation`.

    Arguments:
        weight: w, the factor of the term.
        loss: ``mse`` (squared distance to the teacher's vector), ``cosine`` (the angle alone) or ``similarities``
            (squared difference of the cosines between sentences). The first two need vectors of the teacher's size:
            ``projector='linear'`` with ``projector_size`` maps to it.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "distill"
    weight: float = 1.0
    loss: str = "mse"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "loss", LOSSES)


class Distillation(Objective):
    """w·L_distill: every text of a row gets the vector t that a frozen teacher has for the row's first text

    mse:          L_distill = (1/V) Σ_v (1/B) Σ_i ‖z_vi − t_i‖² / D
    cosine:       L_distill = (1/V) Σ_v (1/B) Σ_i (1 − cos(z_vi, t_i))
    similarities: L_distill = (1/V) Σ_v (1/B) Σ_i (1/(K−1)) Σ_{k≠i} (cos(z_vi, z_vk) − cos(t_i, t_k))²

    A row is a sentence, or a sentence with its translation: both then get the sentence's vector. Alone, the objective
    encodes a single sentence once.

    The diagnostic ``distill_agreement`` is the mean correlation of the first view's cosines with the teacher's.
    """

    config_class = DistillationConfig
    config: DistillationConfig
    cacheable = True
    compares_views = False
    teachers = 1
    any_size = True
    one_view = True
    equates_columns = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.autocast(views.z.device.type, enabled=False):
            z_VBD, t_BD = views.z.float(), batch["teacher_0"].float()
            unit_BD = normalize(t_BD, dim=-1)
            T_BK = unit_BD @ gather_rows(unit_BD).T
            own_BK = torch.zeros_like(T_BK, dtype=torch.bool).scatter(1, own_columns(T_BK)[:, None], True)
            if self.config.loss == "mse":
                L_distill = (z_VBD - t_BD).square().mean()
            elif self.config.loss == "cosine":
                L_distill = (1 - cosine_similarity(z_VBD, t_BD[None], dim=-1)).mean()
            else:
                L_distill = torch.stack([self.difference(z_BD, T_BK, own_BK) for z_BD in z_VBD]).mean()
            S_BK = cosine_logits(z_VBD[0].detach(), gather_rows(z_VBD[0].detach()), 1.0)
        return {"distill": self.config.weight * L_distill}, {"distill_agreement": agreement(S_BK, T_BK, own_BK)}

    def difference(self, z_BD: Tensor, T_BK: Tensor, own_BK: Tensor) -> Tensor:
        """Return the mean squared difference of the cosines, without a sentence's own, ()."""
        S_BK = cosine_logits(z_BD, gather_rows(z_BD), 1.0)
        return (S_BK - T_BK).masked_fill(own_BK, 0.0).square().sum(-1).mean() / max(S_BK.shape[1] - 1, 1)

    def __init__(self, config: DistillationConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.in_teachers_space = config.loss != "similarities"
        self.reads_vectors = not self.in_teachers_space  # a cut vector has not the teacher's size
