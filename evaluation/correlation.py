"""Correlations and cosine. Shape suffixes: P pairs, H embedding size."""

import numpy as np
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


def cosine(x_PH: np.ndarray, y_PH: np.ndarray) -> np.ndarray:
    """Row-wise cosine similarity (P,), float64; 0 for a zero vector."""
    x, y = x_PH.astype(np.float64), y_PH.astype(np.float64)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return np.einsum("ph,ph->p", x, y) / np.maximum(norms, np.finfo(np.float64).tiny)
