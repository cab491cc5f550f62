"""Clusters of titles: the scores by their definitions, the seed, the files."""

import math
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csekit.evaluation import clustering
from csekit.evaluation.clustering import (
    ClusteringOptions,
    TopicMap,
    clustering_suite,
    kmeans,
    load_stackoverflow,
    matched_accuracy,
    score_clusters,
    unit_rows,
)

SMALL = ClusteringOptions(points=40, point_clusters=6, perplexity=5.0, restarts=2)


@pytest.fixture(scope="module")
def topics() -> tuple[np.ndarray, np.ndarray]:
    """90 rows around three directions, lengths at random, every seventh with a wrong label."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 30)
    rows = np.eye(8)[labels] + 0.15 * rng.normal(size=(90, 8))
    labels[::7] = (labels[::7] + 1) % 3
    return rows * rng.uniform(0.5, 4, size=(90, 1)), labels


def entropy(values: list[Any]) -> float:
    return -sum(n / len(values) * math.log(n / len(values)) for n in Counter(values).values())


def test_scores_by_their_definitions(topics: tuple[np.ndarray, np.ndarray]) -> None:
    rows, labels = topics
    scores = score_clusters(rows, labels, SMALL)
    found = kmeans(unit_rows(rows), 3, SMALL.restarts, SMALL.seed)
    pairs = list(zip(labels.tolist(), found.tolist(), strict=True))
    shared = entropy(labels.tolist()) + entropy(found.tolist()) - entropy(pairs)
    homogeneity, completeness = shared / entropy(labels.tolist()), shared / entropy(found.tolist())
    assert scores.homogeneity == pytest.approx(100 * homogeneity)
    assert scores.completeness == pytest.approx(100 * completeness)
    assert scores.v_measure == pytest.approx(200 * homogeneity * completeness / (homogeneity + completeness))
    best = max(sum(label == match[cluster] for label, cluster in pairs) for match in permutations(range(3)))
    assert scores.accuracy == pytest.approx(100 * best / 90) and 80 < scores.accuracy < 90
    assert (scores.titles, scores.labels, scores.clusters) == (90, 3, 3)
    head, rows = scores.table()
    assert ["accuracy, clusters matched (K = 3)", f"{scores.accuracy:.2f}"] in rows
    assert all(len(row) == len(head) for row in rows)


def test_the_silhouette_by_its_definition(topics: tuple[np.ndarray, np.ndarray]) -> None:
    rows, labels = topics
    scores = score_clusters(rows, labels, ClusteringOptions(points=90, point_clusters=6, perplexity=5.0, restarts=2))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    values = []
    for i in range(90):
        far = {c: [1 - unit[i] @ unit[j] for j in range(90) if labels[j] == c and j != i] for c in range(3)}
        own, other = np.mean(far[labels[i]]), min(np.mean(far[c]) for c in range(3) if c != labels[i])
        values.append((other - own) / max(own, other))
    assert scores.silhouette == pytest.approx(np.mean(values), abs=1e-5)
    alone = score_clusters(rows, np.arange(90), ClusteringOptions(points=40, point_clusters=6, perplexity=5.0))
    assert alone.silhouette is None


@pytest.mark.parametrize("clusters", [2, 3, 5])
def test_matched_accuracy_tries_every_matching(clusters: int) -> None:
    rng = np.random.default_rng(clusters)
    labels, found = rng.integers(0, 4, 60), rng.integers(10, 10 + clusters, 60)
    names = [*range(10, 10 + clusters), *[None] * 4]  # a label may stay without a cluster
    best = max(
        sum(match[label] == cluster for label, cluster in zip(labels, found, strict=True))
        for match in set(permutations(names, 4))
    )
    assert matched_accuracy(labels, found) == pytest.approx(best / 60)
    with pytest.raises(ValueError, match=r"must be \(N,\) both"):
        matched_accuracy(labels, found[:5])


def test_a_seed_gives_the_same_digits_and_leaves_the_global_state(topics: tuple[np.ndarray, np.ndarray]) -> None:
    rows, labels = topics
    before = np.random.get_state()[1].copy()
    first, second = score_clusters(rows, labels, SMALL), score_clusters(rows, labels, SMALL)
    assert np.array_equal(np.random.get_state()[1], before)
    assert first.to_dict() == second.to_dict()
    assert first.map is not None
    assert second.map is not None
    assert np.array_equal(first.map.points, second.map.points) and first.map.points.shape == (40, 2)
    assert set(first.map.clusters) <= set(range(6))
    other = score_clusters(rows, labels, ClusteringOptions(**{**vars(SMALL), "seed": 7}))
    assert other.map is not None and not np.array_equal(other.map.labels, first.map.labels)
    longer = score_clusters(rows * 3, labels, SMALL)  # lengths do not count
    assert longer.v_measure == first.v_measure


def test_a_map_survives_its_results_file(topics: tuple[np.ndarray, np.ndarray]) -> None:
    scores = score_clusters(*topics, SMALL)
    content = scores.to_dict()["map"]
    again = TopicMap.from_dict(content)
    assert scores.map is not None
    np.testing.assert_allclose(again.points, scores.map.points, atol=0.005001)
    assert np.array_equal(again.labels, scores.map.labels) and np.array_equal(again.clusters, scores.map.clusters)
    assert content["clusters"] == 6 and again.names == clustering.LABELS
    assert "map" not in score_clusters(*topics, ClusteringOptions(points=0)).to_dict()
    with pytest.raises(ValueError, match="points 'x y label cluster'"):
        TopicMap.from_dict({"names": [], "points": ["1 2 3"]})


@pytest.fixture
def titles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(clustering, "TITLES", 60)
    folder = tmp_path / "stackoverflow"
    folder.mkdir()
    rows = [f"{clustering.LABELS[i % 3]}  title {i}" for i in range(60)]
    (folder / "title_StackOverflow.txt").write_text("\n".join(rows) + "\n")
    (folder / "label_StackOverflow.txt").write_text("\n".join(str(i % 3 + 1) for i in range(60)) + "\n")
    return folder


def test_the_suite_reads_encodes_and_clusters(titles: Path) -> None:
    def encoder(texts: list[str]) -> np.ndarray:
        return np.array(
            [[text.startswith(name) + len(text) / 1e4 for name in clustering.LABELS[:3]] for text in texts]
        )

    scores = clustering_suite(encoder, titles.parent, SMALL)
    assert scores.v_measure == scores.accuracy == 100
    assert scores.labels == 3
    assert len(scores.checksum) == 64
    (titles.parent / "senteval").mkdir()
    found, labels = load_stackoverflow(titles.parent / "senteval")  # stands beside
    assert found[1] == "oracle title 1" and labels[:4].tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("file", "line", "text", "message"),
    [
        ("label", None, "", r"label_StackOverflow.txt: expected 60 lines, found 59"),
        ("title", None, "", r"title_StackOverflow.txt: expected 60 lines, found 59"),
        ("label", 5, "21", r"label_StackOverflow.txt, line 6: must be a label from 1 to 20, got '21'"),
        ("title", 5, " ", r"title_StackOverflow.txt, line 6: must hold a title"),
    ],
)
def test_a_broken_file_is_named(titles: Path, file: str, line: int | None, text: str, message: str) -> None:
    path = titles / f"{file}_StackOverflow.txt"
    lines = path.read_text().splitlines()
    if line is None:
        lines = lines[:-1]
    else:
        lines[line] = text
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=message):
        load_stackoverflow(titles.parent)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"stackoverflow/title_StackOverflow.txt: no such file"):
        load_stackoverflow(tmp_path)
    for options, message in (
        ({"clusters": 1}, "clusters must be at least 2, got 1"),
        ({"restarts": 0}, "restarts must be at least 1, got 0"),
        ({"points": 20, "point_clusters": 5}, r"perplexity must lie between 0 and points \(20\), got 30"),
        ({"points": 40, "point_clusters": 41}, "points must be 0 or at least point_clusters"),
    ):
        with pytest.raises(ValueError, match=message):
            ClusteringOptions(**options)
    with pytest.raises(ValueError, match="clusters must be at most the 3 rows, got 4"):
        kmeans(np.eye(3), 4)


@pytest.mark.data
def test_the_real_set(data_dir: Path) -> None:
    if not (data_dir / "stackoverflow").is_dir():
        pytest.skip("needs stackoverflow/")
    found, labels = load_stackoverflow(data_dir)
    assert Counter(labels.tolist()) == dict.fromkeys(range(20), 1000) and len(set(found)) == 19_985
    assert "LINQ" in found[0] and clustering.LABELS[labels[0]] == "linq"
