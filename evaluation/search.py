"""Exact nearest neighbours, block by block: memory does not grow with the corpus, equal scores have a fixed order.

A similarity is computed in float64 and rounded to float32. So it depends on its two vectors alone, not on the block or
the device that they happen to meet in, and equal vectors tie. Among equal scores the lower row comes first.

Shape suffixes: Q queries, q queries of a block, N documents, n documents of a block, k neighbours, H embedding size.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

SIMILARITIES = ("cosine", "dot")
#: Documents and queries that are scored against each other at once.
BLOCK_DOCUMENTS = 8_192
BLOCK_QUERIES = 256

_LOW = 2**32 - 1


def search_blocks(
    queries_QH: np.ndarray,
    blocks: Iterable[np.ndarray],
    top_k: int,
    *,
    similarity: str = "cosine",
    device: str | torch.device | None = None,
    block_documents: int = BLOCK_DOCUMENTS,
) -> tuple[np.ndarray, np.ndarray]:
    """The ``top_k`` documents of each query, best first; of equal scores the lower row first.

    Arguments:
        queries_QH: (Q, H).
        blocks: arrays (n, H) of any lengths; their rows, one after another, are the corpus. A generator that encodes
            as it goes keeps one of them in memory at a time.
        similarity: ``cosine`` (0 for a zero vector) or ``dot``.
        device: None: the GPU where there is one. It must know float64.
        block_documents: documents scored at once; the answer does not depend on it.

    Returns:
        scores (Q, k) float32 and rows (Q, k) int64, k = min(top_k, documents).

    Memory beside queries, answers and the caller's blocks, in bytes:
    ``8 · block_documents · H + 40 · BLOCK_QUERIES · (block_documents + top_k)``: 140 MB for H = 768.

    Raises:
        ValueError: no queries, no documents, ``top_k`` or ``block_documents`` below 1, an unknown similarity, sizes
            that differ, values that are not finite.
    """
    if similarity not in SIMILARITIES:
        raise ValueError(f"similarity must be 'cosine' or 'dot', got {similarity!r}")
    for name, value in (("top_k", top_k), ("block_documents", block_documents)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    hidden = _checked(queries_QH, "queries", None).shape[1]
    queries = _prepared(queries_QH, where, similarity)
    best_Qk = torch.empty((len(queries), 0), dtype=torch.int64, device=where)
    start = 0
    for block in _cut(blocks, block_documents):
        _checked(block, "blocks", hidden)
        best_Qk = _with_block(best_Qk, queries, _prepared(block, where, similarity), start, top_k)
        start += len(block)
        del block  # or it would be there while the next one is made
    if not start:
        raise ValueError("blocks must hold at least one document, got none")
    return _unpacked(best_Qk)


def without_own(scores_Qk: np.ndarray, rows_Qk: np.ndarray, own_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Answers, (Q, k − 1) each, without the row of each query's own text; where that is not among them (−1 for none)
    without the last one."""
    kept_Qk = rows_Qk != own_Q[:, None]
    kept_Qk[:, -1] &= ~kept_Qk.all(1)
    shape = (len(rows_Qk), rows_Qk.shape[1] - 1)
    return scores_Qk[kept_Qk].reshape(shape), rows_Qk[kept_Qk].reshape(shape)


def _cut(blocks: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    for block in blocks:
        for i in range(0, len(block), size):
            yield block[i : i + size]
        del block


def _checked(array: np.ndarray, name: str, hidden: int | None) -> np.ndarray:
    if array.ndim != 2 or not len(array) or (hidden is not None and array.shape[1] != hidden):
        raise ValueError(f"{name} must be arrays (rows, {hidden or 'H'}), got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got nan or infinity")
    return array


def _prepared(array: np.ndarray, where: torch.device, similarity: str) -> Tensor:
    """A float64 copy on the device, rows of length 1 for cosine."""
    rows = torch.tensor(array, dtype=torch.float64, device=where)
    if similarity == "cosine":
        rows /= torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return rows


def _with_block(best_Qk: Tensor, queries_QH: Tensor, documents_nH: Tensor, start: int, top_k: int) -> Tensor:
    """The best keys so far and those of a block, a block of queries at a time."""
    parts = zip(best_Qk.split(BLOCK_QUERIES), queries_QH.split(BLOCK_QUERIES), strict=True)
    return torch.cat([_merged(best, queries @ documents_nH.T, start, top_k) for best, queries in parts])


def _merged(best_qk: Tensor, scores_qn: Tensor, start: int, top_k: int) -> Tensor:
    """The best keys so far and those of a block: score above, complement of the row below, in one int64 each.

    All keys differ, so that their order, unlike that of scores, is the same on every machine.
    """
    ordered = (scores_qn.float() + 0.0).view(torch.int32)  # + 0.0: there is one zero
    ordered ^= (ordered >> 31) & 0x7FFFFFFF  # as whole numbers in the order of the floats
    keys = ordered.to(torch.int64)
    keys <<= 32
    keys |= _LOW - torch.arange(start, start + scores_qn.shape[1], device=scores_qn.device)
    keys = torch.cat([best_qk, keys], dim=1)
    return keys.topk(min(top_k, keys.shape[1]), dim=1).values


def _unpacked(keys: Tensor) -> tuple[np.ndarray, np.ndarray]:
    ordered = (keys >> 32).to(torch.int32)
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
    return scores.cpu().numpy(), (_LOW - (keys & _LOW)).cpu().numpy()
