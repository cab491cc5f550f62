"""Search is exact, ties are in a fixed order, memory does not grow with the corpus."""

import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from csekit.evaluation import search
from csekit.evaluation.search import search_blocks, without_own
from csekit.evaluation.stored_search import _with_faiss


def naive(queries: np.ndarray, documents: np.ndarray, k: int, cosine: bool = True) -> list[list[int]]:
    """Rows by score down, then by row up, in loops over float64."""

    def score(x: np.ndarray, y: np.ndarray) -> float:
        x, y = x.astype(np.float64), y.astype(np.float64)
        norm = np.sqrt((x * x).sum()) * np.sqrt((y * y).sum()) if cosine else 1.0
        return float(np.float32((x * y).sum() / norm)) if norm else 0.0

    found = []
    for query in queries:
        keys = sorted((-score(query, document), i) for i, document in enumerate(documents))
        found.append([i for _, i in keys[:k]])
    return found


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("block", [1, 3, 7, 100])
def test_it_is_the_naive_search_whatever_the_blocks(
    similarity: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    queries, documents = (rng.normal(size=(n, 5)).astype(np.float32) for n in (9, 40))
    documents[7] = documents[3]
    monkeypatch.setattr(search, "BLOCK_QUERIES", 4)
    blocks = [documents[:11], documents[11:11], documents[11:]]
    scores, rows = search_blocks(queries, blocks, 6, similarity=similarity, device="cpu", block_documents=block)
    assert rows.tolist() == naive(queries, documents, 6, similarity == "cosine")
    assert rows.dtype == np.int64
    assert scores.dtype == np.float32
    assert scores.shape == (9, 6)
    assert (np.diff(scores, axis=1) <= 0).all()
    expected = documents[rows[2, 1]].astype(np.float64) @ queries[2].astype(np.float64)
    if similarity == "cosine":
        expected /= np.linalg.norm(documents[rows[2, 1]].astype(np.float64)) * np.linalg.norm(
            queries[2].astype(np.float64)
        )
    assert scores[2, 1] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("hidden", [3, 64, 301])
def test_equal_vectors_tie_in_whatever_place_they_stand(hidden: int) -> None:
    """A float32 matrix product gives equal rows unequal scores, by their place in the block."""
    rng = np.random.default_rng(1)
    one, queries = rng.normal(size=(1, hidden)).astype(np.float32), rng.normal(size=(5, hidden)).astype(np.float32)
    documents = np.repeat(one, 103, axis=0)
    for block in (103, 50, 9):
        scores, rows = search_blocks(queries, [documents], 103, device="cpu", block_documents=block)
        assert rows.tolist() == [list(range(103))] * 5
        assert len(np.unique(scores[0])) == 1


def test_negative_scores_and_zero_are_in_order() -> None:
    documents = np.array([[-1.0, 0], [0, 1], [0, 0], [-0.0, -1], [2, 0], [-2, 1e-3]], dtype=np.float32)
    scores, rows = search_blocks(np.array([[1.0, 0]], dtype=np.float32), [documents], 10, device="cpu")
    assert rows.tolist() == [[4, 1, 2, 3, 5, 0]] and scores[0, 1:4].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"similarity": "l2"}, "similarity must be one of 'cosine', 'dot', 'euclidean', 'manhattan', got 'l2'"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"block_documents": 0}, "block_documents must be at least 1, got 0"),
        ({"blocks": []}, "at least one document, got none"),
        ({"blocks": [np.ones((2, 3))]}, r"blocks must be arrays \(rows, 2\), got shape \(2, 3\)"),
        ({"blocks": [np.full((2, 2), np.nan)]}, "blocks must be finite"),
        ({"queries_QH": np.ones((0, 2))}, r"queries must be arrays \(rows, H\), got shape \(0, 2\)"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    given = {"queries_QH": np.ones((1, 2)), "blocks": [np.ones((3, 2))], "top_k": 1, **change}
    with pytest.raises(ValueError, match=message):
        search_blocks(**given)


MEMORY = """
import re
from pathlib import Path
import numpy as np
from csekit.evaluation.search import BLOCK_QUERIES, search_blocks

H, n, k = 768, 8192, 100
rng = np.random.default_rng(0)
queries = rng.normal(size=(BLOCK_QUERIES, H)).astype(np.float32)
block = rng.normal(size=(n, H)).astype(np.float32)
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
search_blocks(queries[:2], [block[:4]], 1, device="cpu")
before = peak()
search_blocks(queries, (block for _ in range(2)), k, device="cpu", block_documents=n)
few = peak()
search_blocks(queries, (block for _ in range(5)), k, device="cpu", block_documents=n)
print(few - before, peak() - few, 8 * n * H + 40 * BLOCK_QUERIES * (n + k))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads the peak from /proc")
def test_memory_is_what_is_said_and_does_not_grow() -> None:
    kept_by_malloc = {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # or freed blocks that it keeps would be counted
    environment = {**os.environ, **kept_by_malloc}
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    first, more, stated = (int(word) for word in done.stdout.split())
    assert 0 < first <= stated
    assert more < 0.25 * stated  # the corpus has grown by 75 MB


def test_a_block_is_gone_before_the_next_one_is_made() -> None:
    class Block(np.ndarray):
        pass

    alive: list[Any] = []

    def blocks() -> Iterator[np.ndarray]:
        for _ in range(3):
            assert [reference for reference in alive if reference() is not None] == []
            block = np.ones((5, 2)).view(Block)
            alive.append(weakref.ref(block))
            yield block
            del block

    assert search_blocks(np.ones((1, 2)), blocks(), 2, device="cpu", block_documents=2)[1].tolist() == [[0, 1]]


@pytest.mark.gpu
def test_the_gpu_gives_the_same() -> None:
    rng = np.random.default_rng(2)
    queries, documents = (rng.normal(size=(n, 64)).astype(np.float32) for n in (300, 20_000))
    documents[5000] = documents[17]
    cpu, gpu = (search_blocks(queries, [documents], 20, device=device) for device in ("cpu", "cuda"))
    assert np.array_equal(cpu[1], gpu[1]) and np.array_equal(cpu[0], gpu[0])


def test_without_its_own_row() -> None:
    scores, rows = np.array([[4.0, 3, 2], [4, 3, 2]]), np.array([[5, 1, 0], [5, 1, 0]])
    kept = without_own(scores, rows, np.array([1, -1]))
    assert kept[0].tolist() == [[4, 2], [4, 3]] and kept[1].tolist() == [[5, 0], [5, 1]]


@pytest.mark.parametrize("similarity", ["dot", "euclidean", "manhattan"])
def test_other_similarities_are_their_formulas(similarity: str) -> None:
    rng = np.random.default_rng(0)
    queries, documents = rng.normal(size=(300, 5)), rng.normal(size=(40, 5))
    documents[7] = documents[3]  # equal documents tie
    formula = {
        "dot": lambda x, y: sum(a * b for a, b in zip(x, y, strict=True)),
        "euclidean": lambda x, y: -(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) ** 0.5),
        "manhattan": lambda x, y: -sum(abs(a - b) for a, b in zip(x, y, strict=True)),
    }[similarity]
    scores, rows = search_blocks(queries, [documents], 40, similarity=similarity, device="cpu", block_documents=11)
    for i in (0, 299):
        wanted = [np.float32(formula(queries[i], document)) for document in documents]
        assert scores[i] == pytest.approx(sorted(wanted, reverse=True), abs=1e-5)
        assert rows[i].tolist().index(3) + 1 == rows[i].tolist().index(7)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_sparse_matrices_are_searched_as_dense_ones(similarity: str) -> None:
    rng = np.random.default_rng(0)
    queries, documents = (rng.normal(size=(n, 9)) * (rng.random((n, 9)) < 0.4) for n in (300, 30))
    documents[4] = 0
    dense = search_blocks(queries, [documents[:20], documents[20:]], 12, similarity=similarity, device="cpu")
    blocks = [csr_matrix(documents[:20]), csr_matrix(documents[20:])]
    found = search_blocks(csr_matrix(queries), blocks, 12, similarity=similarity, device="cpu", block_documents=7)
    np.testing.assert_allclose(found[0], dense[0], atol=1e-6)
    np.testing.assert_array_equal(found[1], dense[1])


def test_sparse_matrices_have_no_distances() -> None:
    with pytest.raises(ValueError, match="similarity must be one of 'cosine', 'dot', got 'euclidean'"):
        search_blocks(csr_matrix(np.eye(2)), [csr_matrix(np.eye(2))], 1, similarity="euclidean")


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_faiss_has_the_order_of_the_exact_search(similarity: str) -> None:
    """Regression: among rows of equal score at the end of the answers, as repeated texts are, faiss took any."""
    pytest.importorskip("faiss")
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(20, 8)).astype(np.float32)[rng.integers(0, 20, 400)]
        queries, k = np.concatenate([rows[:3], rng.normal(size=(3, 8)).astype(np.float32)]), int(rng.integers(1, 30))
        scores, found = _with_faiss(queries, iter([rows[:150], rows[150:]]), k, similarity)
        wanted, order = search_blocks(queries, [rows], k, similarity=similarity)
        np.testing.assert_array_equal(found, order)
        np.testing.assert_allclose(scores, wanted, atol=1e-6)
    same = np.ones((1000, 4), dtype=np.float32)
    assert _with_faiss(same[:2], [same], 5, similarity)[1].tolist() == [[0, 1, 2, 3, 4]] * 2
