"""A small decoder q(s | h): it predicts the tokens of a sentence from one vector.

Shape suffixes: B sentences, K tokens, T real tokens of all sentences, M scored tokens, H hidden size, A heads, D size
of a head, E embedding size of the vocabulary, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig

from .fast_attention import PackedAttention
from .fast_packing import Packing, own_attention
from .fast_rows import fill_rows
from .fast_switch import fast
from .fast_vocabulary_loss import IGNORED, vocabulary_cross_entropy


def sinusoids(length: int, like_BKH: Tensor) -> Tensor:
    """Return sinusoidal position encodings (Vaswani et al., 2017, §3.5), (length, H), of the tensor's type."""
    size = like_BKH.shape[-1]
    place_K1 = torch.arange(length, device=like_BKH.device)[:, None]
    rate_F = torch.exp(torch.arange(0, size, 2, device=like_BKH.device) * (-math.log(10_000.0) / size))
    angle_KF = place_K1 * rate_F
    return torch.stack([angle_KF.sin(), angle_KF.cos()], dim=-1).flatten(1)[:, :size].to(like_BKH.dtype)


def word_width(encoder_config: PreTrainedConfig) -> int:
    """Return E, the width of the encoder's word embeddings: H, unless the configuration names another one."""
    named = (getattr(encoder_config, name, None) for name in ("embedding_size", "input_embedding_size"))
    return int(next(filter(None, named), encoder_config.hidden_size))


class DecoderLayer(nn.Module):
    """Self-attention, a map of the vector and a feed-forward net; each is added to the states, with norms in front.

    Attention over a memory of one vector has the single weight 1. It is therefore a linear map of the vector.
    """

    def __init__(self, size: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(size)
        self.attention_in = nn.Linear(size, 3 * size)
        self.attention_out = nn.Linear(size, size)
        self.memory = nn.Linear(size, size)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, memory_BH: Tensor, batch: "PaddedSentences | PackedSentences") -> Tensor:
        """Return the states, (B, K, H) or packed, (T, H)."""
        joint = self.attention_in(self.attention_norm(states)).unflatten(-1, (3, self.heads, -1))
        states = states + self.dropout(self.attention_out(batch.attend(*joint.unbind(-3)).flatten(-2)))
        states = states + batch.of_each_token(self.dropout(self.memory(memory_BH)))
        return states + self.dropout(self.feed_forward(states))


class PaddedSentences:
    """Sentences as padded rows, states (B, K, H).

    Arguments:
        mask_BK: not 0 for real tokens.
        causal: a token attends to the tokens up to itself, else to all real ones and to itself.
    """

    def __init__(self, mask_BK: Tensor, causal: bool) -> None:
        self.causal, self.allowed_B1KK = causal, None
        if not causal:
            own_KK = torch.eye(mask_BK.shape[1], dtype=torch.bool, device=mask_BK.device)
            self.allowed_B1KK = (mask_BK.bool()[:, None, :] | own_KK).unsqueeze(1)

    def attend(self, *states_BKAD: Tensor) -> Tensor:
        """Return what attention makes of queries, keys and values, (B, K, A, D)."""
        query, key, value = (each.transpose(1, 2) for each in states_BKAD)
        mixed = F.scaled_dot_product_attention(query, key, value, self.allowed_B1KK, is_causal=self.causal)
        return mixed.transpose(1, 2)

    def of_each_token(self, vectors_BH: Tensor) -> Tensor:
        """Give each token the vector of its sentence."""
        return vectors_BH.unsqueeze(1)


class PackedSentences:
    """The same on CPU as one sequence of the real tokens, states (T, H), with attention whose backward pass is fast in
    16 bits."""

    def __init__(self, mask_BK: Tensor, causal: bool) -> None:
        self.packing = Packing.of(mask_BK, fill=True)
        self.read = self.packing.read(causal, None)
        self.sentence_T = self.packing.filled_index // mask_BK.shape[1]

    def attend(self, *states_TAD: Tensor) -> Tensor:
        """Return what attention makes of queries, keys and values, (T, A, D)."""
        scaling = states_TAD[0].shape[-1] ** -0.5
        return PackedAttention.apply(*states_TAD, self.packing.rows, False, 0.0, scaling, self.read)

    def of_each_token(self, vectors_BH: Tensor) -> Tensor:
        """Give each token the vector of its sentence."""
        return vectors_BH.index_select(0, self.sentence_T)


class SentenceDecoder(nn.Module):
    """A decoder whose only memory is the sentence's vector.

    The encoder's word embeddings are passed in at call time. They are the input (detached) and the output matrix
    (trained).

    - ``causal``: token t is predicted from the vector and the tokens before t (teacher forcing). The input is shifted
      by one position, with a learned first state.
    - not causal: position t reads the embeddings of all tokens, its own included, with ``element_dropout`` on their
      elements (DenoSent).

    Arguments:
        encoder_config: gives hidden size, embedding size and vocabulary.
        causal: see above.
        layers, heads: of the decoder.
        dropout: dropout of the states.
        element_dropout: dropout of the input's elements, for the kind that is not causal.
    """

    def __init__(
        self,
        encoder_config: PreTrainedConfig,
        *,
        causal: bool,
        layers: int,
        heads: int,
        dropout: float,
        element_dropout: float,
    ) -> None:
        super().__init__()
        size = int(encoder_config.hidden_size)
        width = word_width(encoder_config)
        self.start = nn.Parameter(torch.zeros(size)) if causal else None
        self.element_dropout = nn.Dropout(0.0 if causal else element_dropout)
        self.word_norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, size) if width != size else nn.Identity()
        self.layers = nn.ModuleList([DecoderLayer(size, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(size)
        self.leave = nn.Linear(size, width)
        self.bias = nn.Parameter(torch.zeros(int(encoder_config.vocab_size)))

    def queries(self, ids_BK: Tensor, words_VE: Tensor) -> Tensor:
        """Return the decoder's input without the vector, (B, K, H)."""
        words_BKH = self.enter(self.word_norm(F.embedding(ids_BK, words_VE.detach())))
        words_BKH = self.element_dropout(words_BKH)
        if self.start is not None:
            first_B1H = self.start.to(words_BKH.dtype).expand(len(ids_BK), 1, -1)
            words_BKH = torch.cat([first_B1H, words_BKH[:, :-1]], dim=1)
        return words_BKH + sinusoids(ids_BK.shape[1], words_BKH)

    def forward(self, queries_BKH: Tensor, memory_BH: Tensor, mask_BK: Tensor) -> Tensor:
        """Return the states (B, K, H), any at padding. No real position attends to a padded one."""
        causal = self.start is not None
        if not (fast() and own_attention(queries_BKH)):
            return self._run(queries_BKH, memory_BH, PaddedSentences(mask_BK, causal))
        packed = PackedSentences(mask_BK, causal)
        return packed.packing.pad(self._run(packed.packing.pack(queries_BKH), memory_BH, packed))

    def _run(self, states: Tensor, memory_BH: Tensor, batch: PaddedSentences | PackedSentences) -> Tensor:
        for layer in self.layers:
            states = layer(states, memory_BH, batch)
        return states

    def losses(self, states_MH: Tensor, labels_M: Tensor, words_VE: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of each label from the states at its position, (M,) in nats, 0 where it is −100;
        and whether the likeliest token is the label, (M,) bool."""
        M = len(labels_M)
        states_MH, labels_M = fill_rows(states_MH), fill_rows(labels_M, IGNORED)
        written_ME = self.leave(self.norm(states_MH))
        losses_M, correct_M = vocabulary_cross_entropy(written_ME, words_VE, self.bias, labels_M)
        return losses_M[:M], correct_M[:M]
