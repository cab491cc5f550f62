"""Packed batches of few sizes, for CUDA graphs: the number of tokens is filled up to a multiple of a bucket.

A CUDA graph replays its kernels over tensors of one size, so every number of tokens needs a graph of its own. Blanks
fill a packed batch up to the next multiple, and attention pads its rows to a multiple of ``COLUMNS`` places. A blank
belongs to no row. Networks compute its states, nothing reads them, and they get no gradient.

``compile_layers`` of ``fast_compile.py`` chooses this packing; nothing else does. Shape suffixes: N rows, L tokens of
the longest, T real tokens of all rows and blanks.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .fast_counts import counts_of
from .fast_packing import PACKING, Packing

#: Inside attention, rows are padded to a multiple of so many places.
COLUMNS = 8


class TakeRealRows(torch.autograd.Function):
    """Take rows by index. Index R, behind the last of R rows, is a blank: it takes any row and returns no gradient."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, index_T: Tensor) -> Tensor:
        ctx.save_for_backward(index_T)
        ctx.rows = len(states)
        return states.index_select(0, index_T.clamp_max(len(states) - 1))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (index_T,) = ctx.saved_tensors
        rows = gradient.new_zeros((ctx.rows + 1, *gradient.shape[1:])).index_copy_(0, index_T, gradient)
        return rows[:-1], None


@dataclass(frozen=True)
class BucketPacking(Packing):
    """A packing whose ``index_T`` ends with blanks, all of them N·L, behind the last place of the batch. No shape
    depends on the number of real tokens."""

    by_index = False

    @classmethod
    def of_bucket(cls, attention_mask_NL: Tensor, bucket: int) -> "BucketPacking":
        """Find the real tokens of a mask and fill them up to a multiple of ``bucket``.

        Synchronises with the device unless token counts were attached to the mask (``fast_counts.py``).

        Raises:
            RuntimeError: the attached counts are wrong; on a GPU the error comes later, when the device gets there.
        """
        mask_NL, counts = attention_mask_NL.bool(), counts_of(attention_mask_NL)
        flat = mask_NL.flatten()
        real = int(flat.sum()) if counts is None else sum(counts)
        if counts is not None:
            torch._assert_async(flat.sum() == real, "token_counts are not those of attention_mask")
        size = max(-(-real // bucket), 1) * bucket
        index_T = torch.nonzero_static(flat, size=size, fill_value=flat.numel()).squeeze(1)
        return cls(mask_NL, index_T, bucket)

    @property
    def inside(self) -> "BucketPacking":
        """The same packing of longer rows."""
        L = self.mask_NL.shape[1]
        if not (missing := -L % COLUMNS):
            return self
        index_T = self.index_T // L * (L + missing) + self.index_T % L  # blanks stay behind the last place
        return replace(self, mask_NL=nn.functional.pad(self.mask_NL, (0, missing)), index_T=index_T)

    def boundaries(self) -> dict[str, Any]:
        """The blanks are one more row."""
        ends_N, T = self.mask_NL.sum(1).cumsum(0), len(self.index_T)
        starts = nn.functional.pad(nn.functional.pad(ends_N, (1, 0)), (0, 1), value=T).to(torch.int32)
        longest = max(self.mask_NL.shape[1], self.fill)
        return {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": longest, "max_length_k": longest}

    @property
    def full(self) -> bool:
        """False: a batch without padding is packed like the others."""
        return False

    def pack(self, padded: Tensor) -> Tensor:
        """Drop the padding and add blanks: (N, L, …) → (T, …)."""
        return TakeRealRows.apply(padded.flatten(0, 1), self.index_T)

    def pad(self, packed: Tensor) -> Tensor:
        """Restore the rows without blanks: (T, …) → (N, L, …), zeros at padding."""
        N, L = self.mask_NL.shape
        padded = packed.new_zeros((N * L + 1, *packed.shape[1:])).index_copy_(0, self.index_T, packed)
        return padded[:-1].unflatten(0, (N, L))

    @property
    def filled_index(self) -> Tensor:  # type: ignore[override]
        """The positions of the packed tokens; blanks have that of the batch's last place."""
        return self.index_T.clamp_max(self.mask_NL.numel() - 1)


def use_buckets(encoder: nn.Module, bucket: int) -> None:
    """Fill the packed batches of an encoder up to a multiple of ``bucket`` tokens from now on."""
    setattr(encoder, PACKING, partial(BucketPacking.of_bucket, bucket=bucket))
