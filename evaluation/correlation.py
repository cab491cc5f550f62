"""Correlations and cosine. Shape suffixes: P pairs, H embedding size."""

from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.stats import rankdata


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson correlation of two (P,) arrays; nan where one of them is constant."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    x, y = x - x.mean(), y - y.mean()
    norm = np.sqrt((x @ x) * (y @ y))
    return float(np.clip(x @ y / norm, -1, 1)) if norm > 0 else float("nan")


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman correlation of two (P,) arrays: Pearson of the ranks, ties at their average rank; nan if constant."""
    return pearson(rankdata(x), rankdata(y))


def cosine(x_PH: Any, y_PH: Any) -> np.ndarray:
    """Row-wise cosine similarity (P,), float64, of two arrays or two sparse matrices; 0 for a zero vector."""
    x, y = x_PH.astype(np.float64), y_PH.astype(np.float64)
    if issparse(x):
        products, *squares = (np.asarray(a.multiply(b).sum(axis=1)).ravel() for a, b in ((x, y), (x, x), (y, y)))
        norms = np.sqrt(squares[0] * squares[1])
    else:
        products = np.einsum("ph,ph->p", x, y)
        norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return products / np.maximum(norms, np.finfo(np.float64).tiny)
