"""miCSE's attention mutual information (Klein and Nabi, 2023, "miCSE: Mutual Information Contrastive Learning for
Low-shot Sentence Embeddings"), as its released code computes it.

Shape suffixes: B sentences of this process, l layers, A heads, L tokens, R rows (sentence, head and group of layers),
P positions of a row.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from .backbone import short_text
from .distributed import gather_rows, sum_over_processes, token_mean
from .fast_packing import run_with_attention
from .objectives import Encode, Objective, Views
from .settings import ObjectiveConfig, check_number

#: The least 1 − ρ²: the information of equal attention is 6.9 nats.
LEAST = 1e-6


@dataclass
class AttentionInformationConfig(ObjectiveConfig):
    """Settings of :class:`AttentionInformation`.

    Arguments:
        weight: λ.
        first_layer, last_layer: the layers that are read, both included, counted from 0, or from the last one, −1.
        groups: the number of groups that the layers are dealt into in turn; it divides their number.
        samples: S, the positions that are drawn of each row; 0 takes all.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "attention"
    weight: float = 5e-4
    first_layer: int = -5
    last_layer: int = -2
    groups: int = 2
    samples: int = 150

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("attention_groups", self.groups, 1)
        check_number("attention_samples", self.samples, 0)
        if 0 < self.samples < 3:
            raise ValueError(f"attention_samples must be 0 or at least 3, got {self.samples}")

    @classmethod
    def upgraded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Give a term of one or two samples, which trained nothing, the weight 0."""
        none = 0 < fields.get("samples", cls.samples) < 3
        return {**fields, "weight": 0.0, "samples": cls.samples} if none else fields


class AttentionInformation(Objective):
    """λ·L_att: both views of a sentence attend alike (miCSE's attention mutual information)

    L = L_NCE + λ·L_att,  L_att = −c² · (1/R) Σ_r I_r,  I_r = −½ log(1 − ρ_r²)

    A row r is a head of a sentence in a group of layers. ρ_r is the correlation of log a1 and log a2 over S of its
    positions (layer, token, token), drawn without replacement, where a1 and a2 are the probabilities of the two views,
    after dropout, and both are above 0. Rows with fewer such positions are left out; if no row has S, all draw the
    smallest number that a row has. c is the share of such positions among all, padding included, over the rows that
    count.

    The diagnostic ``attention_information`` is the mean of I_r, in nats.
    """

    config_class = AttentionInformationConfig
    config: AttentionInformationConfig
    cacheable = True
    reads_z = False
    reads_vectors = False

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.autocast(views.h.device.type, enabled=False):
            a1_RP, a2_RP = self.rows(views, 0), self.rows(views, 1)
            common_RP = (a1_RP > 0) & (a2_RP > 0)
            drawn_RP, counts_R = self.drawn(common_RP)
            ρ_R = correlation(logarithm(a1_RP, drawn_RP), logarithm(a2_RP, drawn_RP), drawn_RP)
            I_R = -0.5 * (1 - ρ_R.square()).clamp_min(LEAST).log()
            information = token_mean((I_R * counts_R).sum(), counts_R.sum())
            c = share(common_RP, counts_R)
        L_att = -(c.square() + 1e-6) * information + 0 * views.h.sum()  # DDP needs a gradient of the layers above, too
        return {"attention": self.config.weight * L_att}, {"attention_information": information.detach()}

    @torch.no_grad()
    def try_on(self, backbone: PreTrainedModel) -> None:
        ids = short_text(backbone)
        run_with_attention(backbone, torch.ones_like(ids), ids)

    def rows(self, views: Views, view: int) -> Tensor:
        """Return the attention of a view, (R, P)."""
        layers = torch.stack([views.attentions[layer][view].float() for layer in self.attention_layers], dim=1)
        grouped = layers.unflatten(1, (-1, self.config.groups))  # (B, l/groups, groups, A, L, L)
        return grouped.permute(0, 3, 2, 1, 4, 5).flatten(3).flatten(0, 2)

    @torch.no_grad()
    def drawn(self, common_RP: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions that are drawn, (R, P) bool, and the rows that count, (R,) bool."""
        number_R, S = common_RP.sum(1), self.config.samples
        if not S:
            return common_RP, number_R > 1
        enough = sum_over_processes((number_R >= S).sum()) > 0
        least = torch.where(enough, S, gather_rows(number_R.min()[None]).min())
        order_RS = torch.rand(common_RP.shape, device=common_RP.device).masked_fill(~common_RP, -1.0)
        order_RS = order_RS.topk(min(S, common_RP.shape[1])).indices
        first_RS = (torch.arange(order_RS.shape[1], device=common_RP.device) < least).expand_as(order_RS)
        drawn_RP = torch.zeros_like(common_RP).scatter(1, order_RS, first_RS)
        return drawn_RP & common_RP, (number_R >= least) & (least > 1)

    def __init__(self, config: AttentionInformationConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        count = encoder_config.num_hidden_layers
        ends = [layer + count if layer < 0 else layer for layer in (config.first_layer, config.last_layer)]
        if not 0 <= ends[0] <= ends[1] < count:
            raise ValueError(
                f"attention_first_layer and attention_last_layer must be layers of the encoder, which has {count}, in "
                f"their order, got {config.first_layer} and {config.last_layer}"
            )
        self.attention_layers = range(ends[0], ends[1] + 1)
        if len(self.attention_layers) % config.groups:
            raise ValueError(
                f"attention_groups must divide the number of layers, {len(self.attention_layers)}, got {config.groups}"
            )


def logarithm(a_RP: Tensor, drawn_RP: Tensor) -> Tensor:
    """Return log a at the drawn positions, 0 elsewhere, (R, P)."""
    return torch.where(drawn_RP, a_RP, 1.0).log()


def correlation(x_RP: Tensor, y_RP: Tensor, drawn_RP: Tensor) -> Tensor:
    """Return the correlation of the drawn values of each row, (R,); 0, without gradient, where one of both is constant
    up to rounding."""
    count_R1 = drawn_RP.sum(1, keepdim=True).clamp_min(1)
    units = []
    for values_RP in (x_RP, y_RP):
        mean_R1 = values_RP.sum(1, keepdim=True) / count_R1
        centred_RP = (values_RP - mean_R1) * drawn_RP
        squares_R1 = centred_RP.square().sum(1, keepdim=True)
        varies_R1 = squares_R1 > 1e-10 * count_R1 * mean_R1.square() + 1e-20
        units.append(centred_RP * (torch.where(varies_R1, squares_R1, 1.0).rsqrt() * varies_R1))
    return (units[0] * units[1]).sum(1)


@torch.no_grad()
def share(common_RP: Tensor, counts_R: Tensor) -> Tensor:
    """Return the share of the positions that both views attend to, over the rows that count in all processes, ()."""
    common = sum_over_processes((common_RP.sum(1) * counts_R).sum().float())
    return common / sum_over_processes((counts_R.sum() * common_RP.shape[1]).float()).clamp_min(1)
