"""Packed text without padding: sentences are joined and cut into blocks; batches hold masked blocks.

Shape suffixes: N blocks, B blocks of a batch, L tokens of a block, M masked positions, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from csekit.modeling.objectives import MaskingSpec
from csekit.modeling.tokenization import sentence_frame
from csekit.trainers.batches.masking import MaskingVocabulary, check_spec, masked_copy
from csekit.trainers.data.datasets import EpochMixin

_WORD_MARKS = ("▁", "Ġ")  # how SentencePiece and byte-level BPE write the space in front of a word
_CHUNK = 10_000  # texts tokenised at once


class Blocks(EpochMixin, torch.utils.data.Dataset[Any]):
    """Blocks of packed text, in memory (8 bytes per token). An item is ``{"input_ids": (L,), "words": (L,),
    "length": int, "index": int, "epoch": int}``.

    Arguments:
        ids_NL: (N, L) int32 token ids, special tokens included; a block that is not full is padded on the right.
        words_NL: (N, L) int32, the number within its block of the word that a token belongs to.
        lengths_N: (N,) tokens of each block, padding excluded.
    """

    def __init__(self, ids_NL: np.ndarray, words_NL: np.ndarray, lengths_N: np.ndarray) -> None:
        super().__init__()
        self.ids_NL, self.words_NL, self.lengths_N = ids_NL, words_NL, lengths_N

    def __len__(self) -> int:
        return len(self.ids_NL)

    @property
    def block_length(self) -> int:
        """The tokens of a block, L."""
        return int(self.ids_NL.shape[1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} blocks")
        return {
            "input_ids": self.ids_NL[index],
            "words": self.words_NL[index],
            "length": int(self.lengths_N[index]),
            "index": index % len(self),
            "epoch": self.epoch,
        }

    def sentences(self, special_V: np.ndarray) -> Iterator[Any]:
        """Yield the pieces between special tokens, int32: sentences, cut at the end of a block.

        Arguments:
            special_V: (V,) bool, True at special ids.
        """
        for ids_L, length in zip(self.ids_NL, self.lengths_N, strict=True):
            row = ids_L[:length]
            borders = np.flatnonzero(special_V[row])
            for piece in np.split(row, borders):
                if len(piece := piece[special_V[piece[:1]].sum() :]):
                    yield piece


def pack(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    block_length: int = 128,
    whole_words: bool = True,
) -> Blocks:
    """Join all texts, in order, and cut them into blocks: ``[CLS] a [SEP] b [SEP] …``.

    The first token of a block is [CLS] and each text ends in [SEP]. A text may continue in the next block. Only the
    last block may be padded, so no token is lost.

    Arguments:
        block_length: tokens of a block, L.
        whole_words: number the words, so that masking chooses all pieces of a word together; False numbers every token
            as a word. Words are the fast tokenizer's, split at marked spaces; a block's end splits a word in two.

    Raises:
        ValueError: no text, a block too short for a token, a tokenizer that puts nothing in front of a text or (for
            whole words) is not a fast one.
    """
    frame = sentence_frame(tokenizer)
    room = block_length - len(frame.before)
    if not frame.before:
        raise ValueError("the tokenizer must put a token such as [CLS] in front of a text: a block begins with it")
    if room < 2:
        raise ValueError(f"block_length must be at least {len(frame.before) + 2}, got {block_length}")
    if whole_words and not tokenizer.is_fast:
        raise ValueError("whole_words must be False with a slow tokenizer, which does not know words")
    parts = [_stream(texts[i : i + _CHUNK], tokenizer, frame.after) for i in range(0, len(texts), _CHUNK)]
    ids, starts = (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else (np.zeros(0),) * 2
    if len(ids) <= len(texts) * len(frame.after):
        raise ValueError(f"texts must hold at least one token, got none in {len(texts)} texts")
    return _cut(ids, starts if whole_words else None, frame.before, block_length, tokenizer.pad_token_id or 0)


def _cut(
    ids: np.ndarray, starts: np.ndarray | None, before: tuple[int, ...], block_length: int, pad_id: int
) -> Blocks:
    """Cut a stream of tokens into blocks with ``before`` in front of each; without ``starts`` every token is a
    word."""
    room = block_length - len(before)
    count = -(-len(ids) // room)
    lengths_N = np.full(count, block_length)
    lengths_N[-1] = len(before) + len(ids) - (count - 1) * room
    stream = np.full(count * room, pad_id, dtype=np.int32)
    stream[: len(ids)] = ids
    ids_NL = np.empty((count, block_length), dtype=np.int32)
    ids_NL[:, : len(before)] = before
    ids_NL[:, len(before) :] = stream.reshape(count, room)
    words_NL = np.tile(np.arange(block_length, dtype=np.int32), (count, 1))
    if starts is not None:
        stream[: len(starts)] = starts
        numbers = stream.reshape(count, room).cumsum(axis=1)
        words_NL[:, len(before) :] = numbers - numbers[:, :1] + len(before)
    return Blocks(ids_NL, words_NL, lengths_N)


def _stream(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, after: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the token ids of the concatenated texts, each with ``after`` behind it, and True where a word begins."""
    encoded = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
    ids = [token for row in encoded["input_ids"] for token in (*row, *after)]
    if not tokenizer.is_fast:
        return np.array(ids, dtype=np.int32), np.ones(len(ids), dtype=bool)
    marked = {index for piece, index in tokenizer.get_vocab().items() if piece.startswith(_WORD_MARKS)}
    starts: list[bool] = []
    for row in encoded.encodings:
        previous: int | None = None
        for token, word in zip(row.ids, row.word_ids, strict=True):
            starts.append(word is None or word != previous or token in marked)
            previous = word
        starts.extend([True] * len(after))
    return np.array(ids, dtype=np.int32), np.array(starts)


class PretrainingCollator:
    """Mask blocks by BERT's recipe: each word (or token, see :func:`pack`) is chosen with ``probability``; 80 % of the
    chosen tokens become the mask token, 10 % a random one, 10 % stay.

    The masks depend on seed, epoch and block only, not on the batch, the worker or a resume.

    Arguments:
        tokenizer: a tokenizer with a mask token.
        probability: share of words to predict.
        seed: seed of the masks.
        scored: True to add ``scored_positions``.

    Raises:
        ValueError: the tokenizer has no mask token, or a probability outside [0, 1].
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, probability: float = 0.15, seed: int = 42, scored: bool = False
    ) -> None:
        self.spec, self.seed, self.scored = MaskingSpec(probability, views=1), seed, scored
        self.vocabulary = MaskingVocabulary.from_tokenizer(tokenizer)
        check_spec("mlm", self.spec, self.vocabulary)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make a batch of B items of :class:`Blocks`.

        Returns:
            ``input_ids`` (masked), ``attention_mask`` (B, L) int64; ``masked_positions`` (M,) in the flattened ids,
            ascending, and ``labels`` (M,), the original ids there; with ``scored`` also ``scored_positions`` (S,),
            those of all tokens that are not special; ``index`` (B,); ``return_loss`` True.
        """
        ids_BL = np.stack([row["input_ids"] for row in rows]).astype(np.int64)
        lengths_B = np.array([row["length"] for row in rows])
        index_B = np.array([row["index"] for row in rows], dtype=np.int64)
        real_BL = np.arange(ids_BL.shape[1]) < lengths_B[:, None]
        masked_BL, positions_M, labels_M = masked_copy(
            ids_BL,
            real_BL,
            self.spec,
            self.vocabulary,
            seed=self.seed,
            epoch=int(rows[0]["epoch"]),
            index=index_B,
            view=np.zeros(len(rows), dtype=np.int64),
            name="mlm",
            words_NL=np.stack([row["words"] for row in rows]),
        )
        own_S = np.flatnonzero(real_BL & ~self.vocabulary.special[ids_BL]).astype(np.int64)
        return {
            **({"scored_positions": torch.from_numpy(own_S)} if self.scored else {}),
            "input_ids": torch.from_numpy(masked_BL),
            "attention_mask": torch.from_numpy(real_BL.astype(np.int64)),
            "masked_positions": torch.from_numpy(positions_M),
            "labels": torch.from_numpy(labels_M),
            "index": torch.from_numpy(index_B),
            "return_loss": True,
        }
