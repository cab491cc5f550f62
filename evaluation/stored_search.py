"""Search the embeddings that ``encode_file`` wrote: exactly, block by block in bounded memory, or with faiss.

Shape suffixes: Q queries, n rows of a block, k answers, H embedding size.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from csekit.encoding.folders import SIMILARITIES
from csekit.encoding.stored import StoredEmbeddings
from csekit.evaluation.search import search_blocks

#: Rows that faiss is asked for beyond those that are wanted: its float32 does not give equal rows equal scores, and it
#: does not choose among them by their place. Scores within ``NEAR``, relative to the largest possible, may be equal.
MORE, NEAR = 64, 1e-5
#: Ways to search: our own blocks, or a flat index of faiss, which holds all vectors in memory as float32.
INDEXES = ("exact", "faiss")


def search_embeddings(
    store: StoredEmbeddings,
    queries_QH: np.ndarray,
    top_k: int = 10,
    *,
    similarity: str = "cosine",
    index: str = "exact",
    device: str | torch.device | None = None,
    progress: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the ``top_k`` rows of each query, best first; among equal scores the lower row comes first.

    Arguments:
        store: from ``open_embeddings``.
        queries_QH: (Q, H), from the store's encoder.
        similarity: the encoder's ``similarity_fn_name``, see ``search_blocks``.
        index: 'exact', or 'faiss' for faiss' flat index: also exact, in float32, with 4 · N · H bytes of memory.
        device: as for ``search_blocks``; faiss uses the CPU.

    Returns:
        scores (Q, k) float32 and rows (Q, k) int64, k = min(top_k, N).

    Raises:
        ValueError: the queries have another size than the vectors; an unknown index; what ``search_blocks`` raises.
        ImportError: faiss is not installed.
    """
    check_index(index, similarity)
    if queries_QH.ndim != 2 or queries_QH.shape[1] != store.size:
        raise ValueError(f"queries must have the shape (Q, {store.size}) of {store.path.name}, got {queries_QH.shape}")
    with tqdm(total=store.rows, desc="search", unit=" rows", disable=not progress) as bar:
        blocks = _counted(store.blocks(), bar)
        if index == "faiss":
            return _with_faiss(queries_QH, blocks, top_k, similarity)
        return search_blocks(queries_QH, blocks, top_k, similarity=similarity, device=device)


def check_index(index: str, similarity: str = "cosine") -> None:
    """Raise ValueError for an unknown index or one without the similarity, ImportError where faiss is missing."""
    if index not in INDEXES:
        raise ValueError(f"index must be one of {', '.join(map(repr, INDEXES))}, got {index!r}")
    if index == "faiss":
        if similarity == SIMILARITIES[3]:
            raise ValueError(f"index 'faiss' has no similarity {similarity!r}: use 'exact'")
        _faiss()


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError("index 'faiss' needs faiss: pip install 'csekit[faiss]'") from error
    return faiss


def _counted(blocks: Iterable[np.ndarray], bar: Any) -> Iterator[np.ndarray]:
    for block in blocks:
        yield block
        bar.update(len(block))
        del block


def _with_faiss(
    queries_QH: np.ndarray, blocks: Iterable[np.ndarray], top_k: int, similarity: str
) -> tuple[np.ndarray, np.ndarray]:
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    faiss, euclidean = _faiss(), similarity == "euclidean"

    def prepared(rows_nH: np.ndarray) -> np.ndarray:
        rows = np.array(rows_nH, dtype=np.float32, order="C")
        if similarity == "cosine":
            faiss.normalize_L2(rows)
        return rows

    flat = (faiss.IndexFlatL2 if euclidean else faiss.IndexFlatIP)(queries_QH.shape[1])
    longest = 0.0
    for block in blocks:
        flat.add(rows := prepared(block))
        longest = max(longest, float(np.linalg.norm(rows, axis=1).max()))
    queries, wanted = prepared(queries_QH), min(top_k, flat.ntotal)
    lengths_Q = np.linalg.norm(queries, axis=1)
    near_Q = NEAR * ((lengths_Q + longest) ** 2 if euclidean else lengths_Q * longest)
    open_Q, tried = np.arange(len(queries)), min(wanted + MORE, flat.ntotal)
    scores_Qk = np.empty((len(queries), wanted), dtype=np.float32)
    rows_Qk = np.empty((len(queries), wanted), dtype=np.int64)
    while len(open_Q):  # queries whose last answers may be as close as rows that faiss left out
        far, rows = flat.search(queries[open_Q], tried)
        gap = np.abs(far[:, wanted - 1] - far[:, -1])
        sure = (gap > near_Q[open_Q]) | (tried == flat.ntotal)
        for query, own in zip(open_Q[sure], rows[sure], strict=True):
            scores = _exactly(queries[query], flat.reconstruct_batch(own), similarity)
            order = np.lexsort((own, -scores))[:wanted]
            scores_Qk[query], rows_Qk[query] = scores[order], own[order]
        open_Q, tried = open_Q[~sure], min(2 * tried, flat.ntotal)
    return scores_Qk, rows_Qk


def _exactly(query_H: np.ndarray, rows_kH: np.ndarray, similarity: str) -> np.ndarray:
    """Return the similarities (k,), computed in float64 and rounded to float32, so that equal rows tie."""
    query, rows = query_H.astype(np.float64), rows_kH.astype(np.float64)
    if similarity == "euclidean":
        return -np.linalg.norm(rows - query, axis=1).astype(np.float32)
    exact = np.einsum("kh,h->k", rows, query)
    if similarity == "cosine":  # of rows that were scaled in float32
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
        exact /= np.maximum(lengths, np.finfo(np.float64).tiny)
    return exact.astype(np.float32) + np.float32(0)  # + 0 turns -0 into 0
