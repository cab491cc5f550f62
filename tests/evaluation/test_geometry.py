import math

import numpy as np
import pytest

from csekit.evaluation.geometry import alignment, effective_rank, label_free_criteria, mean_cosine, uniformity


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(23, 5)) + 0.5


def unit(x: np.ndarray) -> list[np.ndarray]:
    return [row / math.sqrt(sum(v * v for v in row)) for row in x]


def test_formulas_with_loops(x: np.ndarray) -> None:
    rows = unit(x)
    n = len(rows)
    pairs = [(rows[i], rows[j]) for i in range(n) for j in range(n) if i != j]
    kernel = [math.exp(-2 * sum((a - b) ** 2)) for a, b in pairs]
    assert uniformity(x) == pytest.approx(math.log(sum(kernel) / len(kernel)), abs=1e-12)
    assert mean_cosine(x) == pytest.approx(sum(a @ b for a, b in pairs) / len(pairs), abs=1e-12)
    y = unit(x[::-1])
    wanted = sum(sum((a - b) ** 2) for a, b in zip(rows, y, strict=True)) / n
    assert alignment(x, x[::-1]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("block", [1, 7, 23, 100])
def test_blocks_change_nothing(x: np.ndarray, block: int) -> None:
    assert uniformity(x, block=block) == pytest.approx(uniformity(x), abs=1e-12)


def test_known_values() -> None:
    assert effective_rank(np.eye(6)) == pytest.approx(6)
    assert effective_rank(np.ones((6, 4))) == pytest.approx(1)
    assert effective_rank(np.zeros((6, 4))) == 0
    assert uniformity(np.ones((5, 3))) == pytest.approx(0)  # collapsed
    assert uniformity(np.array([[1.0, 0.0], [-3.0, 0.0]])) == pytest.approx(-8)  # opposite: squared distance 4
    assert mean_cosine(np.ones((5, 3))) == pytest.approx(1)


def test_label_free_criteria(x: np.ndarray) -> None:
    assert label_free_criteria(x).keys() == {"uniformity", "effective_rank", "mean_cosine"}
    found = label_free_criteria(x, x, x * 2)
    assert found["alignment"] == pytest.approx(0) and found["alignment_plus_uniformity"] == found["uniformity"]
    with pytest.raises(ValueError, match="view1 and view2 go together"):
        label_free_criteria(x, x)
    with pytest.raises(ValueError, match=r"x must be \(N, H\) with N at least 2, got shape \(1, 5\)"):
        label_free_criteria(x[:1])
