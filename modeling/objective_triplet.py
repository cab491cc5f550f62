"""ArcCSE's triplets (Zhang et al., 2022, "A Contrastive Framework for Learning Sentence Representations from Pairwise
and Triple-wise Perspective in Angular Space"). Its angular margin is a setting of the contrast, ``angular_margin``.

Shape suffixes: B sentences of this process, L tokens, H hidden size.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from .fast_counts import first_rows, repeat_rows
from .objectives import Encode, Objective, SpanSpec, Views
from .settings import ObjectiveConfig, check_number


@dataclass
class MaskedTripletConfig(ObjectiveConfig):
    """Settings of :class:`MaskedTriplet`.

    Arguments:
        weight: λ.
        margin: m, in cosine.
        mask_rate: share of the sentence's tokens that are masked in s'.
        longer_mask_rate: share of those that are masked in s''.
        dropout: True to encode the three with dropout.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "triplet"
    weight: float = 0.1
    margin: float = 0.0
    mask_rate: float = 0.2
    longer_mask_rate: float = 0.4
    dropout: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("triplet_margin", self.margin, 0, 2)
        for field in ("mask_rate", "longer_mask_rate"):
            check_number(f"triplet_{field}", getattr(self, field), 0, 1, open_ends="low")
        if self.mask_rate >= self.longer_mask_rate:
            raise ValueError(
                "triplet_longer_mask_rate must exceed triplet_mask_rate, "
                f"got {self.longer_mask_rate} and {self.mask_rate}"
            )


class MaskedTriplet(Objective):
    """λ·L_tri: a sentence s is closer to s', which lacks a span, than to s'', which lacks a longer span around it

    L = L_arc + λ·L_tri,  L_tri = (1/B) Σ_i max(0, cos(h_i, h''_i) − cos(h_i, h'_i) + m)

    L_arc is the contrast with an angular margin. h, h' and h'' are projected, like the vectors of the contrast, and
    encoded without dropout by default. Every token of a span becomes the mask token.

    The diagnostic ``triplet_violations`` is the share of sentences that are closer to s''.
    """

    config_class = MaskedTripletConfig
    config: MaskedTripletConfig
    cacheable = True
    compares_views = False

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        h, h1, h2 = self.vectors(views, self._own(batch, "input_ids"), encode)
        with torch.autocast(h.device.type, enabled=False):
            closer_B = cosine_similarity(h.float(), h2.float()) - cosine_similarity(h.float(), h1.float())
            L_tri = (closer_B + self.config.margin).relu().mean()
        return {"triplet": self.config.weight * L_tri}, {"triplet_violations": (closer_B > 0).float().mean()}

    def vectors(self, views: Views, copies_2BL: Tensor, encode: Encode) -> tuple[Tensor, ...]:
        """Return h, h' and h'', (B, H) each."""
        B = len(copies_2BL) // 2
        ids_3BL = torch.cat([views.input_ids[:B], copies_2BL])
        mask_3BL = repeat_rows(first_rows(views.attention_mask, B), 3)
        project: Any = encode.project  # the model always gives it
        return project(ids_3BL, mask_3BL, dropout=self.config.dropout).split(B)

    @property
    def batch_spec(self) -> SpanSpec:
        return SpanSpec(self.config.mask_rate, longer=self.config.longer_mask_rate)
