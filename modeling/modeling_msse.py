"""MSSE ("Harnessing Dimension-level Contrastive Learning and Information Compensation Mechanism for Sentence Embedding
Enhancement", anonymous ACL submission).

Shape suffixes: B sentences of this process, H hidden size, K tokens of a target, M scored tokens; of the diagnostic R
sentences and their T tokens; V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from .configuration_msse import DimensionContrastConfig, InformationCompensationConfig, MSSEConfig
from .distributed import sum_over_processes, token_mean
from .losses import dimension_contrast_balanced, dimension_contrast_sum
from .modeling_cse import CSEModel
from .objectives import Encode, Objective, TargetSpec, Views
from .row_counts import first_rows
from .sentence_decoder import SentenceDecoder
from .unpadding import Packing

_REDUCTIONS = {"sum": dimension_contrast_sum, "balanced": dimension_contrast_balanced}
#: Sentences that the diagnostic of each process is measured on.
GAP_SENTENCES = 16


def cross_correlation(h1_BH: Tensor, h2_BH: Tensor) -> Tensor:
    """C (H, H), the correlation of each dimension of one view with each of the other, over the rows of all processes
    (MSSE Eq. 3). A dimension that does not vary, up to rounding, correlates with nothing: 0, without gradient."""
    H = h1_BH.shape[1]
    both_BD = torch.cat([h1_BH, h2_BH], dim=1)  # D = 2H
    rows = sum_over_processes(both_BD.new_full((1,), float(len(both_BD))))
    mean_D = sum_over_processes(both_BD.sum(0)) / rows
    centred_BD = both_BD - mean_D
    products_HH = centred_BD[:, :H].T @ centred_BD[:, H:]
    squares_2H = centred_BD.square().sum(0).unflatten(0, (2, H))
    moments = sum_over_processes(torch.cat([products_HH, squares_2H]))
    squares_D = moments[H:].flatten()
    varies_D = squares_D > 1e-10 * rows * mean_D.square()
    scale_D = torch.where(varies_D, squares_D, 1.0).rsqrt() * varies_D
    return moments[:H] * scale_D[:H, None] * scale_D[H:]


class DimensionContrast(Objective):
    """μ·L_DCM: a dimension agrees with itself over the two views, and with no other (Eqs. 3, 4 and 10)

    C_ij = corr(column i of H, column j of H⁺),  columns centred over the batch

    balanced: L = L_NCE + μ · [(1/H) Σ_i (C_ii − 1)² + (1/(H² − H)) Σ_{i≠j} C_ij²]
    sum:      L = L_NCE + μ · Σ_ij (C_ij − δ_ij)²

    Diagnostics: ``dcm_diagonal``, the mean of C_ii (1: each dimension agrees with itself), and ``dcm_off_diagonal``,
    the root mean square of the other C_ij (0: dimensions say different things).
    """

    config_class = DimensionContrastConfig
    config: DimensionContrastConfig
    cacheable = True

    def __init__(self, config: DimensionContrastConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.reads_z = config.representation == "z"

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        vectors_VBH = views.z if self.reads_z else views.h
        with torch.autocast(vectors_VBH.device.type, enabled=False):
            correlation_HH = cross_correlation(vectors_VBH[0].float(), vectors_VBH[1].float())
            loss = _REDUCTIONS[self.config.reduction](correlation_HH)
        found = correlation_HH.detach()
        diagonal_H = found.diagonal()
        others = max(found.numel() - len(diagonal_H), 1)
        off = ((found.square().sum() - diagonal_H.square().sum()).clamp_min(0) / others).sqrt()
        return {"dcm": self.config.weight * loss}, {"dcm_diagonal": diagonal_H.mean(), "dcm_off_diagonal": off}


class InformationCompensation(Objective):
    """γ·L_ICM: a small decoder q writes the sentence from its embedding alone (Eqs. 8 to 10)

    L = L_NCE + γ · (1/M) Σ_i Σ_t −log q(x_it | h_i, …)

    with … the tokens before t (``causal``) or noisy embeddings of all tokens (``denoising``). M counts the sentences'
    own tokens: special tokens and template are none. The output matrix is the encoder's word embedding.

    The diagnostic ``icm_gap`` is the cross-entropy with the embedding of another sentence of the batch minus that with
    its own, over the first ``GAP_SENTENCES`` of each process: at 0 the decoder does without the embedding. In training
    the two have dropout of their own. It costs a decoder's forward pass over these sentences, without gradient.
    """

    config_class = InformationCompensationConfig
    config: InformationCompensationConfig
    cacheable = True

    def __init__(self, config: InformationCompensationConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.reads_z = config.representation == "z"
        heads, size = config.decoder_heads or int(encoder_config.num_attention_heads), encoder_config.hidden_size
        if size % heads:
            raise ValueError(f"icm_decoder_heads must divide the hidden size, {size}, got {heads}")
        self.decoder = SentenceDecoder(
            encoder_config,
            causal=config.decoder == "causal",
            layers=config.decoder_layers,
            heads=heads,
            dropout=config.decoder_dropout,
            element_dropout=config.element_dropout,
        )

    @property
    def batch_spec(self) -> TargetSpec:
        view = int(self.config.target == "positive")
        return TargetSpec(self.config.word_dropout, views=1, mask_share=1.0, random_share=0.0, view=view)

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        ids_BK, mask_BK, positions_M, labels_M = (
            batch[f"icm_{key}"] for key in ("input_ids", "attention_mask", "positions", "labels")
        )
        memory_BH = (views.z if self.reads_z else views.h)[0]
        words_VE = encode.word_embeddings

        def write(ids_BK: Tensor, mask_BK: Tensor, memory_BH: Tensor, positions_M: Tensor, labels_M: Tensor) -> Any:
            queries_BKH = self.decoder.queries(ids_BK, words_VE)
            states_MH = self.decoder(queries_BKH, memory_BH, mask_BK).flatten(0, 1).index_select(0, positions_M)
            return self.decoder.losses(states_MH, labels_M, words_VE), queries_BKH[:GAP_SENTENCES].detach().clone()

        rows = (ids_BK, mask_BK, memory_BH)
        losses_M, queries_RKH = encode.chunks(write, rows, (positions_M, labels_M))
        loss = token_mean(losses_M.sum(), len(labels_M))
        labels_BK = torch.full_like(ids_BK, -100).flatten().index_copy(0, positions_M, labels_M).view_as(ids_BK)
        others = self.with_other_vectors(queries_RKH, memory_BH, mask_BK, labels_BK, words_VE)
        tokens = (labels_BK[:GAP_SENTENCES] != -100).sum().clamp_min(1)
        chosen_M = positions_M < labels_BK[:GAP_SENTENCES].numel()
        gap = (others - (losses_M.detach() * chosen_M).sum()) / tokens
        return {"icm": self.config.weight * loss}, {"icm_cross_entropy": loss.detach(), "icm_gap": gap}

    @torch.no_grad()
    def with_other_vectors(
        self, queries_RKH: Tensor, memory_BH: Tensor, mask_BK: Tensor, labels_BK: Tensor, words_VE: Tensor
    ) -> Tensor:
        """The summed cross-entropy of the first sentences, each decoded from the vector of the one before it."""
        R = min(GAP_SENTENCES, len(mask_BK))
        real_T = Packing.of(first_rows(mask_BK, R)).index_T
        states_RKH = self.decoder(queries_RKH[:R], memory_BH.roll(1, dims=0)[:R], mask_BK[:R])
        states_TH = states_RKH.flatten(0, 1).index_select(0, real_T)
        return self.decoder.losses(states_TH, labels_BK[:R].flatten().index_select(0, real_T), words_VE).sum()


class MSSEModel(CSEModel):
    """MSSE: :class:`CSEModel` with :class:`DimensionContrast` and :class:`InformationCompensation`

    L = L_NCE + μ·L_DCM + γ·L_ICM  (Eq. 10)
    """

    config_class = MSSEConfig
