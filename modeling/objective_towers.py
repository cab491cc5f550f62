"""CT's two encoders (Carlsson et al., 2021, "Semantic Re-Tuning with Contrastive Tension"), as its released code
computes them.

Shape suffixes: B sentences of this process, K of all processes, P pairs of a sentence, H hidden size.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from .distributed import gather_rows, own_columns, token_mean
from .fast_counts import first_rows
from .objectives import Encode, Views
from .second_encoder import SecondEncoder
from .settings import ObjectiveConfig, check_number


@dataclass
class TwoTowersConfig(ObjectiveConfig):
    """Settings of :class:`TwoTowers`.

    Arguments:
        weight: w, factor of the term.
        negatives: other sentences that each sentence is paired with; 0 takes all of the batch.
        dropout: True to read the first view's embedding and to encode with dropout; False encodes each sentence with
            both encoders once more, without.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "towers"
    weight: float = 1.0
    negatives: int = 7
    dropout: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("towers_negatives", self.negatives, 0)


class TwoTowers(SecondEncoder):
    """w·L_CT: two encoders tell by a dot product whether they read the same sentence

    L_CT = −(1/BP) Σ_i Σ_k [ y_ik·log σ(f1(s_i)·f2(s_k)) + (1 − y_ik)·log(1 − σ(f1(s_i)·f2(s_k))) ]

    k runs over i itself and the next sentences of the batch of all processes, P in all; y_ik is 1 if both are the same
    text. f1 is the encoder in training, f2 a second one from the same checkpoint, and embeddings are pooled states. Of
    a pair or triplet the first text is read.

    The diagnostics ``towers_same`` and ``towers_different`` are the shares of the pairs of either kind that are told
    right.
    """

    config_class = TwoTowersConfig
    config: TwoTowersConfig
    cacheable = True
    compares_views = False
    reads_z = False

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        f1_BH, f2_BH = self.embeddings(views, encode)
        with torch.autocast(f1_BH.device.type, enabled=False):
            f1_f2_BK, pairs_BP = f1_BH.float() @ gather_rows(f2_BH.float()).T, self.pairs(f1_BH)
            logits_BP = f1_f2_BK.gather(1, pairs_BP)
            y_BP = (views.texts[0][:, None] == gather_rows(views.texts[0])[pairs_BP]).float()
            L_CT = binary_cross_entropy_with_logits(logits_BP, y_BP)
        right_BP = (logits_BP.detach() > 0) == (y_BP > 0)
        kinds = {"towers_same": y_BP, "towers_different": 1 - y_BP}
        metrics = {name: token_mean((right_BP * kind).sum(), kind.sum()) for name, kind in kinds.items()}
        return {"towers": self.config.weight * L_CT}, metrics

    def pairs(self, rows_B: Tensor) -> Tensor:
        """Return the columns that each sentence of this process is paired with, its own first, (B, P) int64."""
        own_B = own_columns(rows_B)
        K = len(gather_rows(own_B))
        P = min(self.config.negatives or K, K - 1) + 1
        return (own_B[:, None] + torch.arange(P, device=own_B.device)) % K

    def embeddings(self, views: Views, encode: Encode) -> tuple[Tensor, Tensor]:
        """Return f1 and f2 of the first texts, (B, H) each."""
        B, dropout, pooled = views.h.shape[1], self.config.dropout, encode.pooled
        texts = views.input_ids[:B], first_rows(views.attention_mask, B)
        assert pooled is not None  # the model always gives it
        f1_BH = views.vectors("h")[0] if dropout else pooled(*texts, dropout=False)
        return f1_BH, pooled(*texts, dropout=dropout, backbone=self.encoder)
