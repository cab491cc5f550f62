"""Plans that choose among named settings, and pictures drawn from what the runner recorded."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.pictures import drawings as pictures
from experiments.pictures import figures as training_figures
from experiments.pictures.__main__ import main as draw_pictures
from experiments.plan import Plan
from experiments.tables.render import ablation_table
from experiments.trial import PlanError


@pytest.fixture
def named(bench: Any) -> Any:
    """Two settings with a learning rate of their own, one also with another argument."""
    settings = {"low": {"learning_rate": 1e-5, "dropout": 0.2}, "high": {"learning_rate": 1e-4}}
    bench.plan |= {"grid": {}, "grid_steps": None, "seeds": [42, 43]}
    bench.plan["arguments"]["learning_rate"] = 3e-5
    bench.plan["experiments"] = {"one": {"title": "One"}, "search": {"title": "The best", "grid": settings}}
    rows = [{"label": "low", "trial": "search/low"}, {"label": "high", "trial": "search/high"}]
    bench.plan["tables"] = {"search": {"title": "Settings", "column": "setting", "rows": rows}}
    return bench


def test_the_best_named_setting_is_run_over_the_seeds(named: Any) -> None:
    assert named.run() == 0
    summary = named.summary()
    search = summary["experiments"]["search"]
    # the stand-in's dev score falls and its test score rises with the learning rate
    assert search["selected"]["trial"] == "low" and search["grid"].keys() == {"low", "high"}
    assert search["selected"]["values"] == {"learning_rate": "1e-05", "dropout": "0.2"}
    assert search["finished_seeds"] == [42, 43] and search["test"]["Avg"]["n"] == 2
    final = named.record("search/seed=43")["trial"]
    assert final["kind"] == "final" and final["arguments"]["dropout"] == "0.2"
    runs = ("one/seed=42", "one/seed=43", "search/low", "search/high", "search/seed=42", "search/seed=43")
    assert named.starts() == dict.fromkeys(runs, 1)
    assert search["p_value"] is not None
    table = ablation_table(summary, "search")
    assert "| low | 79.90 |" in table and "| high | 79.00 |" in table
    calls = named.calls()
    assert named.run() == 0 and named.calls() == calls


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"low": {"learning_rate": 1e-5}, "dropout": [0.1]}, "grid.dropout must be a mapping of arguments, got"),
        ({"low": {}, "high": {"dropout": 0.1}}, "grid.low must be a mapping of arguments, got {}"),
        ({"a/b": {"dropout": 0.1}}, "experiments.search.grid must be letters, digits"),
        ({"dropout": []}, r"grid.dropout must be a list of values, got \[\]"),
    ],
)
def test_a_grid_is_lists_or_named_settings(named: Any, grid: dict[str, Any], message: str) -> None:
    named.plan["experiments"]["search"]["grid"] = grid
    with pytest.raises(PlanError, match=message):
        Plan.from_dict(named.plan)


def test_a_grid_may_leave_an_argument_out(bench: Any) -> None:
    """A value null, chosen, ended the call in a KeyError after all points had run, and every later call as well."""
    bench.plan["experiments"] = {"one": {"grid": {"dropout": [None, 0.2], "learning_rate": [1e-5]}}}
    bench.plan["arguments"]["dropout"], bench.plan["seeds"] = 0.3, [42]
    assert bench.run() == 0
    assert bench.summary()["experiments"]["one"]["selected"]["values"] == {"dropout": None, "learning_rate": "1e-05"}
    assert "dropout" not in bench.record("one/seed=42")["trial"]["arguments"]


def test_few_shot_curves_come_from_the_runners_records(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    shares = {"simcse-0.01": ("SimCSE, 1 %", 0.01, 1e-4), "simcse-0.1": ("SimCSE, 10 %", 0.1, 2e-4)}
    shares |= {"msse-0.01": ("MSSE, 1 %", 0.01, 3e-4)}
    bench.plan |= {"name": "few-shot", "grid": {}, "baseline": "simcse-0.1", "seeds": [42, 43]}
    bench.plan["experiments"] = {
        name: {"title": title, "arguments": {"share": share, "learning_rate": rate}}
        for name, (title, share, rate) in shares.items()
    }
    assert bench.run() == 0
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(training_figures, "few_shot_curves", lambda curves: drawn.update(curves))
    pictures.few_shot(bench.results)
    # the stand-in scores 50 + 10,000 learning rates + place of the task + (seed - 42)²
    expected = {"SimCSE": {10: [54.0, 55.0], 100: [55.0, 56.0]}, "MSSE": {10: [56.0, 57.0]}}
    assert {method: {x: pytest.approx(y) for x, y in curve.items()} for method, curve in drawn.items()} == expected

    monkeypatch.undo()
    figure = pictures.few_shot(bench.results)
    (axis,) = figure.axes
    lines = {line.get_label(): line for line in axis.lines if not str(line.get_label()).startswith("_")}
    np.testing.assert_allclose(lines["SimCSE"].get_xydata(), [[10, 54.5], [100, 55.5]])
    assert axis.get_xscale() == "log" and [label.get_text() for label in axis.get_xticklabels()] == ["10", "100"]
    band = axis.collections[list(lines).index("SimCSE")].get_paths()[0].vertices
    spread = np.std([54.0, 55.0], ddof=1)
    np.testing.assert_allclose([band[:, 1].min(), band[:, 1].max()], [54.5 - spread, 55.5 + spread])

    command = ["few-shot", "--results", str(bench.results), "--output", str(tmp_path / "pictures")]
    assert draw_pictures(command) == 0
    assert (tmp_path / "pictures" / "few-shot.png").read_bytes().startswith(b"\x89PNG")
    for path in bench.results.rglob("seed=*.json"):  # runs without test scores
        path.write_text(json.dumps(json.loads(path.read_text()) | {"test": None}))
    assert draw_pictures(command) == 2
    assert "no run has test scores yet" in capsys.readouterr().err
