"""IS-BERT's mutual information of a sentence and its tokens (Zhang et al., 2020, "An Unsupervised Sentence Embedding
Method by Mutual Information Maximization"), as its released code computes it.

Shape suffixes: B sentences of this process, K of all processes, L tokens, H hidden size, D width of a token's
representation.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from transformers import PreTrainedConfig

from .distributed import gather_rows, own_columns, token_mean
from .fast_counts import first_rows
from .layer_memory import check_vectors
from .objectives import Encode, Objective, Views
from .pooling import mean_over_tokens
from .settings import ObjectiveConfig, check_choice, check_number

SENTENCES, ACTIVATIONS = ("tokens", "h"), ("none", "relu")


@dataclass
class TokenInformationConfig(ObjectiveConfig):
    """Settings of :class:`TokenInformation`.

    Arguments:
        weight: w, factor of the term.
        kernels: widths of the convolutions over the tokens' states, odd numbers joined by '+'.
        channels: outputs of each convolution; D is their sum.
        activation: ``none`` (the released code) or ``relu``, behind the convolutions.
        sentence: the sentence's vector: ``tokens``, the mean of its tokens' representations (the paper), or ``h``, its
            pooled state, which is the embedding of inference. ``h`` needs D to be the hidden size.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "token_information"
    weight: float = 1.0
    kernels: str = "1+3+5"
    channels: int = 256
    activation: str = "none"
    sentence: str = "tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("token_information_channels", self.channels, 1)
        check_choice(self, "activation", ACTIVATIONS)
        check_choice(self, "sentence", SENTENCES)
        if not all(part.isdecimal() and int(part) % 2 for part in self.kernels.split("+")):
            raise ValueError(f"token_information_kernels must be odd numbers joined by '+', got {self.kernels!r}")

    @property
    def widths(self) -> list[int]:
        """The widths of the convolutions."""
        return [int(part) for part in self.kernels.split("+")]


class TokenInformation(Objective):
    """w·L_MI: a sentence's vector shares information with its own tokens, not with others'

    L_MI = E_neg − E_pos, the Jensen-Shannon estimate of the mutual information, negative:
    E_pos = (1/M) Σ_i Σ_t [ log 2 − sp(−c_it·g_i) ],  E_neg = 1/(M·(K − 1)) Σ_i Σ_t Σ_{k≠i} [ sp(c_it·g_k) − log 2 ]

    sp is the softplus, M the number of tokens of all sentences, special ones included. c_it concatenates convolutions
    of several widths over the last hidden states of the first view's text, and g_i is their mean over the tokens. Both
    belong to the objective: the embedding of inference is the encoder's alone, which ``sentence="h"`` takes as g.

    The diagnostic ``token_information_accuracy`` is the share of tokens whose own sentence has the largest product.
    """

    config_class = TokenInformationConfig
    config: TokenInformationConfig
    cacheable = True
    compares_views = False
    reads_z = False

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        mask_BL = first_rows(views.attention_mask, views.h.shape[1])
        c_BLD, g_BD = self.representations(views, mask_BL, encode)
        with torch.autocast(c_BLD.device.type, enabled=False):
            T_BLK, M = c_BLD @ gather_rows(g_BD).T, mask_BL.sum()
            own_BLK = own_columns(g_BD)[:, None, None] == torch.arange(T_BLK.shape[-1], device=T_BLK.device)
            negatives_BL = softplus(T_BLK).masked_fill(own_BLK, 0.0).sum(-1) / max(T_BLK.shape[-1] - 1, 1)
            positives_BL = softplus(-T_BLK).masked_fill(~own_BLK, 0.0).sum(-1)
            L_MI = token_mean(((negatives_BL + positives_BL) * mask_BL).sum(), M) - 2 * math.log(2)
        right_BL = (T_BLK.detach().argmax(-1, keepdim=True) == own_columns(g_BD)[:, None, None]).squeeze(-1)
        accuracy = token_mean((right_BL * mask_BL).sum(), M)
        return {self.config.name: self.config.weight * L_MI}, {"token_information_accuracy": accuracy}

    def representations(self, views: Views, mask_BL: Tensor, encode: Encode) -> tuple[Tensor, Tensor]:
        """Return c (B, L, D), zeros at padding, and g (B, D), in fp32."""

        def local(ids_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor]:
            states_BHL = (encode(ids_BL, mask_BL) * mask_BL[:, :, None]).transpose(1, 2)
            c_BDL = torch.cat([convolution(states_BHL) for convolution in self.convolutions], dim=1)
            c_BDL = c_BDL.relu() if self.config.activation == "relu" else c_BDL
            return (c_BDL.transpose(1, 2).float() * mask_BL[:, :, None],)

        c_BLD = encode.chunks(local, (views.input_ids[: len(mask_BL)], mask_BL))[0]
        pooled = self.config.sentence == "h"
        return c_BLD, views.vectors("h")[0].float() if pooled else mean_over_tokens(c_BLD, mask_BL)

    def __init__(self, config: TokenInformationConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        H, widths = encoder_config.hidden_size, config.widths
        if config.sentence == "h" and config.channels * len(widths) != H:
            raise ValueError(
                f"token_information_channels times the number of kernels must be the hidden size, {H}, with "
                f"token_information_sentence 'h', got {config.channels} times {len(widths)}"
            )
        self.reads_vectors = config.sentence == "h"
        check_vectors("token_information_channels", config.channels, H * sum(widths), "weights")
        self.convolutions = nn.ModuleList(nn.Conv1d(H, config.channels, k, padding=k // 2) for k in widths)
