"""Figures of trainings hold what they are given; pictures hold what the results files say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csekit.evaluation import write_results
from csekit.evaluation.clustering import LABELS, TopicMap
from csekit.evaluation.pictures import alignment_uniformity, cosine_by_rating
from csekit.evaluation.pictures import draw as draw_spaces
from experiments.pictures import drawings as pictures
from experiments.pictures import figures as training_figures
from experiments.pictures.figures import Ablation
from experiments.tables.geometry import NoResults, clustering_table, geometry_table

RNG = np.random.default_rng(0)
GOLD = np.linspace(0, 5, 60)
COSINES = np.clip(GOLD / 6 + RNG.normal(0, 0.1, 60), -1, 1)


def topic_map(seed: int = 0) -> TopicMap:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(20), 6)
    middles = np.array([(40 * (i % 4), 20 * (i // 4)) for i in range(20)], dtype=float)
    return TopicMap(middles[labels] + rng.normal(size=(120, 2)), labels, labels // 2, LABELS)


def test_traces_have_a_line_for_each_run() -> None:
    rows = [{"step": s, "alignment": 0.1 * s, "uniformity": -s} for s in (0, 10, 20)]
    figure = training_figures.training_traces({"a": rows, "b": rows[:2]}, {"alignment": "A", "uniformity": "U"})
    np.testing.assert_allclose(figure.axes[1].lines[0].get_xydata(), [[0, 0], [10, -10], [20, -20]])
    assert [len(line.get_xdata()) for line in figure.axes[0].lines] == [3, 2]


def test_differences_are_bars_of_the_mean_with_whiskers_of_the_deviation() -> None:
    given = {"x": {"STS12": [1.0, 3.0], "Avg": [0.5, 0.5]}, "y": {"STS12": [-1.0, -1.0], "Avg": [2.0, 4.0]}}
    (axis,) = training_figures.task_differences(given, "base").axes
    bars = [[bar.get_height() for bar in group] for group in axis.containers if hasattr(group, "patches")]
    assert bars == [[2.0, 0.5], [-1.0, 3.0]]
    assert "base" in axis.get_ylabel()
    whiskers = axis.containers[1].errorbar or axis.containers[0]
    spans = [segment[:, 1] for segment in whiskers.lines[2][0].get_segments()]
    assert spans[0] == pytest.approx([2 - np.sqrt(2), 2 + np.sqrt(2)])


def test_ablations_are_bars_from_the_reference_row() -> None:
    table = Ablation("weight", ["low", "reference", "high"], [70.0, 69.5, None], [75.0, 77.0, 76.5], reference=1)
    (axis,) = training_figures.ablation_bars([table]).axes
    assert [[bar.get_width() for bar in group] for group in axis.containers] == [[0.5, 0.0], [-2.0, 0.0, -0.5]]
    assert {text.get_text() for text in axis.texts} == {"70.00", "69.50", "75.00", "77.00", "76.50"}
    with pytest.raises(ValueError, match="'weight': the reference row 'low' has no score"):
        training_figures.ablation_bars([Ablation("weight", ["low"], [None], [1.0])])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two encoders measured, and a plan with three seeds and a table."""
    folder = tmp_path / "results"
    for name, spearman in (("good", 70.0), ("bad", 50.0)):
        geometry = {"set": "STS-B test", "threshold": 4.0, "text_form": "tokenized", "positives": 12, "sentences": 100}
        geometry |= {"alignment": 0.25, "uniformity": -2.5, "mean_cosine": 0.125, "effective_rank": 31.26}
        clustering = {"set": "StackOverflow", "titles": 20000, "labels": 20, "clusters": 20, "restarts": 5, "seed": 42}
        clustering |= {"checksum": "0", "v_measure": 31.4, "homogeneity": 30.0, "completeness": 33.0, "accuracy": 41.0}
        content = {"title": name, "geometry": {**geometry, "spearman": spearman}}
        content |= {"clustering": {**clustering, "map": {"clusters": 10, **topic_map().to_dict()}}}
        write_results(folder / "evaluation/geometry" / f"{name}.json", content, {"STS-B test": (COSINES, GOLD)})
    ran = {"seeds": [1, 2, 3], "finished_seeds": [1, 2, 3]}
    experiments: dict[str, Any] = {"base": {"title": "Base", **ran}, "other": {"title": "Other", **ran}}
    experiments["listed"] = {"title": "Listed", "seeds": [1], "trials": {"low": 60.0, "reference": 61.0}}
    rows = [{"label": 1, "trial": "listed/low", "paper": 70.0}, {"label": 2, "trial": "listed/reference", "paper": 71}]
    tables = {"weight": {"title": "Weight", "rows": rows}, "curves": {"title": "C", "curves": []}}
    plan = folder / "equal-terms"
    for name, base in (("base", 50.0), ("other", 52.0)):
        (plan / name).mkdir(parents=True)
        for seed in (1, 2, 3):
            scores = {task: {"all": base + seed + (name == "other") * seed} for task in ("SICK-R", "STS12")}
            test = {"tasks": scores, "avg": base + seed}
            record = {"seed": seed, "trial": {"kind": "final"}, "test": test}
            (plan / name / f"seed={seed}.json").write_text(json.dumps(record))
    summary = {"plan": "equal-terms", "baseline": "base", "experiments": experiments, "tables": tables}
    (plan / "summary.json").write_text(json.dumps(summary))
    return folder


def test_pictures_come_from_results_files(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, missing = pictures.draw(results, tmp_path / "out")
    names = {"scores", "cosine-by-rating", "alignment-uniformity", "tsne-clusters", "tsne-labels", "task-differences"}
    assert {path.stem for path in written} == names | {"equal-terms"}
    traces = {"training-traces", "papers-msse-traces"}
    assert missing.keys() == traces | {
        "backbone",
        "backbone-gpu",
        "equal-scores",
        "few-shot",
        "field-scores",
        "labelled-clusters",
        "labelled-labels",
    }
    assert "run experiments/run_seeds.py" in missing["few-shot"]
    assert "run csekit geometry --labelled FILE first" in missing["labelled-labels"]
    assert all(path.stat().st_size < 300_000 for path in written)

    scatter = alignment_uniformity(results).axes[0]
    assert [text.get_text() for text in scatter.texts] == ["bad: 50.0", "good: 70.0"]
    assert cosine_by_rating(results).axes[1].get_title() == "good"
    seen: dict[str, Any] = {}
    monkeypatch.setattr(training_figures, "task_differences", lambda given, base: seen.update(given, base=base))
    pictures.task_differences(results)
    assert seen == {"base": "Base", "Other": {"STS12": [3.0, 4.0, 5.0], "SICK-R": [3.0, 4.0, 5.0], "Avg": [2.0] * 3}}
    assert list(seen["Other"]) == ["STS12", "SICK-R", "Avg"]
    monkeypatch.setattr(training_figures, "ablation_bars", lambda tables: seen.update(tables=tables))
    pictures.ablations(results, "equal-terms")
    assert seen["tables"] == [Ablation("Weight", ["1", "2"], [60.0, 61.0], [70.0, 71], 1)]


def test_pictures_come_from_a_plans_records_too(results: Path, tmp_path: Path) -> None:
    """As ``csekit figures --results experiments/results/papers-msse/clusters`` draws them."""
    (results / "evaluation" / "geometry").rename(tmp_path / "clusters")
    (tmp_path / "clusters" / "summary.json").write_text("{}")
    written, _ = draw_spaces(tmp_path / "clusters", tmp_path / "out", ["tsne-clusters", "cosine-by-rating"])
    assert {path.stem for path in written} == {"tsne-clusters", "cosine-by-rating"}
    assert cosine_by_rating(tmp_path / "clusters").axes[1].get_title() == "good"


def test_scores_are_a_row_a_method_and_a_dot_a_seed(results: Path) -> None:
    axis = pictures.scores(results).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["Base", "Other"]  # the best on top
    dots = [line.get_xdata() for line in axis.lines if line.get_marker() == "o"]
    assert [list(row) for row in dots] == [[51.0, 52.0, 53.0], [53.0, 54.0, 55.0]]
    assert [text.get_text() for text in axis.texts] == ["52.00", "54.00"]
    spreads = [list(line.get_xdata()) for line in axis.lines if line.get_marker() != "o"][::2]
    assert spreads == [[51.0, 53.0], [53.0, 55.0]]  # one deviation to either side
    summary = json.loads((results / "equal-terms" / "summary.json").read_text())
    summary["experiments"]["untrained"] = {"title": "Untrained", "test": {"Avg": {"mean": 40.0}}}
    (results / "equal-terms" / "summary.json").write_text(json.dumps(summary))
    axis = pictures.scores(results).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["Untrained", "Base", "Other"]
    summary["experiments"]["other"]["measured_in"] = "elsewhere"
    (results / "equal-terms" / "summary.json").write_text(json.dumps(summary))
    (results / "elsewhere").mkdir()
    (results / "equal-terms" / "other").rename(results / "elsewhere" / "other")
    axis = pictures.scores(results).axes[0]
    assert [list(line.get_xdata()) for line in axis.lines if line.get_marker() == "o"][-1] == [53.0, 54.0, 55.0]
    pictures.task_differences(results, "equal-terms")  # raises where Other has no seed in common with the baseline


def test_the_field_has_a_picture_of_its_own(results: Path) -> None:
    (results / "equal-terms").rename(results / "field")
    path = results / "field" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "plan": "field"}))
    axis = pictures.pictures(results)["field-scores"](results).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["Base", "Other"]


def test_traces_come_from_the_evaluations_of_a_run(results: Path) -> None:
    values = {"geometry/uniformity": -2.0, "geometry/mean_cosine": 0.5, "geometry/effective_rank": 30.0}
    history = [{"step": s, "uniformity": 9.0, "geometry/alignment": 0.01 * s, **values} for s in (0, 20, 40)]
    record = {"dev": {"history": [*history, {"step": 60, "uniformity": 9.0}]}, "log": []}
    plan = results / "geometry-traces"
    write_results(plan / "simcse" / "run.json", record)
    experiment = {"title": "SimCSE", "seeds": [42], "trials": {"run": 70.0}}
    (plan / "summary.json").write_text(json.dumps({"experiments": {"simcse": experiment}, "tables": {}}))
    axis = pictures.training_traces(results).axes[0]
    assert [line.get_label() for line in axis.lines] == ["SimCSE"]
    np.testing.assert_allclose(axis.lines[0].get_xydata(), [[0, 0], [20, 0.2], [40, 0.4]])
    write_results(plan / "simcse" / "run.json", {"dev": {"history": []}}, overwrite=True)
    with pytest.raises(NoResults, match="no run logged its geometry"):
        pictures.training_traces(results)


def test_tables_of_the_same_files(results: Path) -> None:
    caption, head, body = geometry_table(results)
    assert "the 12 pairs with a gold score above 4" in caption and "100 distinct sentences" in caption
    assert body == [
        ["bad", "0.250", "-2.500", "0.125", "31.3", "50.00"],
        ["good", "0.250", "-2.500", "0.125", "31.3", "70.00"],
    ]
    assert len(head) == 6
    caption, head, body = clustering_table(results)
    assert "20,000 titles" in caption and body[0] == ["bad", "31.40", "30.00", "33.00", "41.00"]
    path = results / "evaluation/geometry/bad.json"
    content = json.loads(path.read_text())
    content["geometry"]["threshold"] = 3.0
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"geometry results must share one threshold, got 3.0 and 4.0"):
        geometry_table(results)
    content["geometry"]["set"] = "STS-B dev"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="of one set to share a picture, got STS-B dev and STS-B test"):
        cosine_by_rating(results)


def test_what_cannot_be_drawn_is_said(results: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pictures must be among scores, .*, equal-terms, got 'violins'"):
        pictures.draw(results, tmp_path, ["violins"])
    with pytest.raises(NoResults, match=r"few-shot/summary.json: no such file"):
        pictures.draw(results, tmp_path, ["few-shot"])
    with pytest.raises(NoResults, match="results must be a folder"):
        pictures.draw(tmp_path / "nowhere", tmp_path)


def test_pictures_hold_the_runs_that_the_summary_counts(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of a plan's seeds or arguments they showed earlier runs, which its table does not have."""
    path = results / "equal-terms/summary.json"
    summary = json.loads(path.read_text())
    summary["experiments"]["other"]["finished_seeds"] = [2]
    path.write_text(json.dumps(summary))
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(training_figures, "score_dots", lambda scores, unit: drawn.update(scores))
    pictures.scores(results)
    assert drawn == {"Base": [51.0, 52.0, 53.0], "Other": [54.0]}
