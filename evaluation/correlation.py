"""Correlations, cosine, and the scores of 0/1 pairs. Shape suffixes: P pairs, H embedding size."""

from typing import Any

import numpy as np
from scipy.sparse import issparse


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson correlation of two (P,) arrays; nan if one of them is constant."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    x, y = x - x.mean(), y - y.mean()
    norm = np.sqrt((x @ x) * (y @ y))
    return float(np.clip(x @ y / norm, -1, 1)) if norm > 0 else float("nan")


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman correlation of two (P,) arrays: Pearson of the ranks, ties at their average rank; nan if one of them is
    constant."""
    return pearson(_ranks(x), _ranks(y))


def _ranks(x: np.ndarray) -> np.ndarray:
    """Return the ranks of (P,) values from 1, ties at their average rank; all nan if a value is.

    These are ``scipy.stats.rankdata``'s, without the 20 MB that its import takes of every training."""
    x = np.asarray(x)
    if np.isnan(x).any():
        return np.full(len(x), np.nan)
    _, group_P, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[group_P]
    return ranks


def cosine(x_PH: Any, y_PH: Any) -> np.ndarray:
    """Row-wise cosine similarity of two arrays or two sparse matrices, (P,) float64; 0 for a zero vector.

    Values are rounded to float32, so that equal sentences tie: in float64 the cosine of a vector with itself differs
    from 1 by a rounding error that depends on the vector.
    """
    x, y = x_PH.astype(np.float64), y_PH.astype(np.float64)
    if issparse(x):
        products, *squares = (np.asarray(a.multiply(b).sum(axis=1)).ravel() for a, b in ((x, y), (x, x), (y, y)))
        norms = np.sqrt(squares[0] * squares[1])
    else:
        products = np.einsum("ph,ph->p", x, y)
        norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return (products / np.maximum(norms, np.finfo(np.float64).tiny)).astype(np.float32).astype(np.float64)


def binary_scores(similarities_P: np.ndarray, labels_P: np.ndarray) -> dict[str, float]:
    """Score similarities of pairs that are labelled 0 or 1.

    Returns:
        ``ap``: average precision ×100, Σ (Rₖ − Rₖ₋₁)·Pₖ over the distinct similarities, descending.
        ``accuracy``: ×100, at the threshold that is best for these very pairs.
        ``threshold``: that one; pairs with a similarity of at least the threshold count as 1.

    Raises:
        ValueError: labels other than 0 and 1, or only one of them.
    """
    labels = np.asarray(labels_P, dtype=np.float64)
    if set(labels.tolist()) != {0.0, 1.0}:
        raise ValueError(f"labels must be 0 and 1, got {sorted(set(labels.tolist()))[:5]}")
    order = np.argsort(-np.asarray(similarities_P), kind="stable")
    values, hits = np.asarray(similarities_P, dtype=np.float64)[order], labels[order]
    last = np.append(np.flatnonzero(np.diff(values)), len(values) - 1)  # the last pair of each group of ties
    found, called = np.cumsum(hits)[last], last + 1.0
    recall = found / hits.sum()
    right = np.append(found + (len(hits) - hits.sum()) - (called - found), len(hits) - hits.sum())
    best = int(right.argmax())
    below = np.append(values[last][1:], values[-1]) if len(last) > 1 else values[last]
    thresholds = np.append((values[last] + below) / 2, np.nextafter(values[0], np.inf))
    return {
        "ap": 100 * float(np.sum(np.diff(recall, prepend=0) * found / called)),
        "accuracy": 100 * float(right[best] / len(hits)),
        "threshold": float(thresholds[best]),
    }
