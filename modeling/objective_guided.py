"""False negatives by the judgement of a frozen guide: DCLR's instance weights (Zhou et al., 2022, "Debiased
Contrastive Learning of Unsupervised Sentence Representations") and GISTEmbed's bound (Solatorio, 2024, "GISTEmbed:
Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning").

Shape suffixes: B sentences of this process, K keys of all processes, D size of the guide's vectors.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedConfig

from .distributed import gather_rows
from .objectives import ContrastModifier, Views
from .settings import ObjectiveConfig, Unread, check_choice, check_number

RULES = ("threshold", "margin", "relative_margin")
#: A similarity counts as equal to a bound within the rounding of float32.
ROUNDING = 1e-6


@dataclass
class GuidedNegativesConfig(ObjectiveConfig):
    """Settings of :class:`GuidedNegatives`.

    Arguments:
        weight: w, the share of a false negative that is left out: at 1 all of it, at 0 nothing.
        rule: ``threshold`` (DCLR), ``margin`` (GISTEmbed at a margin of 0), or ``relative_margin``.
        threshold: φ; only ``threshold`` reads it.
        margin: m; the other two rules read it.
        teacher: place of the guide among the teachers, from 0.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "guided"
    unread_with: ClassVar[Unread] = {
        "threshold": ("rule", ("margin", "relative_margin")),
        "margin": ("rule", ("threshold",)),
    }
    weight: float = 1.0
    rule: str = "threshold"
    threshold: float = 0.9
    margin: float = 0.0
    teacher: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "rule", RULES)
        check_number("guided_weight", self.weight, 0, 1)
        check_number("guided_threshold", self.threshold, -1, 1, open_ends="low")
        check_number("guided_margin", self.margin, 0, 2)
        check_number("guided_teacher", self.teacher, 0)


class GuidedNegatives(ContrastModifier):
    """Negatives that a frozen guide takes for positives leave the contrast (DCLR §4.2, GISTEmbed)

    L = −(1/B) Σ_i log( e^{sim(h_i, h_i⁺)/τ} / (e^{sim(h_i, h_i⁺)/τ} + Σ_{k≠i} α_ik · e^{sim(h_i, h_k⁺)/τ}) )

    α_ik = 1 − w if x_k⁺ is a false negative of x_i, else 1

    threshold:        sim_C(x_i, x_k⁺) ≥ φ
    margin:           sim_C(x_i, x_k⁺) > sim_C(x_i, x_i⁺) − m
    relative_margin:  sim_C(x_i, x_k⁺) > sim_C(x_i, x_i⁺) − m · |sim_C(x_i, x_i⁺)|

    sim_C is the cosine of the guide's vectors. Where both views are the same text, they have the same vector, and
    sim_C(x_i, x_i⁺) is 1. The diagnostic ``guided_left_out`` is the sum of 1 − α over a row's negatives.
    """

    config_class = GuidedNegativesConfig
    config: GuidedNegativesConfig
    cacheable = True

    def weights(self, views: Views, batch: dict[str, Tensor], query: int, key: int) -> Tensor | None:
        t_BD, t_KD = self.guide(batch, query), gather_rows(self.guide(batch, key))
        with torch.autocast(t_BD.device.type, enabled=False):
            sim_C_BK = t_BD @ t_KD.T
            own_B1 = (self.guide(batch, 0) * self.guide(batch, 1)).sum(-1, keepdim=True)
        return 1 - self.config.weight * self.false_negatives(sim_C_BK, own_B1).float()

    def false_negatives(self, sim_C_BK: Tensor, own_B1: Tensor) -> Tensor:
        """Return True at false negatives, (B, K), given each row's similarity to its positive, (B, 1)."""
        if self.config.rule == "threshold":
            return sim_C_BK >= self.config.threshold - ROUNDING
        scale = own_B1.abs() if self.config.rule == "relative_margin" else 1.0
        return sim_C_BK > own_B1 - self.config.margin * scale + ROUNDING

    def guide(self, batch: dict[str, Tensor], view: int) -> Tensor:
        """Return the guide's normalised vectors of one view, (B, D).

        Raises:
            ValueError: the batch has no vectors for the view.
        """
        first = f"teacher_{self.config.teacher}"
        name = f"{first}_{view}"
        if view == 0 or (view == 1 and name not in batch):  # two views of one text
            name = first
        if name not in batch:
            raise ValueError(f"the objective 'guided' needs the guide's vectors {name!r} in the batch, got none")
        return normalize(batch[name].float(), dim=-1)

    def __init__(self, config: GuidedNegativesConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.teachers, self.teaches_all_columns = config.teacher + 1, True
