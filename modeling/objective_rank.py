"""Distillation of frozen teachers' similarities: RankCSE's ranking distillation (Liu et al., 2023, "RankCSE:
Unsupervised Sentence Representations Learning via Learning to Rank"), DistillCSE's Group-P shuffling of the
teachers' logits (Xu et al., 2023, "DistillCSE: Distilled Contrastive Learning for Sentence Embeddings"), and
RankEncoder's similarity of rank vectors (Seonwoo et al., 2023, "Ranking-Enhanced Unsupervised Sentence Representation
Learning").

Shape suffixes: B sentences of this process, K keys of all processes, H hidden size, D size of a teacher's vectors, R
reference sentences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedConfig

from .distributed import from_first_process, gather_rows, own_columns, token_mean
from .losses import cosine_logits
from .objectives import Encode, Objective, Views
from .settings import ObjectiveConfig, Unread, check_choice, check_number

LOSSES, AGAINST = ("listmle", "listnet", "mse"), ("first", "second")


@dataclass
class RankingDistillationConfig(ObjectiveConfig):
    """Settings of :class:`RankingDistillation`.

    Arguments:
        weight: γ.
        loss: ``listmle``, ``listnet`` or ``mse``.
        temperature: τ₂ of the student's similarities.
        teacher_temperature: τ₃ of the teachers'; only ``listnet`` reads it.
        teachers: number of teachers, at least 1.
        mixture: α, the first teacher's share if there are several; the others have equal parts of the rest. 1/n
            averages n teachers.
        against: the view whose vectors the student compares with the first view's: ``second`` (RankCSE) or ``first``
            (DistillCSE).
        shuffle: p, the teachers' probability of a group of keys whose similarities change places (DistillCSE); 0
            shuffles nothing.
        shuffle_temperature: τ₄ of the probabilities that make the groups.
        references: R, the number of the corpus's rows that a teacher ranks for each sentence: T is then the
            correlation of these ranks (RankEncoder); 0: T is the cosine.
        low, high: ``mse`` counts the pairs with T between these bounds; the others read neither.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "rank"
    unread_with: ClassVar[Unread] = {
        "temperature": ("loss", ("mse",)),
        "teacher_temperature": ("loss", ("listmle", "mse")),
        "mixture": ("teachers", (1,)),
        "shuffle_temperature": ("shuffle", (0,)),
        "low": ("loss", ("listmle", "listnet")),
        "high": ("loss", ("listmle", "listnet")),
    }
    weight: float = 1.0
    loss: str = "listmle"
    temperature: float = 0.05
    teacher_temperature: float = 0.025
    teachers: int = 1
    mixture: float = 1 / 3
    against: str = "second"
    shuffle: float = 0.0
    shuffle_temperature: float = 1.0
    references: int = 0
    low: float = 0.5
    high: float = 0.9999

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "loss", LOSSES)
        check_choice(self, "against", AGAINST)
        check_number("rank_teachers", self.teachers, 1)
        check_number("rank_shuffle", self.shuffle, 0, 1, open_ends="high")
        for field in ("temperature", "teacher_temperature", "shuffle_temperature"):
            check_number(f"rank_{field}", getattr(self, field), 0, open_ends="low")
        check_number("rank_mixture", self.mixture, 0, 1)
        check_number("rank_references", self.references, 0)
        if 0 < self.references < 3:
            raise ValueError(f"rank_references must be 0 or at least 3, got {self.references}")
        for field in ("low", "high"):
            check_number(f"rank_{field}", getattr(self, field), -1, 1)
        if self.loss == "mse" and self.low > self.high:
            raise ValueError(
                f"rank_low must be at most rank_high, {self.high}, got {self.low}: the term would be 0 for every pair"
            )

    @classmethod
    def upgraded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Give a term without any pair between its bounds the weight 0: it was 0."""
        low, high = fields.get("low", cls.low), fields.get("high", cls.high)
        none = fields.get("loss", cls.loss) == "mse" and low > high
        return {**fields, "weight": 0.0, "low": high, "high": low} if none else fields


class RankingDistillation(Objective):
    """γ·L_rank: the student ranks the batch as frozen teachers do

    L = L_NCE + γ·L_rank

    listnet: L_rank = −(1/B) Σ_i Σ_{k≠i} softmax_k(T_ik/τ₃) · log softmax_k(S_ik/τ₂)
    listmle: L_rank = −(1/B) Σ_i Σ_r log( exp(S_iπ(r)/τ₂) / Σ_{r'≥r} exp(S_iπ(r')/τ₂) )
    mse:     L_rank = mean of (S_ik − T_ik)² over the pairs of all processes with low ≤ T_ik ≤ high, 0 without any

    S_ik = cos(z1_i, z2_k), or cos(z1_i, z1_k), over the sentences of all processes. T_ik is the teachers' mixture
    α·cos(t_i, t_k) + (1 − α)/(n − 1) · Σ cos(t'_i, t'_k) of their vectors t, t' (α = 1 with one teacher). π sorts the
    keys by T_i, the most similar first. The sentence's own key leads every list of ``listmle``; ``listnet`` leaves it
    out, since it would take nearly all mass.

    With p > 0 the T_ik of a sentence change places at random within groups: in the order of T_i, the r-th key is in
    group ⌊c_r / p⌋, c_r = Σ_{s≤r} softmax_s(T_i/τ₄).

    With R references, t is not a teacher's vector but that of the ranks that its cosines give to R rows of the corpus,
    so that cos(t_i, t_k) is Spearman's correlation.

    The diagnostic ``rank_agreement`` is the mean correlation of S_i and T_i over k ≠ i.
    """

    config_class = RankingDistillationConfig
    config: RankingDistillationConfig
    cacheable = True
    compares_views = False
    any_size = True
    reference_vectors: list[Tensor]

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.autocast(views.z.device.type, enabled=False):
            z1_BH, keys_BH = views.z[0].float(), views.z[AGAINST.index(self.config.against)].float()
            S_BK, T_BK = cosine_logits(z1_BH, gather_rows(keys_BH), 1.0), self.teacher_similarities(batch)
            own_BK = torch.zeros_like(S_BK, dtype=torch.bool).scatter(1, own_columns(S_BK)[:, None], True)
            L_rank = self.ranking_loss(S_BK / self.config.temperature, self.shuffled(T_BK, own_BK), own_BK)
        return {"rank": self.config.weight * L_rank}, {"rank_agreement": agreement(S_BK.detach(), T_BK, own_BK)}

    def ranking_loss(self, logits_BK: Tensor, T_BK: Tensor, own_BK: Tensor) -> Tensor:
        """Return L_rank, (), from S/τ₂ and T."""
        if self.config.loss == "mse":
            return mean_squared(logits_BK * self.config.temperature, T_BK, self.config.low, self.config.high)
        if self.config.loss == "listmle":
            return list_mle(logits_BK, T_BK)
        return list_net(logits_BK, T_BK / self.config.teacher_temperature, own_BK)

    def teacher_similarities(self, batch: dict[str, Tensor]) -> Tensor:
        """Return T, (B, K): the mixture of the teachers' cosine similarities."""
        others = self.config.teachers - 1
        shares = [self.config.mixture if others else 1.0, *[(1 - self.config.mixture) / max(others, 1)] * others]
        found = []
        for place, share in enumerate(shares):
            t_BD = self.compared(place, normalize(batch[f"teacher_{place}"].float(), dim=-1))
            found.append(share * t_BD @ gather_rows(t_BD).T)
        return torch.stack(found).sum(0)

    def compared(self, place: int, t_BD: Tensor) -> Tensor:
        """Return the vectors of length 1 whose products are a teacher's similarities: its own, (B, D), or those of the
        ranks that they give to the references, (B, R)."""
        if not self.config.references:
            return t_BD
        if not self.reference_vectors:
            raise ValueError("rank_references must be 0 outside a trainer, which sets the vectors of the references")
        self.reference_vectors = [each.to(t_BD.device) for each in self.reference_vectors]
        return rank_vectors(t_BD @ self.reference_vectors[place].T)

    def set_references(self, vectors: Sequence[Tensor]) -> None:
        self.reference_vectors = [normalize(each.float(), dim=-1) for each in vectors]

    def shuffled(self, T_BK: Tensor, own_BK: Tensor) -> Tensor:
        """Return T with its values exchanged within groups of keys, the first process's draw on all, (B, K)."""
        p, K = self.config.shuffle, T_BK.shape[1]
        if not p:
            return T_BK
        draws_KK = from_first_process(torch.rand(K, K, device=T_BK.device))
        return shuffled_in_groups(T_BK, own_BK, p, self.config.shuffle_temperature, draws_KK[own_columns(T_BK)])

    def __init__(self, config: RankingDistillationConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.teachers, self.references = config.teachers, config.references
        self.reference_vectors = []


def shuffled_in_groups(T_BK: Tensor, own_BK: Tensor, p: float, temperature: float, draws_BK: Tensor) -> Tensor:
    """Return T, (B, K), with the values of each row in other places (DistillCSE's Group-P shuffling).

    In the order of T, the most similar first and the own key left out, a key belongs to the group ⌊c/p⌋ of the
    cumulated softmax c, at most ⌈1/p⌉ − 1. The values of a group's keys are dealt to them anew. The own key keeps its.

    Arguments:
        temperature: of the softmax.
        draws_BK: uniform in [0, 1): they order the keys of a group.
    """
    others_BK = T_BK.masked_fill(own_BK, -torch.inf)
    sorted_BK, order_BK = others_BK.sort(dim=-1, descending=True, stable=True)  # the own key is the last one
    c_BK = (sorted_BK / temperature).softmax(-1).cumsum(-1)
    bounds = p * torch.arange(1, math.ceil(1 / p), device=T_BK.device, dtype=c_BK.dtype)
    group_BK = torch.bucketize(c_BK, bounds, right=True).masked_fill(sorted_BK == -torch.inf, len(bounds) + 1)
    dealt_BK = order_BK.gather(-1, (group_BK + draws_BK).argsort(-1))
    return others_BK.scatter(-1, dealt_BK, sorted_BK).where(~own_BK, T_BK)


def rank_vectors(similarities_BR: Tensor) -> Tensor:
    """Return the ranks of each row's values, centred and of length 1, (B, R): products are Spearman's correlations.

    Equal values are ranked in their order."""
    order_BR, R = similarities_BR.argsort(dim=-1, stable=True), similarities_BR.shape[1]
    places_R = torch.arange(R, device=order_BR.device, dtype=torch.float32) - (R - 1) / 2
    return normalize(torch.zeros_like(similarities_BR).scatter(-1, order_BR, places_R.expand_as(order_BR)), dim=-1)


def mean_squared(S_BK: Tensor, T_BK: Tensor, low: float, high: float) -> Tensor:
    """Return the mean of (S − T)² over the pairs of all processes with T between the bounds, (); 0 without any."""
    counted_BK = (low <= T_BK) & (high >= T_BK)
    return token_mean(((S_BK - T_BK).square() * counted_BK).sum(), counted_BK.sum())


def list_net(S_BK: Tensor, T_BK: Tensor, own_BK: Tensor) -> Tensor:
    """Return the cross-entropy of the student's top-one distribution under the teacher's, (); both scaled. A row
    without other keys counts 0."""
    log_p_BK = S_BK.masked_fill(own_BK, -torch.inf).log_softmax(-1).masked_fill(own_BK, 0.0)
    q_BK = T_BK.masked_fill(own_BK, -torch.inf).softmax(-1).masked_fill(own_BK, 0.0)
    return -(q_BK * log_p_BK).sum(-1).mean()


def list_mle(S_BK: Tensor, T_BK: Tensor) -> Tensor:
    """Return −log of the teacher's order under the student's Plackett–Luce model, (); ties keep the batch's order."""
    order_BK = T_BK.argsort(dim=-1, descending=True, stable=True)
    sorted_BK = S_BK.gather(-1, order_BK)
    rest_BK = sorted_BK.flip(-1).logcumsumexp(-1).flip(-1)
    return (rest_BK - sorted_BK).sum(-1).mean()


def agreement(S_BK: Tensor, T_BK: Tensor, own_BK: Tensor) -> Tensor:
    """Return the mean correlation of the rows of S and T without the own keys, ()."""
    count = max(S_BK.shape[1] - 1, 1)
    centred = []
    for values_BK in (S_BK, T_BK):
        kept_BK = values_BK.masked_fill(own_BK, 0.0)
        centred.append((kept_BK - kept_BK.sum(-1, keepdim=True) / count).masked_fill(own_BK, 0.0))
    products_B = (centred[0] * centred[1]).sum(-1)
    norms_B = centred[0].norm(dim=-1) * centred[1].norm(dim=-1)
    return (products_B / norms_B.clamp_min(1e-12)).mean()
