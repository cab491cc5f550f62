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
    for block in blocks:
        flat.add(prepared(block))
    scores, rows = flat.search(prepared(queries_QH), min(top_k, flat.ntotal))
    scores = -np.sqrt(np.maximum(scores, 0)) if euclidean else scores
    order = np.lexsort((rows, -scores), axis=1)
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
