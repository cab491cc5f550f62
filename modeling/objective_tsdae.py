"""TSDAE (Wang, Reimers and Gurevych, 2021, "TSDAE: Using Transformer-based Sequential Denoising Auto-Encoder for
Unsupervised Sentence Embedding Learning").

Shape suffixes: B sentences of this process, K tokens, M scored tokens, H hidden size, V vocabulary.
"""

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from .backbone import short_text
from .fast_counts import first_rows
from .layer_memory import check_layers
from .masked_lm_head import MaskedLMHead
from .objectives import DeletionSpec, Encode, MaskedCopy, Objective, Views
from .sentence_decoder import DecoderLayer, SentenceDecoder
from .settings import ObjectiveConfig, Unread, check_choice, check_number
from .tied_decoder import TiedDecoder

logger = logging.getLogger(__name__)

DECODERS = ("tied", "small")


@dataclass
class DenoisingConfig(ObjectiveConfig):
    """Settings of :class:`Denoising`.

    Arguments:
        weight: factor of the term.
        deletion: share of the sentence's tokens that the noise deletes; one token always stays.
        decoder: ``tied``, the encoder's own weights with causal attention, as in the paper; or ``small``, a decoder of
            ``decoder_layers`` layers for any family.
        decoder_layers: layers of the small decoder; the tied one has those of the encoder.
        decoder_dropout: dropout of the small decoder's states; the tied one has the encoder's.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "tsdae"
    unread_with: ClassVar[Unread] = {
        "decoder_layers": ("decoder", ("tied",)),
        "decoder_dropout": ("decoder", ("tied",)),
    }
    weight: float = 1.0
    deletion: float = 0.6
    decoder: str = "tied"
    decoder_layers: int = 1
    decoder_dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("tsdae_deletion", self.deletion, 0, 1, open_ends="high")
        check_choice(self, "decoder", DECODERS)
        check_number("tsdae_decoder_layers", self.decoder_layers, 1)
        check_number("tsdae_decoder_dropout", self.decoder_dropout, 0, 1, open_ends="high")


class Denoising(Objective):
    """w·L_TSDAE: a decoder writes the sentence from the one vector of its noisy copy (Eq. 1)

    L = L_NCE + w·L_TSDAE,  L_TSDAE = (1/M) Σ_i Σ_t −log softmax(e_{x_it} · s_{i,t−1})

    s_{i,t−1} is the decoder's state after the tokens before t; its only memory is h̃_i, the pooled state of the copy of
    x_i from which a share of the tokens is deleted. M counts the sentences' own tokens and the token behind each. The
    output matrix is the encoder's word embedding. With ``contrastive_weight=0`` this is the paper's whole loss.

    Behind the tied decoder comes the family's masked-LM head. The small decoder has a linear map there.
    """

    config_class = DenoisingConfig
    config: DenoisingConfig
    cacheable = True
    compares_views = False
    reads_z = False

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        target = self.target(views, batch, encode)
        L_TSDAE, accuracy = self.token_means(target, encode)
        return {"tsdae": self.config.weight * L_TSDAE}, {"tsdae_accuracy": accuracy.detach()}

    def target(self, views: Views, batch: dict[str, Tensor], encode: Encode) -> MaskedCopy:
        """Return the first view, whose tokens the decoder writes, with the vectors of its noisy copies."""
        pooled: Any = encode.pooled  # the model always gives it
        h_BH = pooled(self._own(batch, "input_ids"), self._own(batch, "attention_mask"))
        B = len(h_BH)
        ids_BK, mask_BK = views.input_ids[:B], first_rows(views.attention_mask, B)
        return MaskedCopy(ids_BK, mask_BK, self._own(batch, "positions"), self._own(batch, "labels"), h_BH)

    def predict(self, copy: MaskedCopy, encode: Encode) -> tuple[Tensor, ...]:
        """Return −log p of each token, and whether the likeliest token is right, (M,) each."""
        positions_M, words_VE = copy.places[0], encode.word_embeddings
        if isinstance(self.decoder, TiedDecoder):
            states_BKH = self.decoder(encode.backbone, copy.ids, copy.mask, copy.vectors)
            states_MH = states_BKH.flatten(0, 1).index_select(0, positions_M - 1)
            head: Any = self.head  # the tied decoder's
            losses_M, correct_M = head(states_MH, copy.labels, words_VE)
        else:  # the small decoder shifts its input itself
            states_BKH = self.decoder(self.decoder.queries(copy.ids, words_VE), copy.vectors, copy.mask)
            states_MH = states_BKH.flatten(0, 1).index_select(0, positions_M)
            losses_M, correct_M = self.decoder.losses(states_MH, copy.labels, words_VE)
        return losses_M, correct_M.float()

    def __init__(self, config: DenoisingConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.decoder: TiedDecoder | SentenceDecoder
        self.head: nn.Module | None = None
        if config.decoder == "tied":
            self.decoder = TiedDecoder(encoder_config)
            try:
                self.head = MaskedLMHead(encoder_config)
            except ValueError as error:
                raise ValueError(
                    f"tsdae_decoder must be 'small' for the family {encoder_config.model_type!r}, whose masked-LM "
                    f"head cannot be had, got 'tied': {error}"
                ) from error
        else:
            heads, size = int(encoder_config.num_attention_heads), int(encoder_config.hidden_size)
            check_layers("tsdae_decoder_layers", config.decoder_layers, lambda: DecoderLayer(size, heads, 0.0))
            self.decoder = SentenceDecoder(
                encoder_config,
                causal=True,
                layers=config.decoder_layers,
                heads=heads,
                dropout=config.decoder_dropout,
                element_dropout=0.0,
            )

    @torch.no_grad()
    def try_on(self, backbone: PreTrainedModel) -> None:
        if not isinstance(self.decoder, TiedDecoder):
            return
        ids = short_text(backbone)
        memory_1H = torch.zeros(1, int(backbone.config.hidden_size), dtype=backbone.dtype, device=backbone.device)
        try:
            self.decoder(backbone, ids, torch.ones_like(ids), memory_1H)
        except Exception as error:  # each class has its own
            raise ValueError(
                f"tsdae_decoder must be 'small' for the family {backbone.config.model_type!r}, whose decoder does not "
                f"run on a memory of one vector ({type(error).__name__}: {error}), got 'tied'"
            ) from error

    @property
    def batch_spec(self) -> DeletionSpec:
        return DeletionSpec(self.config.deletion)

    def init_from_checkpoint(self, name_or_path: str) -> None:
        if isinstance(self.head, MaskedLMHead):
            missing = self.head.load_from(name_or_path)
            if missing:
                logger.warning(
                    "%s has no masked-LM head (%s): the decoder's head of 'tsdae' starts random.",
                    name_or_path,
                    missing[0],
                )
