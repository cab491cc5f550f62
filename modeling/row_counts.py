"""How many real tokens the rows of an attention mask have, known to the host.

A packed batch has as many places as there are real tokens. Counted on a GPU, that number is there only when the device
has done all that it was told before. The collator knows it from the start: it is noted on the mask, and rows that are
taken of the mask here keep theirs. A mask without a note is counted where it is.

Shape suffixes: N rows, L tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

#: The name under which counts stand in a batch, beside the ``attention_mask`` of the same prefix.
TOKEN_COUNTS = "token_counts"
_NOTE = "_csekit_token_counts"


def note_counts(mask_NL: Tensor, counts: Sequence[int]) -> Tensor:
    """The mask, with the numbers of its rows' real tokens noted on it.

    Raises:
        ValueError: there are not as many as rows. (Whether they are right is found where they are used.)
    """
    counts = [int(count) for count in counts]
    if len(counts) != len(mask_NL):
        raise ValueError(f"{TOKEN_COUNTS} must be {len(mask_NL)}, one a row of attention_mask, got {len(counts)}")
    setattr(mask_NL, _NOTE, counts)
    return mask_NL


def counts_of(mask_NL: Tensor) -> list[int] | None:
    """What is noted on a mask."""
    return getattr(mask_NL, _NOTE, None)


def note_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch with its counts noted on the masks that they belong to, ``rtd_token_counts`` on ``rtd_attention_mask``,
    and no longer apart."""
    noted = {name: value for name, value in batch.items() if not name.endswith(TOKEN_COUNTS)}
    for name in batch.keys() - noted.keys():
        note_counts(batch[name.removesuffix(TOKEN_COUNTS) + "attention_mask"], batch[name])
    return noted


def split_rows(tensor: Tensor, size: int) -> list[Tensor]:
    """The tensor in parts of ``size`` rows."""
    counts, parts = counts_of(tensor), list(tensor.split(size))
    if counts is not None:
        for number, part in enumerate(parts):
            setattr(part, _NOTE, counts[number * size : (number + 1) * size])
    return parts


def first_rows(mask_NL: Tensor, rows: int) -> Tensor:
    """The first rows of a mask."""
    return mask_NL if rows == len(mask_NL) else split_rows(mask_NL, rows)[0]
