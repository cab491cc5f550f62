"""Exact nearest neighbours by cosine: in blocks, in bounded memory, the same answer whatever the blocks and device.

A matrix product in single precision proposes more candidates than are asked for, double precision orders them. Where
the candidates cannot be told to be enough (many near-equal scores), the query is searched once more, keeping all that
could belong to the answer.

Shape suffixes: Q queries, N corpus rows, H embedding size, q and b rows of a block of them, c candidates, k
neighbours.
"""

from collections.abc import Iterator

import numpy as np
import torch

Array = np.ndarray | torch.Tensor

#: Candidates beyond k that the first pass keeps.
_SPARE = 32
#: Numbers in a double precision temporary at most (64 MiB).
_TEMPORARY = 2**23


def top_k(
    queries_QH: Array,
    corpus_NH: Array,
    k: int,
    *,
    block_size: int = 16_384,
    query_block: int = 512,
    exclude: np.ndarray | None = None,
    device: str | torch.device | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The k corpus rows of highest cosine for each query, highest first; equal scores by the lower index.

    Exact: scores are those of double precision, so that two equal corpus rows have equal scores wherever they stand.
    The zero vector has cosine 0 with everything.

    Memory beside the two arrays: one block of the corpus (b·H·4 bytes), its scores (q·b·4), the queries (Q·H·4), the
    candidates (Q·(k+32)·12) and temporaries of at most 128 MiB. For a corpus of 1,000,000 × 768 and 1,000 queries with
    the defaults that is 50 + 34 + 3 + 1 MB and the temporaries: under 0.3 GB. The corpus itself (3.1 GB) may be a
    ``numpy.memmap``, also in half precision; it is read a block at a time.

    Arguments:
        queries_QH, corpus_NH: numpy arrays or tensors, any floating type; they need not be normalised.
        k: neighbours; a corpus that holds fewer gives fewer.
        block_size: corpus rows at a time.
        query_block: queries at a time.
        exclude: (Q,) index of a corpus row that is no answer for this query, such as the query itself; -1 for none.
        device: where the products run. None: where the corpus is; numpy arrays on the CPU.

    Returns:
        scores (Q, k) float64, falling along each row; indices (Q, k) int64.

    Raises:
        ValueError: shapes that do not fit, k or a block below 1, an empty corpus, a row that is not finite.
    """
    _check(queries_QH, corpus_NH, k, block_size, query_block, exclude)
    if device is None:
        device = corpus_NH.device if isinstance(corpus_NH, torch.Tensor) else "cpu"
    search = _Search(queries_QH, corpus_NH, exclude, block_size, query_block, torch.device(device))
    return search.run(k)


class _Search:
    def __init__(
        self,
        queries_QH: Array,
        corpus_NH: Array,
        exclude: np.ndarray | None,
        block_size: int,
        query_block: int,
        device: torch.device,
    ) -> None:
        self.corpus_NH, self.n, self.size = corpus_NH, len(corpus_NH), corpus_NH.shape[1]
        self.raw_QH = queries_QH
        self.queries_QH = _unit(queries_QH, 0, len(queries_QH), device, "queries")
        self.exclude_Q = None if exclude is None else torch.as_tensor(np.asarray(exclude, dtype=np.int64)).to(device)
        self.block_size, self.query_block, self.device = block_size, query_block, device

    def run(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        usable = self.n - (self.exclude_Q is not None)
        k = min(k, usable)
        c = min(k + _SPARE, usable)
        rough_Qc, index_Qc = self._candidates(c)
        exact_Qc = np.empty(rough_Qc.shape)
        rows = max(1, _TEMPORARY // (c * self.size))
        for start in range(0, len(exact_Qc), rows):
            part = slice(start, start + rows)
            exact_Qc[part] = self._cosine(part, index_Qc[part])
        rows_, order = np.arange(len(exact_Qc))[:, None], _order(exact_Qc, index_Qc)[:, :k]
        scores_Qk, index_Qk = exact_Qc[rows_, order], index_Qc[rows_, order]
        if c < usable and len(exact_Qc):
            # a dot product of unit vectors is off by at most (H + 4) u; more where the device rounds its inputs
            error = max((self.size + 4) * 2.0**-24, 2 * float(np.abs(rough_Qc - exact_Qc).max()))
            threshold_Q = rough_Qc[:, k - 1] - 2 * error
            open_rows = np.flatnonzero(rough_Qc[:, -1] >= threshold_Q)
            for start in range(0, len(open_rows), self.query_block):
                rows_q = open_rows[start : start + self.query_block]
                scores_Qk[rows_q], index_Qk[rows_q] = self._search_again(rows_q, threshold_Q[rows_q], k)
        return np.clip(scores_Qk, -1.0, 1.0), index_Qk

    def _scores(self, rows: slice | torch.Tensor, start: int, block_bH: torch.Tensor) -> torch.Tensor:
        """(q, b) in single precision, the excluded at -inf."""
        scores_qb = self.queries_QH[rows] @ block_bH.T
        if self.exclude_Q is not None:
            column_q = self.exclude_Q[rows] - start
            inside_q = (column_q >= 0) & (column_q < len(block_bH))
            where_q = column_q.clamp(0, len(block_bH) - 1)[:, None]
            kept = scores_qb.gather(1, where_q).masked_fill(inside_q[:, None], -torch.inf)
            scores_qb.scatter_(1, where_q, kept)
        return scores_qb

    def _blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        for start in range(0, self.n, self.block_size):
            yield start, _unit(self.corpus_NH, start, start + self.block_size, self.device, "corpus")

    def _candidates(self, c: int) -> tuple[np.ndarray, np.ndarray]:
        """The c best of each query by single precision, best first."""
        shape = (len(self.queries_QH), c)
        best_Qc = torch.full(shape, -torch.inf, device=self.device)
        index_Qc = torch.zeros(shape, dtype=torch.int64, device=self.device)
        for start, block_bH in self._blocks():
            for first in range(0, shape[0], self.query_block):
                part = slice(first, first + self.query_block)
                new_qc, column_qc = self._scores(part, start, block_bH).topk(min(c, len(block_bH)), dim=1)
                both, index = torch.cat([best_Qc[part], new_qc], 1), torch.cat([index_Qc[part], column_qc + start], 1)
                best_Qc[part], kept = both.topk(c, dim=1)
                index_Qc[part] = index.gather(1, kept)
        return best_Qc.cpu().double().numpy(), index_Qc.cpu().numpy()

    def _cosine(self, rows: slice, index_qc: np.ndarray) -> np.ndarray:
        """(q, c) in double precision; one pair's score does not depend on its neighbours in the arrays."""
        x_qH = _double(self.raw_QH[rows])
        y_qcH = _double(self.corpus_NH[index_qc.reshape(-1)]).reshape(*index_qc.shape, -1)
        lengths = np.sqrt(np.square(y_qcH).sum(-1)) * np.sqrt(np.square(x_qH).sum(-1))[:, None]
        y_qcH *= x_qH[:, None, :]
        return y_qcH.sum(-1) / np.maximum(lengths, np.finfo(np.float64).tiny)

    def _search_again(self, rows_q: np.ndarray, threshold_q: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and indices (q, k), out of all corpus rows at or above each query's threshold."""
        rows = torch.as_tensor(rows_q, device=self.device)
        threshold = torch.as_tensor(threshold_q, dtype=torch.float64, device=self.device)[:, None]
        scores = [np.empty(0) for _ in rows_q]
        index = [np.empty(0, dtype=np.int64) for _ in rows_q]
        step = max(1, _TEMPORARY // self.size)
        for start, block_bH in self._blocks():
            above_qb = (self._scores(rows, start, block_bH) >= threshold).cpu().numpy()
            for i, row in enumerate(rows_q):
                columns = np.flatnonzero(above_qb[i]) + start
                for first in range(0, len(columns), step):
                    part = columns[first : first + step]
                    exact = self._cosine(slice(row, row + 1), part[None])[0]
                    s, n = np.concatenate([scores[i], exact]), np.concatenate([index[i], part])
                    order = _order(s[None], n[None])[0, :k]
                    scores[i], index[i] = s[order], n[order]
        return np.stack(scores), np.stack(index)


def _order(scores: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Along each row: falling scores, equal ones by rising index."""
    by_index = np.argsort(index, axis=1, kind="stable")
    falling = np.argsort(-np.take_along_axis(scores, by_index, 1), axis=1, kind="stable")
    return np.take_along_axis(by_index, falling, 1)


def _double(rows: Array) -> np.ndarray:
    """A copy in double precision on the CPU."""
    if isinstance(rows, torch.Tensor):
        return rows.detach().to(device="cpu", dtype=torch.float64, copy=True).numpy()
    return np.array(rows, dtype=np.float64)


def _unit(x: Array, start: int, stop: int, device: torch.device, name: str) -> torch.Tensor:
    """Rows of length 1 (or 0), float32. Raises ValueError for one that is not finite."""
    if isinstance(x, torch.Tensor):
        rows = x[start:stop].detach().to(device, torch.float32, copy=True)
    else:
        rows = torch.from_numpy(np.array(x[start:stop], dtype=np.float32)).to(device)
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    if not bool(norms.isfinite().all()):
        row = start + int((~norms.isfinite()).nonzero()[0])
        raise ValueError(f"{name} must be finite, got a value that is not in row {row}")
    return rows.div_(norms.clamp_min(torch.finfo(torch.float32).tiny).float()[:, None])


def _check(
    queries: Array, corpus: Array, k: int, block_size: int, query_block: int, exclude: np.ndarray | None
) -> None:
    for name, value in (("k", k), ("block_size", block_size), ("query_block", query_block)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if queries.ndim != 2 or corpus.ndim != 2 or queries.shape[1] != corpus.shape[1]:
        raise ValueError(
            f"queries and corpus must be (Q, H) and (N, H), got {tuple(queries.shape)} and {tuple(corpus.shape)}"
        )
    least = 1 if exclude is None else 2
    if len(corpus) < least:
        raise ValueError(f"corpus must hold at least {least} rows, got {len(corpus)}")
    if exclude is not None and np.shape(exclude) != (len(queries),):
        raise ValueError(f"exclude must hold one index for each of {len(queries)} queries, got {np.shape(exclude)}")
    if exclude is not None and len(exclude) and not -1 <= np.min(exclude) <= np.max(exclude) < len(corpus):
        raise ValueError(
            f"exclude must hold indices below {len(corpus)}, or -1, got {np.min(exclude)}…{np.max(exclude)}"
        )
