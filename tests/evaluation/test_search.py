import math
from typing import Any

import numpy as np
import pytest
import torch

from csekit.evaluation import top_k
from csekit.evaluation.search import _Search


def naive(queries: np.ndarray, corpus: np.ndarray, k: int, exclude: Any = None) -> tuple[list[list[float]], Any]:
    """Loops over pairs in double precision."""
    scores, index = [], []
    for i, x in enumerate(queries.astype(float)):
        found = []
        for j, y in enumerate(corpus.astype(float)):
            if exclude is not None and exclude[i] == j:
                continue
            length = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
            found.append((-float(x @ y) / length if length else 0.0, j))
        found.sort()
        scores.append([-score for score, _ in found[:k]])
        index.append([j for _, j in found[:k]])
    return scores, index


@pytest.mark.parametrize("block_size", [1, 7, 64, 1000])
@pytest.mark.parametrize("query_block", [1, 3, 100])
def test_equals_the_loops(block_size: int, query_block: int) -> None:
    rng = np.random.default_rng(0)
    queries, corpus = rng.normal(size=(7, 16)).astype(np.float32), rng.normal(size=(150, 16)).astype(np.float32)
    exclude = np.array([3, -1, 149, 0, 64, 63, -1])
    for excluded in (None, exclude):
        scores, index = top_k(queries, corpus, 5, block_size=block_size, query_block=query_block, exclude=excluded)
        expected, order = naive(queries, corpus, 5, excluded)
        assert index.tolist() == order and index.dtype == np.int64
        np.testing.assert_allclose(scores, expected, atol=1e-12)


def test_equal_rows_come_by_index_whatever_the_blocks() -> None:
    """In single precision the same row gets other last bits at another place of a product."""
    rng = np.random.default_rng(1)
    base = rng.normal(size=(4, 48)).astype(np.float32)
    kind = rng.integers(0, 4, size=600)  # 150 copies of each row: more than the first pass keeps
    corpus, queries = base[kind] * rng.choice([0.5, 1, 4], size=(600, 1)).astype(np.float32), base + 0.1
    for block_size in (600, 97, 5):
        scores, index = top_k(queries, corpus, 40, block_size=block_size, query_block=2)
        for i in range(4):
            nearest = np.flatnonzero(kind == kind[index[i, 0]])
            assert index[i].tolist() == nearest[:40].tolist()
            assert len(set(scores[i])) == 1


def test_the_second_pass_finds_what_the_first_may_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near-equal scores, and a product that rounds its inputs as a GPU may: the answer stays exact."""
    rng = np.random.default_rng(2)
    direction = rng.normal(size=64)
    corpus = (direction + 1e-3 * rng.normal(size=(500, 64))).astype(np.float32)
    queries = (direction + 1e-3 * rng.normal(size=(6, 64))).astype(np.float32)
    again: list[int] = []
    plain, search_again = _Search._scores, _Search._search_again

    def rounded(self: Any, rows: Any, start: int, block: torch.Tensor) -> torch.Tensor:
        return plain(self, rows, start, block.bfloat16().float())

    def counted(self: Any, rows: np.ndarray, *rest: Any) -> Any:
        again.append(len(rows))
        return search_again(self, rows, *rest)

    monkeypatch.setattr(_Search, "_scores", rounded)
    monkeypatch.setattr(_Search, "_search_again", counted)
    scores, index = top_k(queries, corpus, 3, block_size=128, query_block=4)
    assert sum(again) == 6
    expected, order = naive(queries, corpus, 3)
    assert index.tolist() == order
    np.testing.assert_allclose(scores, expected, atol=1e-12)


def test_takes_tensors_half_precision_and_files(tmp_path: Any) -> None:
    rng = np.random.default_rng(3)
    queries, corpus = rng.normal(size=(5, 8)).astype(np.float16), rng.normal(size=(40, 8)).astype(np.float16)
    np.save(tmp_path / "corpus.npy", corpus)
    stored = np.load(tmp_path / "corpus.npy", mmap_mode="r")
    expected = naive(queries, corpus, 4)[1]
    for q, c in [(queries, stored), (torch.from_numpy(queries), torch.from_numpy(corpus)), (queries, corpus)]:
        kept = np.array(c)
        assert top_k(q, c, 4, block_size=16)[1].tolist() == expected
        assert np.array_equal(kept, np.array(c)), "the caller's array was changed"


@pytest.mark.gpu
def test_the_gpu_gives_the_same_answer() -> None:
    rng = np.random.default_rng(4)
    queries, corpus = rng.normal(size=(50, 96)).astype(np.float32), rng.normal(size=(3000, 96)).astype(np.float32)
    corpus[1500:] = corpus[:1500]
    expected = top_k(queries, corpus, 10)
    on_gpu = top_k(torch.from_numpy(queries), torch.from_numpy(corpus).cuda(), 10, block_size=1000)
    for ours, theirs in zip(on_gpu, expected, strict=True):
        assert np.array_equal(ours, theirs)


def test_zero_vectors_and_short_corpora() -> None:
    corpus = np.array([[1.0, 0], [0, 0], [-1, 0]])
    scores, index = top_k(np.array([[2.0, 0], [0, 0]]), corpus, 9)
    assert index.tolist() == [[0, 1, 2], [0, 1, 2]] and scores.tolist() == [[1, 0, -1], [0, 0, 0]]
    scores, index = top_k(corpus, corpus, 9, exclude=np.arange(3))
    assert index.tolist() == [[1, 2], [0, 2], [1, 0]]
    assert top_k(np.empty((0, 2)), corpus, 2)[1].shape == (0, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"queries_QH": np.ones((2, 3))}, r"got \(2, 3\) and \(5, 4\)"),
        ({"corpus_NH": np.ones((0, 4))}, "at least 1 rows, got 0"),
        (
            {"corpus_NH": np.array([[1.0] * 4, [np.nan] * 4])},
            "corpus must be finite, got a value that is not in row 1",
        ),
        ({"exclude": np.array([0])}, "one index for each of 2 queries"),
        ({"exclude": np.array([0, 5])}, "indices below 5"),
    ],
)
def test_errors(change: dict[str, Any], message: str) -> None:
    arguments = {"queries_QH": np.ones((2, 4)), "corpus_NH": np.ones((5, 4)), "k": 2} | change
    with pytest.raises(ValueError, match=message):
        top_k(**arguments)
