"""Find exact nearest neighbours block by block: memory does not grow with the corpus, equal scores have a fixed order.

Similarities are computed in float64 and rounded to float32. A score therefore depends on its two vectors only, not on
the block or the device, and equal vectors tie. Among equal scores the lower row comes first.

Shape suffixes: Q queries, q queries of a block, N documents, n documents of a block, k neighbours, H embedding size.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, issparse
from scipy.sparse.linalg import norm as sparse_norm
from torch import Tensor

from csekit.encoding.folders import SIMILARITIES

#: Documents and queries that are scored against each other at once.
BLOCK_DOCUMENTS = 8_192
BLOCK_QUERIES = 256

_LOW = 2**32 - 1


def search_blocks(
    queries_QH: Any,
    blocks: Iterable[Any],
    top_k: int,
    *,
    similarity: str = "cosine",
    device: str | torch.device | None = None,
    block_documents: int = BLOCK_DOCUMENTS,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the ``top_k`` documents of each query, best first; among equal scores the lower row comes first.

    Arguments:
        queries_QH: (Q, H) array, or sparse matrix.
        blocks: arrays or sparse matrices (n, H) of any lengths; their rows in order are the corpus. With a generator
            that encodes on demand, one block is in memory at a time.
        similarity: ``cosine`` (0 for a zero vector), ``dot``, ``euclidean`` or ``manhattan`` (both: the negative
            distance). Sparse matrices take the first two.
        device: None: the GPU if there is one. It must support float64.
        block_documents: documents scored at once; it does not change the result.

    Returns:
        scores (Q, k) float32 and rows (Q, k) int64, k = min(top_k, documents).

    Memory in addition to queries, answers and the caller's blocks, in bytes:
    ``8 · block_documents · H + 40 · BLOCK_QUERIES · (block_documents + top_k)``: 140 MB for H = 768.

    Raises:
        ValueError: no queries, no documents, ``top_k`` or ``block_documents`` below 1, an unknown similarity, sizes
            that differ, values that are not finite.
    """
    allowed = SIMILARITIES[:2] if issparse(queries_QH) else SIMILARITIES
    if similarity not in allowed:
        raise ValueError(f"similarity must be one of {', '.join(map(repr, allowed))}, got {similarity!r}")
    for name, value in (("top_k", top_k), ("block_documents", block_documents)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    hidden = _checked(queries_QH, "queries", None).shape[1]
    queries = _prepared(queries_QH, where, similarity)
    best_Qk = torch.empty((queries.shape[0], 0), dtype=torch.int64, device=where)
    start = 0
    for block in _cut(blocks, block_documents):
        _checked(block, "blocks", hidden)
        best_Qk = _with_block(best_Qk, queries, _prepared(block, where, similarity), similarity, start, top_k)
        start += block.shape[0]
        del block  # free it before the next one is made
    if not start:
        raise ValueError("blocks must hold at least one document, got none")
    return _unpacked(best_Qk)


def without_own(scores_Qk: np.ndarray, rows_Qk: np.ndarray, own_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop each query's own row from the answers, or the last answer where its own row is not among them.

    Arguments:
        scores_Qk, rows_Qk: from ``search_blocks``.
        own_Q: (Q,) row of the query's own text, −1 for none.

    Returns:
        scores and rows, (Q, k − 1) each.
    """
    kept_Qk = rows_Qk != own_Q[:, None]
    kept_Qk[:, -1] &= ~kept_Qk.all(1)
    shape = (len(rows_Qk), rows_Qk.shape[1] - 1)
    return scores_Qk[kept_Qk].reshape(shape), rows_Qk[kept_Qk].reshape(shape)


def _cut(blocks: Iterable[Any], size: int) -> Iterator[Any]:
    for block in blocks:
        for i in range(0, block.shape[0], size):
            yield block[i : i + size]
        del block


def _checked(array: Any, name: str, hidden: int | None) -> Any:
    if array.ndim != 2 or not array.shape[0] or (hidden is not None and array.shape[1] != hidden):
        raise ValueError(f"{name} must be arrays (rows, {hidden or 'H'}), got shape {array.shape}")
    if not np.isfinite(array.data if issparse(array) else array).all():
        raise ValueError(f"{name} must be finite, got nan or infinity")
    return array


def _prepared(array: Any, where: torch.device, similarity: str) -> Any:
    """Copy to float64, with rows of length 1 for cosine: a tensor on the device, or a sparse matrix."""
    if issparse(array):
        sparse = csr_matrix(array, dtype=np.float64)
        if similarity == "cosine":
            lengths = np.maximum(sparse_norm(sparse, axis=1), np.finfo(np.float64).tiny)
            sparse = csr_matrix(sparse.multiply(1 / lengths[:, None]))
        return sparse
    rows = torch.tensor(array, dtype=torch.float64, device=where)
    if similarity == "cosine":
        rows /= torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return rows


def _similarities(queries_qH: Any, documents_nH: Any, similarity: str, where: torch.device) -> Tensor:
    """(q, n) float64; a greater value is more similar."""
    if issparse(queries_qH):
        return torch.from_numpy((queries_qH @ documents_nH.T).toarray()).to(where)
    if similarity == "euclidean":
        return -torch.cdist(queries_qH, documents_nH, compute_mode="donot_use_mm_for_euclid_dist")
    if similarity == "manhattan":
        return -torch.cdist(queries_qH, documents_nH, p=1)
    return queries_qH @ documents_nH.T  # type: ignore[no-any-return]


def _with_block(
    best_Qk: Tensor, queries_QH: Any, documents_nH: Any, similarity: str, start: int, top_k: int
) -> Tensor:
    """Merge the best keys so far with those of a block, a block of queries at a time."""
    parts = []
    for i, best_qk in zip(range(0, len(best_Qk), BLOCK_QUERIES), best_Qk.split(BLOCK_QUERIES), strict=True):
        scores_qn = _similarities(queries_QH[i : i + BLOCK_QUERIES], documents_nH, similarity, best_Qk.device)
        parts.append(_merged(best_qk, scores_qn, start, top_k))
    return torch.cat(parts)


def _merged(best_qk: Tensor, scores_qn: Tensor, start: int, top_k: int) -> Tensor:
    """Merge the best keys so far with those of a block. A key is an int64: the score in its upper half, the complement
    of the row in its lower half.

    All keys differ, so their order, unlike the order of scores, is the same on every machine.
    """
    ordered = (scores_qn.float() + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    ordered ^= (ordered >> 31) & 0x7FFFFFFF  # integers in the order of the floats
    keys = ordered.to(torch.int64)
    keys <<= 32
    keys |= _LOW - torch.arange(start, start + scores_qn.shape[1], device=scores_qn.device)
    keys = torch.cat([best_qk, keys], dim=1)
    return keys.topk(min(top_k, keys.shape[1]), dim=1).values


def _unpacked(keys: Tensor) -> tuple[np.ndarray, np.ndarray]:
    ordered = (keys >> 32).to(torch.int32)
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
    return scores.cpu().numpy(), (_LOW - (keys & _LOW)).cpu().numpy()
