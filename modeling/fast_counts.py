"""Token counts that the host knows: packing then need not ask the device how many tokens are real.

A packed batch has as many positions as there are real tokens. On a GPU the host would wait for the device to count
them. The collator knows the counts, so they are attached to the attention mask, and row slices made here keep theirs.
A mask without counts is counted on its device.

Shape suffixes: N rows, L tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from .fast_switch import fast

#: The batch key of the counts. They belong to the ``attention_mask`` with the same prefix.
TOKEN_COUNTS = "token_counts"
_ATTRIBUTE = "_csekit_token_counts"


def note_counts(mask_NL: Tensor, counts: Sequence[int]) -> Tensor:
    """Attach the number of real tokens of each row to the mask, and return the mask.

    Raises:
        ValueError: the number of counts is not N. (Wrong counts are found where they are used.)
    """
    counts = [int(count) for count in counts]
    if len(counts) != len(mask_NL):
        raise ValueError(f"{TOKEN_COUNTS} must be {len(mask_NL)}, one a row of attention_mask, got {len(counts)}")
    setattr(mask_NL, _ATTRIBUTE, counts)
    return mask_NL


def counts_of(mask_NL: Tensor) -> list[int] | None:
    """Return the counts attached to a mask, or None if there are none."""
    return getattr(mask_NL, _ATTRIBUTE, None) if fast() else None


def note_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Attach each entry of counts to its mask (``rtd_token_counts`` to ``rtd_attention_mask``) and drop the entry."""
    noted = {name: value for name, value in batch.items() if not name.endswith(TOKEN_COUNTS)}
    for name in batch.keys() - noted.keys():
        note_counts(batch[name.removesuffix(TOKEN_COUNTS) + "attention_mask"], batch[name])
    return noted


def split_rows(tensor: Tensor, size: int) -> list[Tensor]:
    """Split a tensor into parts of ``size`` rows, which keep their counts."""
    counts, parts = counts_of(tensor), list(tensor.split(size))
    if counts is not None:
        for number, part in enumerate(parts):
            setattr(part, _ATTRIBUTE, counts[number * size : (number + 1) * size])
    return parts


def first_rows(mask_NL: Tensor, rows: int) -> Tensor:
    """Return the first rows of a mask with their counts."""
    return mask_NL if rows == len(mask_NL) else split_rows(mask_NL, rows)[0]


def repeat_rows(mask_NL: Tensor, times: int) -> Tensor:
    """Repeat all rows of a mask, (times·N, L), with their counts."""
    counts, repeated = counts_of(mask_NL), mask_NL.repeat(times, 1)
    return repeated if counts is None else note_counts(repeated, counts * times)
