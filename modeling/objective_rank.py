"""RankCSE's ranking distillation (Liu et al., 2023, "RankCSE: Unsupervised Sentence Representations
Learning via Learning to Rank").

Shape suffixes: B sentences of this process, K keys of all processes, H hidden size, D size of a teacher's vectors.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedConfig

from .distributed import gather_rows, own_columns
from .losses import cosine_logits
from .objectives import Encode, Objective, Views
from .settings import ObjectiveConfig, check_choice, check_number

LOSSES = ("listmle", "listnet")


@dataclass
class RankingDistillationConfig(ObjectiveConfig):
    """Settings of :class:`RankingDistillation`.

    Arguments:
        weight: γ.
        loss: ``listmle`` or ``listnet``.
        temperature: τ₂ of the student's similarities.
        teacher_temperature: τ₃ of the teachers'; only ``listnet`` reads it.
        teachers: number of teachers, 1 or 2.
        mixture: α, the first teacher's share if there are two.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "rank"
    weight: float = 1.0
    loss: str = "listmle"
    temperature: float = 0.05
    teacher_temperature: float = 0.025
    teachers: int = 1
    mixture: float = 1 / 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "loss", LOSSES)
        check_choice(self, "teachers", (1, 2))
        for field in ("temperature", "teacher_temperature"):
            check_number(f"rank_{field}", getattr(self, field), 0, open_ends="low")
        check_number("rank_mixture", self.mixture, 0, 1)


class RankingDistillation(Objective):
    """γ·L_rank: the student ranks the batch as frozen teachers do

    L = L_NCE + γ·L_rank

    listnet: L_rank = −(1/B) Σ_i Σ_{k≠i} softmax_k(T_ik/τ₃) · log softmax_k(S_ik/τ₂)
    listmle: L_rank = −(1/B) Σ_i Σ_r log( exp(S_iπ(r)/τ₂) / Σ_{r'≥r} exp(S_iπ(r')/τ₂) )

    S_ik = cos(z1_i, z2_k) over the sentences of all processes. T_ik = α·cos(t_i, t_k) + (1 − α)·cos(t'_i, t'_k) for
    the vectors t and t' of the teachers (α = 1 with one teacher). π sorts the keys by T_i, the most similar first. The
    sentence's own key leads every list of ``listmle``; ``listnet`` leaves it out, since it would take nearly all mass.

    The diagnostic ``rank_agreement`` is the mean correlation of S_i and T_i over k ≠ i.
    """

    config_class = RankingDistillationConfig
    config: RankingDistillationConfig
    cacheable = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.autocast(views.z.device.type, enabled=False):
            S_BK = cosine_logits(views.z[0].float(), gather_rows(views.z[1].float()), 1.0)
            T_BK = self.teacher_similarities(batch)
            own_BK = torch.zeros_like(S_BK, dtype=torch.bool).scatter(1, own_columns(S_BK)[:, None], True)
            L_rank = self.ranking_loss(S_BK / self.config.temperature, T_BK, own_BK)
        return {"rank": self.config.weight * L_rank}, {"rank_agreement": agreement(S_BK.detach(), T_BK, own_BK)}

    def ranking_loss(self, logits_BK: Tensor, T_BK: Tensor, own_BK: Tensor) -> Tensor:
        """Return L_rank, (), from S/τ₂ and T."""
        if self.config.loss == "listmle":
            return list_mle(logits_BK, T_BK)
        return list_net(logits_BK, T_BK / self.config.teacher_temperature, own_BK)

    def teacher_similarities(self, batch: dict[str, Tensor]) -> Tensor:
        """Return T, (B, K): the mixture of the teachers' cosine similarities."""
        shares = (1.0,) if self.config.teachers == 1 else (self.config.mixture, 1 - self.config.mixture)
        found = []
        for place, share in enumerate(shares):
            t_BD = normalize(batch[f"teacher_{place}"].float(), dim=-1)
            found.append(share * t_BD @ gather_rows(t_BD).T)
        return torch.stack(found).sum(0)

    def __init__(self, config: RankingDistillationConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.teachers = config.teachers


def list_net(S_BK: Tensor, T_BK: Tensor, own_BK: Tensor) -> Tensor:
    """Return the cross-entropy of the student's top-one distribution under the teacher's, (); both scaled."""
    log_p_BK = S_BK.masked_fill(own_BK, -torch.inf).log_softmax(-1).masked_fill(own_BK, 0.0)
    q_BK = T_BK.masked_fill(own_BK, -torch.inf).softmax(-1)
    return -(q_BK * log_p_BK).sum(-1).mean()


def list_mle(S_BK: Tensor, T_BK: Tensor) -> Tensor:
    """Return −log of the teacher's order under the student's Plackett–Luce model, (); ties keep the batch's order."""
    order_BK = T_BK.argsort(dim=-1, descending=True, stable=True)
    sorted_BK = S_BK.gather(-1, order_BK)
    rest_BK = sorted_BK.flip(-1).logcumsumexp(-1).flip(-1)
    return (rest_BK - sorted_BK).sum(-1).mean()


def agreement(S_BK: Tensor, T_BK: Tensor, own_BK: Tensor) -> Tensor:
    """Return the mean correlation of the rows of S and T without the own keys, ()."""
    count = S_BK.shape[1] - 1
    centred = []
    for values_BK in (S_BK, T_BK):
        kept_BK = values_BK.masked_fill(own_BK, 0.0)
        centred.append((kept_BK - kept_BK.sum(-1, keepdim=True) / count).masked_fill(own_BK, 0.0))
    products_B = (centred[0] * centred[1]).sum(-1)
    norms_B = centred[0].norm(dim=-1) * centred[1].norm(dim=-1)
    return (products_B / norms_B.clamp_min(1e-12)).mean()
