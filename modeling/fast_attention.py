"""Attention of packed tokens on CPU: one autograd function from packed queries, keys and values to packed results.

Padded rows are read by index, head by head, in the layout that the batched products want, so that nothing is padded,
transposed and copied one after the other. The mask, the scaling and the dropout cost one pass each. The backward pass
reads the padded states and the probabilities before and after dropout. In the last layer, where one state of each row
is read, only that state asks.

Shape suffixes: N rows, L tokens of the longest, T real tokens of all rows, Q tokens of a row that ask (L, or 1), A
heads, D size of a head.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .fast_dropout import draw_ones, scale_of


class Rows:
    """The places of packed tokens in padded rows.

    Arguments:
        mask_NL: bool, True for real tokens.
        index_T: int64, their ascending positions in the flattened (N·L) batch.
        copies: so many copies of the last token follow the packed tokens. They have no gradient.
    """

    def __init__(self, mask_NL: Tensor, index_T: Tensor, copies: int = 0) -> None:
        self.N, self.L = mask_NL.shape
        self.mask_NL, self._index_T, self.copies = mask_NL, index_T, copies
        self._found: dict[int, tuple[Tensor, Tensor]] = {}
        self._padding: dict[int, Tensor] = {}

    def places(self, heads: int) -> tuple[Tensor, Tensor]:
        """Return for each place of (N, A, L) its row among those of (T, A), and the reverse; all layers share them.

        Padding repeats the token before it."""
        if heads not in self._found:
            self._found[heads] = self._padded_places(heads), self._packed_places(heads)
        return self._found[heads]

    def _padded_places(self, heads: int) -> Tensor:
        token_NL = (self.mask_NL.flatten().cumsum(0) - 1).clamp_min(0).view(self.N, 1, self.L)
        return (token_NL * heads + torch.arange(heads)[:, None]).flatten()

    def _packed_places(self, heads: int) -> Tensor:
        first_T = self._index_T + self._index_T // self.L * (self.L * (heads - 1))
        first_T = torch.cat([first_T, first_T[-1:].expand(self.copies)])
        return (first_T[:, None] + torch.arange(0, heads * self.L, self.L)).flatten()

    def pad(self, packed: Tensor) -> Tensor:
        """(T, A, D) → (N·A, L, D), states of other tokens at padding"""
        A, D = packed.shape[1:]
        return packed.reshape(-1, D).index_select(0, self.places(A)[0]).view(-1, self.L, D)

    def pad_gradient(self, packed: Tensor) -> Tensor:
        """(T, A, D) → (N·A, L, D), zero at padding"""
        A, D = packed.shape[1:]
        if A not in self._padding:
            padding = (~self.mask_NL)[:, None].expand(-1, A, -1).flatten()
            count = A * (self.mask_NL.numel() - len(self._index_T))
            self._padding[A] = torch.nonzero_static(padding, size=count).squeeze(1)
        padded = self.pad(packed)
        padded.view(-1, D).index_fill_(0, self._padding[A], 0)
        return padded

    def pack(self, padded: Tensor, heads: int) -> Tensor:
        """(N·A, L, D) → (T, A, D)"""
        D = padded.shape[-1]
        return padded.reshape(-1, D).index_select(0, self.places(heads)[1]).view(-1, heads, D)

    def pack_gradient(self, padded: Tensor, heads: int) -> Tensor:
        """(N·A, L, D) → (T, A, D), zero for copies"""
        packed = self.pack(padded, heads)
        if self.copies:
            packed[-self.copies :] = 0
        return packed


def _times_transposed(left: Tensor, right: Tensor, alpha: float = 1.0) -> Tensor:
    """``alpha · left @ rightᵀ`` of batches, (B, Q, D) and (B, L, D) → (B, Q, L)."""
    return _times(left, right.transpose(1, 2), alpha)


def _times(left: Tensor, right: Tensor, alpha: float = 1.0) -> Tensor:
    return torch.baddbmm(left.new_empty(1, 1, 1), left, right, beta=0, alpha=alpha)


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where a bool mask is True, and else what makes a softmax 0."""
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def fill_keys(key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Add keys that nobody attends to, up to a multiple of the processor's lanes, where this saves time.

    Torch's kernel takes the exponentials of a row lane by lane and those of the last, unfilled lanes one by one: 15
    keys cost more than twice as much as 16. Few of them cost less than the copies.

    Arguments:
        key, value: (N, A, L, D) on CPU, without gradient.
        mask: bool, (N or 1, 1, any, L), or None.
    """
    lanes = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
    L = key.shape[2]
    missing = -L % lanes
    if not 0 < missing <= lanes * 5 // 8 or (mask is not None and mask.dtype != torch.bool):
        return key, value, mask
    if mask is None:
        mask = torch.ones((1, 1, 1, L), dtype=torch.bool)
    more = (0, 0, 0, missing)
    return F.pad(key, more), F.pad(value, more), F.pad(mask, (0, missing))


class PackedAttention(torch.autograd.Function):
    """softmax(scaling · q kᵀ + mask) with dropout, times v, of packed tokens.

    Arguments:
        query: (T, A, D); (N, A, D) with ``one``.
        key, value: (T, A, D).
        rows: the rows of the batch.
        one: one token of each row asks.
        p: dropout of the probabilities.
        scaling: factor of the scores.
        mask: bool, broadcast to (N, A, Q, L): the keys that a token attends to; None: the real tokens of its row.

    Returns:
        of the queries' shape
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rows: Rows,
        one: bool,
        p: float,
        scaling: float,
        mask: Tensor | None,
    ) -> Tensor:
        A, D = query.shape[1:]
        N, L, Q = rows.N, rows.L, 1 if one else rows.L
        given = query.dtype
        if one and given.itemsize == 2 and not any(states.requires_grad for states in (query, key, value)):
            # oneDNN makes a kernel of 16-bit products for every N and L, and keeps it; these products are small
            query, key, value = query.float(), key.float(), value.float()
        with torch.autocast("cpu", enabled=False):
            q = query.reshape(N * A, 1, D) if one else rows.pad(query)
            k, v = rows.pad(key), rows.pad(value)
            scores = _times_transposed(q, k, scaling)
            scores.view(N, A, Q, L).add_(_bias(rows.mask_NL[:, None, None] if mask is None else mask, scores.dtype))
            weights = scores.softmax(-1)
            used, scale = (weights, 1.0) if p == 0 else (draw_ones(weights.shape, p, weights.dtype), scale_of(p))
            if p:
                used.mul_(weights)
            output = _times(used, v, scale)
        ctx.save_for_backward(q, k, v, weights, used)
        ctx.rows, ctx.one, ctx.scaling, ctx.scale = rows, one, scaling, scale
        return output.view(N, A, D).to(given) if one else rows.pack(output, A)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, weights, used = ctx.saved_tensors
        rows: Rows = ctx.rows
        A, D = gradient.shape[1:]
        with torch.autocast("cpu", enabled=False):
            if ctx.one:
                d_output = gradient.reshape(-1, 1, D)
            else:
                d_output = rows.pad_gradient(gradient)
            d_value = rows.pack_gradient(_times(used.transpose(1, 2), d_output, ctx.scale), A)
            # with factors F of the dropout and U = W ∘ F, the softmax's gradient W ∘ (G ∘ F − Σ W ∘ G ∘ F) is
            # U ∘ G − W Σ U ∘ G; the factors' 1 / (1 − p) is multiplied into the products
            d_scores = _times_transposed(d_output, v, ctx.scale).mul_(used)
            d_scores.addcmul_(weights, d_scores.sum(-1, keepdim=True), value=-1)
            d_q = _times(d_scores, k, ctx.scaling)
            d_key = rows.pack_gradient(_times(d_scores.transpose(1, 2), q, ctx.scaling), A)
        d_query = d_q.view(gradient.shape) if ctx.one else rows.pack_gradient(d_q, A)
        return d_query, d_key, d_value, None, None, None, None, None
