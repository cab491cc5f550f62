"""The geometry of an encoder on STS-B: against loops, on small files in SentEval's layout."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csekit.evaluation import sts_data
from csekit.evaluation.geometry_scores import (
    GeometryOptions,
    cosines_by_rating,
    geometry_suite,
    rating_groups,
)

GOLD = [0.0, 0.8, 1.0, 2.5, 3.0, 4.0, 4.2, 4.999, 5.0, 5.0]


def encoder(texts: list[str]) -> np.ndarray:
    """A vector by the letters of a text; the same text gives the same one."""
    rows = [np.random.default_rng(sum(map(ord, text))).normal(size=6) + 0.4 for text in texts]
    return np.array(rows, dtype=np.float32)


@pytest.fixture
def stsb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sts_data, "COUNTS", {"STS-B": {"test": 10}, "STS-B-dev": {"dev": 10}})
    folder = tmp_path / "senteval/STS/STSBenchmark"
    folder.mkdir(parents=True)
    for split, word in (("test", "t"), ("dev", "d")):
        lines = [f"a\tb\tc\t{i}\t{score}\t{word} {i}\t{word} {3 * i % 7}" for i, score in enumerate(GOLD)]
        (folder / f"sts-{split}.csv").write_text("\n".join(lines))
    return tmp_path


def test_scores_with_loops(stsb: Path) -> None:
    scores = geometry_suite(encoder, stsb, GeometryOptions(threshold=4.0))
    texts = sorted({f"t {i}" for i in range(10)} | {f"t {3 * i % 7}" for i in range(10)})
    rows = {text: encoder([text])[0].astype(np.float64) for text in texts}
    unit = {text: row / math.sqrt(sum(v * v for v in row)) for text, row in rows.items()}
    sides = [(unit[f"t {i}"], unit[f"t {3 * i % 7}"]) for i in range(10)]
    near = [sum((a - b) ** 2) for (a, b), gold in zip(sides, GOLD, strict=True) if gold > 4]
    apart = [(unit[a], unit[b]) for a in texts for b in texts if a != b]
    assert scores.positives == len(near) == 4 and scores.sentences == len(texts)
    assert scores.alignment == pytest.approx(sum(near) / len(near), abs=1e-6)
    kernel = [math.exp(-2 * sum((a - b) ** 2)) for a, b in apart]
    assert scores.uniformity == pytest.approx(math.log(sum(kernel) / len(kernel)), abs=1e-6)
    assert scores.mean_cosine == pytest.approx(sum(float(a @ b) for a, b in apart) / len(apart), abs=1e-6)
    shares = np.linalg.svd(np.stack(list(rows.values())), compute_uv=False)
    shares /= shares.sum()
    assert scores.effective_rank == pytest.approx(math.exp(-sum(s * math.log(s) for s in shares)), abs=1e-5)
    np.testing.assert_allclose(scores.cosines, [float(a @ b) for a, b in sides], atol=1e-6)
    assert scores.similarities()["STS-B test"][1].tolist() == GOLD


def test_ratings_are_half_open_but_for_the_last(stsb: Path) -> None:
    assert [list(places) for places in rating_groups(np.array(GOLD))] == [[0, 1], [2], [3], [4], [5, 6, 7, 8, 9]]
    scores = geometry_suite(encoder, stsb)
    assert [row["n"] for row in scores.ratings] == [2, 1, 1, 1, 5]
    last = scores.cosines[5:].astype(np.float64)
    row = scores.ratings[-1]
    assert row["mean"] == pytest.approx(sum(last) / 5)
    assert row["std"] == pytest.approx(math.sqrt(sum((last - sum(last) / 5) ** 2) / 5))
    assert row["quantiles"]["50"] == pytest.approx(sorted(last)[2])
    empty = cosines_by_rating(np.array([0.5]), np.array([4.5]))
    assert empty[0] == {"from": 0.0, "to": 1.0, "n": 0, "mean": None, "std": None, "quantiles": None}
    with pytest.raises(ValueError, match=r"gold scores must lie between 0 and 5, got 5.5"):
        rating_groups(np.array([1.0, 5.5]))


def test_split_and_threshold_are_options(stsb: Path) -> None:
    dev = geometry_suite(encoder, stsb, GeometryOptions(split="dev", threshold=4.9))
    assert dev.positives == 3 and dev.to_dict()["set"] == "STS-B dev"
    assert dev.checksum != geometry_suite(encoder, stsb).checksum
    head, rows = dev.table()
    assert all(len(row) == len(head) == 3 for row in rows)
    assert rows[0] == ["alignment", "3 pairs", f"{dev.alignment:.3f}"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "train"}, "split must be 'test' or 'dev', got 'train'"),
        ({"text_form": "lower"}, "text_form must be 'tokenized' or 'raw', got 'lower'"),
        ({"edges": (0, 2, 1)}, "edges must be at least two ascending numbers"),
        ({"threshold": 5}, "threshold must leave pairs above it, got 5: the highest score of test is 5"),
    ],
)
def test_what_cannot_be_measured_is_refused(stsb: Path, options: dict[str, Any], message: str) -> None:
    def never(texts: list[str]) -> np.ndarray:
        raise AssertionError("nothing is to be encoded")

    with pytest.raises(ValueError, match=message):
        geometry_suite(never, stsb, GeometryOptions(**options))


@pytest.mark.data
def test_the_real_positives(data_dir: Path) -> None:
    def random(texts: list[str]) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(len(texts), 4))

    scores = geometry_suite(random, data_dir)
    assert (scores.positives, scores.sentences, len(scores.cosines)) == (231, 2551, 1379)


def test_an_encoder_with_one_vector_has_readable_results_and_pictures(stsb: Path, tmp_path: Path) -> None:
    """Its file was refused for the missing Spearman; the map of equal rows ended the process."""
    from csekit.evaluation.pictures import draw, geometry_files
    from csekit.evaluation.results import read_results, write_results

    def write(name: str, function: Any) -> None:
        scores = geometry_suite(function, stsb)
        content = {"title": name, "geometry": scores.to_dict()}
        write_results(tmp_path / "results" / f"{name}.json", content, scores.similarities())

    (tmp_path / "results").mkdir()
    write("usual", encoder)
    write("one", lambda texts: np.eye(6, dtype=np.float32)[[0] * len(texts)])
    assert read_results(tmp_path / "results/one.json")["geometry"]["spearman"] is None
    titles = [content["title"] for content in geometry_files(tmp_path / "results").values()]
    assert titles == ["one", "usual"]
    pytest.importorskip("matplotlib")
    written, _ = draw(tmp_path / "results", tmp_path / "pictures", ["cosine-by-rating", "alignment-uniformity"])
    assert len(written) == 2


def test_the_map_of_equal_rows_is_one_point() -> None:
    from csekit.evaluation.clustering import ClusteringOptions, score_clusters

    options = ClusteringOptions(points=40, point_clusters=2)
    with pytest.warns(Warning, match="distinct clusters"):
        scores = score_clusters(np.eye(6)[[0] * 40], np.arange(40) % 2, options, names=("a", "b"))
    assert scores.map is not None and not scores.map.points.any()
