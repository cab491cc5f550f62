"""Margin-MSE against a cross-encoder (Hofstätter et al., 2020, "Improving Efficient Neural Ranking Models with
Cross-Architecture Knowledge Distillation"), the loss of GPL (Wang et al., 2022, "GPL: Generative Pseudo Labeling for
Unsupervised Domain Adaptation of Dense Retrieval").

Shape suffixes: B triplets of this process, D size of z.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .objectives import Encode, Objective, Views
from .settings import ObjectiveConfig, check_choice

SIMILARITIES = ("dot", "cosine")


@dataclass
class MarginDistillationConfig(ObjectiveConfig):
    """Settings of :class:`MarginDistillation`.

    Arguments:
        weight: w, the factor of the term.
        similarity: ``dot``, as in the papers, or ``cosine``. The exported encoder names it.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "margin"
    weight: float = 1.0
    similarity: str = "dot"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "similarity", SIMILARITIES)


class MarginDistillation(Objective):
    """w·L_margin: query, positive and negative are as far apart as a cross-encoder's scores of them

    L_margin = (1/B) Σ_i ( (s(q_i, p_i) − s(q_i, n_i)) − m_i )²

    q, p, n are z of the three columns, s is their dot product or cosine. m is the cross-encoder's score of (q, p) less
    that of (q, n); it is computed before training.

    The diagnostic ``margin_order`` is the share of the triplets whose margin has the sign of m.
    """

    config_class = MarginDistillationConfig
    config: MarginDistillationConfig
    cacheable = True
    compares_views = False
    teachers = 1
    teaches_margins = True
    columns = 3

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.autocast(views.z.device.type, enabled=False):
            z = views.z.float() if self.config.similarity == "dot" else normalize(views.z.float(), dim=-1)
            q_BD, p_BD, n_BD = z
            m_B = batch["teacher_0"].float().squeeze(1)
            margin_B = (q_BD * p_BD).sum(-1) - (q_BD * n_BD).sum(-1)
            L_margin = (margin_B - m_B).square().mean()
            order = (margin_B.detach().sign() == m_B.sign()).float().mean()
        return {"margin": self.config.weight * L_margin}, {"margin_order": order}
