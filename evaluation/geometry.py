"""Measure the shape of an embedding space: alignment, uniformity, effective rank, mean cosine.

Shape suffixes: N sentences, H embedding size. All functions take (N, H) arrays, normalise rows if the formula does,
and compute in float64.
"""

import numpy as np


def _rows(x: np.ndarray, name: str, least: int) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or len(x) < least:
        raise ValueError(f"{name} must be (N, H) with N at least {least}, got shape {x.shape}")
    return x


def _unit(x: np.ndarray, name: str, least: int) -> np.ndarray:
    x = _rows(x, name, least)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(np.float64).tiny)


def alignment(x: np.ndarray, y: np.ndarray) -> float:
    """Return the mean of ‖x − y‖² over positive pairs of normalised rows (Wang & Isola 2020, eq. 1, α = 2). Lower is
    closer.

    Arguments:
        x, y: (N, H), row i of y is the positive of row i of x.
    """
    x, y = _unit(x, "x", 1), _unit(y, "y", 1)
    if x.shape != y.shape:
        raise ValueError(f"x and y must have one shape, got {x.shape} and {y.shape}")
    return float(np.mean(np.sum((x - y) ** 2, axis=1)))


def uniformity(x: np.ndarray, t: float = 2.0, block: int = 1024) -> float:
    """Return log E exp(−t‖x − y‖²) over distinct pairs of normalised rows (Wang & Isola 2020, eq. 2).

    Lower is more uniform.

    Arguments:
        x: (N, H), N ≥ 2.
        block: number of rows at a time; memory is block·N numbers.
    """
    x = _unit(x, "x", 2)
    total = 0.0
    for start in range(0, len(x), block):
        squared = np.maximum(2 - 2 * (x[start : start + block] @ x.T), 0)
        kernel = np.exp(-t * squared)
        rows = np.arange(len(kernel))
        kernel[rows, start + rows] = 0
        total += float(kernel.sum())
    return float(np.log(total / (len(x) * (len(x) - 1))))


def effective_rank(x: np.ndarray) -> float:
    """Return exp of the entropy of the singular values scaled to sum 1 (Roy & Vetterli 2007): from 1 to min(N, H).

    Rows are neither centred nor normalised. A zero matrix gives 0.
    """
    x = _rows(x, "x", 1)
    values = np.linalg.svd(x, compute_uv=False)
    if values.sum() == 0:
        return 0.0
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(np.exp(-np.sum(shares * np.log(shares))))


def mean_cosine(x: np.ndarray) -> float:
    """Mean cosine over distinct pairs of rows (Ethayarajh 2019): near 0 for spread directions, near 1 in a cone."""
    x = _unit(x, "x", 2)
    total = np.sum(x.sum(axis=0) ** 2) - np.sum(x**2)
    return float(total / (len(x) * (len(x) - 1)))


def label_free_criteria(
    embeddings: np.ndarray, view1: np.ndarray | None = None, view2: np.ndarray | None = None
) -> dict[str, float]:
    """Compute criteria that choose a checkpoint without labels.

    Arguments:
        embeddings: (N, H), from the model in eval mode.
        view1, view2: (N, H), the same sentences under two dropout masks, for ``alignment`` and
            ``alignment_plus_uniformity``. Both or none: uniformity alone is best for random directions, alignment
            alone for a collapsed space.

    Returns:
        ``uniformity`` (lower is better), ``effective_rank``, ``mean_cosine``, and with views ``alignment`` and
        ``alignment_plus_uniformity`` (both lower is better).
    """
    if (view1 is None) != (view2 is None):
        raise ValueError("view1 and view2 go together, got one of them")
    criteria = {
        "uniformity": uniformity(embeddings),
        "effective_rank": effective_rank(embeddings),
        "mean_cosine": mean_cosine(embeddings),
    }
    if view1 is not None and view2 is not None:
        criteria["alignment"] = alignment(view1, view2)
        criteria["alignment_plus_uniformity"] = criteria["alignment"] + criteria["uniformity"]
    return criteria
