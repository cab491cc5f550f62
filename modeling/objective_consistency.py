"""RankCSE's ranking consistency (Liu et al., 2023, "RankCSE: Unsupervised Sentence Representations
Learning via Learning to Rank").

Shape suffixes: B sentences of this process, K keys of all processes, H hidden size.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .distributed import gather_rows
from .losses import cosine_logits
from .objectives import Encode, Objective, Views
from .settings import ObjectiveConfig, check_number


@dataclass
class ConsistencyConfig(ObjectiveConfig):
    """Settings of :class:`RankingConsistency`.

    Arguments:
        weight: β.
        temperature: τ₁ of both distributions.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "consistency"
    weight: float = 1.0
    temperature: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("consistency_temperature", self.temperature, 0, open_ends="low")


class RankingConsistency(Objective):
    """β·L_consistency: both views of a sentence rank the batch alike

    L = L_NCE + β·L_consistency,  L_consistency = (1/B) Σ_i JS(P_i ‖ Q_i)

    P_i = softmax_k(cos(z1_i, z2_k)/τ₁) and Q_i = softmax_k(cos(z2_i, z1_k)/τ₁) over the sentences of all processes;
    JS(P ‖ Q) = ½ KL(P ‖ M) + ½ KL(Q ‖ M), M = ½ (P + Q). The paper prints a sum over i. It is at most log 2.
    """

    config_class = ConsistencyConfig
    config: ConsistencyConfig
    cacheable = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.autocast(views.z.device.type, enabled=False):
            z1_BH, z2_BH = views.z[0].float(), views.z[1].float()
            log_P_BK = cosine_logits(z1_BH, gather_rows(z2_BH), self.config.temperature).log_softmax(-1)
            log_Q_BK = cosine_logits(z2_BH, gather_rows(z1_BH), self.config.temperature).log_softmax(-1)
            L_consistency = jensen_shannon(log_P_BK, log_Q_BK).mean()
        return {"consistency": self.config.weight * L_consistency}, {}


def jensen_shannon(log_P_BK: Tensor, log_Q_BK: Tensor) -> Tensor:
    """Return JS(P ‖ Q) of each row in nats, (B,), from the logarithms of the distributions."""
    log_M_BK = torch.logaddexp(log_P_BK, log_Q_BK) - math.log(2)
    to_P_B = (log_P_BK.exp() * (log_P_BK - log_M_BK)).sum(-1)
    to_Q_B = (log_Q_BK.exp() * (log_Q_BK - log_M_BK)).sum(-1)
    return (to_P_B + to_Q_B) / 2
