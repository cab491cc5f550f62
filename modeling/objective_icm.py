"""MSSE's information compensation ("Harnessing Dimension-level Contrastive Learning and Information Compensation
Mechanism for Sentence Embedding Enhancement", anonymous ACL submission).

Shape suffixes: V views, B sentences of this process, H hidden size, K tokens of a target, M scored tokens; for the
diagnostic, R sentences and their T tokens; V vocabulary.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig

from .distributed import token_mean
from .fast_counts import first_rows
from .fast_packing import Packing
from .hub import from_hub
from .layer_memory import check_layers
from .objectives import Encode, MaskedCopy, Objective, TargetCopy, TargetSpec, Views
from .quiet import quiet_weights
from .sentence_decoder import DecoderLayer, SentenceDecoder
from .settings import ObjectiveConfig, Unread, check_choice

TARGETS = ("original", "positive")
REPRESENTATIONS = ("h", "z")
DECODERS = ("causal", "denoising")
OUTPUTS = ("tied", "detached", "untied")
#: The number of each process's sentences on which the diagnostic is measured.
GAP_SENTENCES = 16


@dataclass
class InformationCompensationConfig(ObjectiveConfig):
    """Settings of :class:`InformationCompensation`. The paper does not describe its decoder.

    Arguments:
        weight: γ of Eq. 10 (Appendix A), applied to a mean over tokens; Eq. 9 prints a sum.
        target: the ``original`` sentence, or its ``positive`` (the same if the corpus has one column).
        representation: ``h`` (the pooled state, as in Eq. 9) or ``z`` (projected).
        decoder: ``causal`` (reads the tokens before, teacher forcing) or ``denoising`` (DenoSent, He et al. 2024:
            reads all tokens' embeddings with ``element_dropout``).
        decoder_layers: 1 or 2 for the causal kind; DenoSent's preset has 16.
        decoder_heads: 0 means as many as the encoder has; DenoSent's preset has 1.
        decoder_dropout: dropout of the decoder's states.
        word_dropout: share of the input tokens that become the mask token. A causal decoder that reads all of them can
            ignore h: ``icm_gap`` in the log shows it.
        element_dropout: dropout of the elements of the denoising kind's input.
        output: the decoder's output matrix: ``tied``, the encoder's word embeddings, which ICM then trains;
            ``detached``, the same without a gradient into them; ``untied``, a copy that starts from them.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "icm"
    unread_with: ClassVar[Unread] = {"element_dropout": ("decoder", ("causal",))}
    weight: float = 0.2
    target: str = "original"
    representation: str = "h"
    decoder: str = "causal"
    decoder_layers: int = 1
    decoder_heads: int = 0
    decoder_dropout: float = 0.1
    word_dropout: float = 0.0
    element_dropout: float = 0.825
    output: str = "tied"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "target", TARGETS)
        check_choice(self, "representation", REPRESENTATIONS)
        check_choice(self, "decoder", DECODERS)
        check_choice(self, "output", OUTPUTS)
        for field, least in (("decoder_layers", 1), ("decoder_heads", 0)):
            value = getattr(self, field)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"icm_{field} must be a whole number of at least {least}, got {value!r}")
        for field, most in (("decoder_dropout", "below"), ("element_dropout", "below"), ("word_dropout", "at most")):
            value = getattr(self, field)
            allowed = isinstance(value, int | float) and (0 <= value < 1 or (value == 1 and most == "at most"))
            if not allowed:
                raise ValueError(f"icm_{field} must be at least 0 and {most} 1, got {value!r}")


class InformationCompensation(Objective):
    """γ·L_ICM: a small decoder q writes the sentence from its embedding alone (Eqs. 8 to 10)

    L = L_NCE + γ·L_ICM,  L_ICM = (1/M) Σ_i Σ_t −log q(x_it | h_i, …)

    … are the tokens before t (``causal``) or noisy embeddings of all tokens (``denoising``). M counts the sentences'
    own tokens, without special tokens and template. The output matrix is the encoder's word embedding, or ``output``.

    The diagnostic ``icm_gap`` is the cross-entropy given the embedding of another sentence of the batch, minus that
    given its own, in nats per token of the first ``GAP_SENTENCES`` sentences of each process. At 0 the decoder ignores
    the embedding. In training the two draw their own dropout. It costs one forward pass of the decoder, without
    gradient.
    """

    config_class = InformationCompensationConfig
    config: InformationCompensationConfig
    cacheable = True
    compares_views = False

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        target = self.target_copy(batch, views.vectors(self.config.representation))
        losses_M, queries_RKH = self.run(target, encode)
        L_ICM = token_mean(losses_M.sum(), len(losses_M))
        metrics = {"icm_cross_entropy": L_ICM.detach()}
        if self.measures_gap:
            metrics["icm_gap"] = self.gap(target, losses_M.detach(), queries_RKH, encode)
        return {"icm": self.config.weight * L_ICM}, metrics

    def predict(self, copy: MaskedCopy, encode: Encode) -> tuple[Tensor, Tensor]:
        """Return −log q(x_t | h, …) of each token, (M,), and the decoder's input for the diagnostic, (R, K, H)."""
        queries_BKH = self.decoder.queries(copy.ids, encode.word_embeddings)
        states_BKH = self.decoder(queries_BKH, copy.vectors, copy.mask)
        states_MH = states_BKH.flatten(0, 1).index_select(0, copy.places[0])
        losses_M, _ = self.decoder.losses(states_MH, copy.labels, self.output_matrix(encode))
        return losses_M, queries_BKH[:GAP_SENTENCES].detach().clone()

    def __init__(self, config: InformationCompensationConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.reads_z = config.representation == "z"
        heads, size = config.decoder_heads or int(encoder_config.num_attention_heads), encoder_config.hidden_size
        if size % heads:
            raise ValueError(f"icm_decoder_heads must divide the hidden size, {size}, got {heads}")
        check_layers("icm_decoder_layers", config.decoder_layers, lambda: DecoderLayer(size, heads, 0.0))
        self.decoder = SentenceDecoder(
            encoder_config,
            causal=config.decoder == "causal",
            layers=config.decoder_layers,
            heads=heads,
            dropout=config.decoder_dropout,
            element_dropout=config.element_dropout,
        )
        width, words = self.decoder.leave.out_features, encoder_config.vocab_size
        self.output = nn.Linear(width, words, bias=False) if config.output == "untied" else None

    @property
    def batch_spec(self) -> TargetSpec:
        view = int(self.config.target == "positive")
        return TargetSpec(self.config.word_dropout, views=1, mask_share=1.0, random_share=0.0, view=view)

    def output_matrix(self, encode: Encode) -> Tensor:
        """Return the decoder's output matrix, (V, E)."""
        if self.output is not None:
            return self.output.weight
        return encode.word_embeddings.detach() if self.config.output == "detached" else encode.word_embeddings

    def init_from_checkpoint(self, name_or_path: str) -> None:
        if self.output is not None:
            with quiet_weights():
                words = from_hub(AutoModel, name_or_path, dtype=torch.float32).get_input_embeddings()
            self.output.weight.data.copy_(words.weight.data)

    @torch.no_grad()
    def gap(self, target: TargetCopy, losses_M: Tensor, queries_RKH: Tensor, encode: Encode) -> Tensor:
        """Return ``icm_gap``, (): how much the decoder loses with the vector of the sentence before, in nats."""
        labels_BK = target.labels_RK
        R = min(GAP_SENTENCES, len(labels_BK))
        mask_RK = first_rows(target.mask, R)
        real_T = Packing.of(mask_RK).index_T
        others_BH = target.vectors.roll(1, dims=0)
        states_RKH = self.decoder(queries_RKH[:R], others_BH[:R], mask_RK)
        states_TH = states_RKH.flatten(0, 1).index_select(0, real_T)
        labels_T = labels_BK[:R].flatten().index_select(0, real_T)
        others = self.decoder.losses(states_TH, labels_T, self.output_matrix(encode))[0].sum()
        tokens = (labels_BK[:R] != -100).sum().clamp_min(1)
        own_M = target.places[0] < labels_BK[:R].numel()
        return (others - (losses_M * own_M).sum()) / tokens
