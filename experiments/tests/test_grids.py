"""The table of a plan's grids is read from its records."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.tables.render import TableError, render

#: learning rate, dropout, weight, dev score
POINTS = [(1e-5, 0.1, 0.2, 70.0), (1e-4, 0.1, 0.02, 74.5), (1e-4, 0.1, 0.2, 75.25), (1e-4, 0.2, 0.2, 73.0)]


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A searched row with two seeds, one without any, and a row without a grid."""
    for rate, dropout, weight, score in POINTS:
        given = {"learning_rate": str(rate), "dropout": str(dropout), "dcm_weight": str(weight), "icm_weight": "0.2"}
        for name in ("msse", "waits"):
            point = {"trial": {"kind": "grid", "arguments": given}, "dev": {"best": score, "step": 25}}
            write(tmp_path / f"plan/{name}/{rate}-{dropout}-{weight}.json", point)
    for seed, score in ((42, 76.0), (43, 77.0)):
        record = {"trial": {"kind": "final", "arguments": {}}, "dev": {"best": score, "step": 10 * seed}}
        write(tmp_path / f"plan/msse/seed={seed}.json", record)
    selected, dev = {"trial": "0.0001-0.1-0.2"}, {"mean": 76.5, "std": 0.5, "n": 2}
    rows = {
        "base": {"title": "Base", "selected": {"trial": "0.0001"}},
        "msse": {
            "title": "MSSE",
            "selected": selected,
            "finished_seeds": [42, 43],
            "dev": dev,
            "test": {"Avg": {"mean": 71.5, "std": 0.25, "n": 2}},
        },
        "waits": {"title": "Waits", "selected": selected},
    }
    margins = {"rows": {"msse": {"base": {"mean": 1.25, "std": 0.5, "n": 2}}}}
    write(tmp_path / "plan/summary.json", {"experiments": rows, "margins": margins, "tables": {}})
    return tmp_path


def test_each_rate_has_its_best_point_and_the_choice_its_long_runs(results: Path) -> None:
    caption, _, head, _, *rows = render("plan/grid", results).splitlines()
    assert "over 2 seeds" in caption
    chosen = "70.00 | 75.25 | 1e-4, dcm_weight 0.2, dropout 0.1 | 0.02: 74.50; 0.2: 75.25"
    assert "| dev at 1e-5 | dev at 1e-4 |" in head
    assert rows == [
        f"| MSSE | {chosen} | 76.50 ± 0.50 | 420, 430 | 71.50 ± 0.25 | +1.25 ± 0.50 over Base |",
        f"| Waits | {chosen} | – | – | – |  |",
    ]


def test_a_grid_of_combinations_names_its_points(results: Path) -> None:
    for name, weights, score in (("pair", {"dcm_weight": "0.2"}, 75.0), ("other", {"triplet_weight": "0.1"}, 74.0)):
        point = {
            "trial": {"kind": "grid", "arguments": {"learning_rate": "0.0001", **weights}},
            "dev": {"best": score},
        }
        write(results / f"plan/mixed/{name}.json", point)
    summary = json.loads((results / "plan/summary.json").read_text())
    summary["experiments"]["mixed"] = {"title": "Mixed", "selected": {"trial": "pair"}}
    write(results / "plan/summary.json", summary)
    (row,) = [line for line in render("plan/grid", results).splitlines() if line.startswith("| Mixed")]
    assert row == "| Mixed | – | 75.00 | 1e-4, pair | other: 74.00; pair: 75.00 | – | – | – |  |"


def test_each_point_has_its_gap_beside_its_margin_over_the_base(results: Path) -> None:
    """The last three log entries count; a point of dropout 0.2 stays out."""
    for place, gap in enumerate((9.0, 0.5, 0.25, 0.75)):
        entry = {"metrics/aux_mlm_gap": gap, "metrics/aux_mlm_accuracy": 0.3, "step": place}
        for path in (results / "plan/msse").glob("[01]*.json"):
            record = json.loads(path.read_text())
            write(path, record | {"log": [*record.get("log", []), entry]})
    for rate, score in ((1e-5, 69.0), (1e-4, 75.0)):
        arguments = {"learning_rate": str(rate), "dropout": "0.1"}
        point = {"trial": {"kind": "grid", "arguments": arguments}, "dev": {"best": score, "step": 25}, "log": []}
        write(results / f"plan/base/{rate}.json", point)
    summary = json.loads((results / "plan/summary.json").read_text())
    write(results / "plan/summary.json", summary | {"margins": {"against": {"msse": "base"}, "rows": {}}})
    _, _, _, _, *rows = render("plan/gaps", results).splitlines()
    assert rows == [
        "| MSSE | 1e-5 | 0.2 | 0.5000 | 30 % | 70.00 | +1.00 over Base |",
        "| MSSE | 1e-4 | 0.02 | 0.5000 | 30 % | 74.50 | -0.50 over Base |",
        "| MSSE | 1e-4 | 0.2 | 0.5000 | 30 % | 75.25 | +0.25 over Base |",
    ]


def test_a_plan_without_a_grid_has_no_such_table(results: Path) -> None:
    write(results / "none/summary.json", {"experiments": {"base": {"title": "Base"}}, "tables": {}})
    with pytest.raises((TableError, ValueError), match="no grid trial"):
        render("none/grid", results)


def test_points_and_runs_of_an_earlier_plan_are_left_out(results: Path) -> None:
    """After a change of the plan the table showed scores of points and seeds that the summary does not count."""
    path = results / "plan/summary.json"
    summary = json.loads(path.read_text())
    found = {f"{rate}-{dropout}-{weight}": score for rate, dropout, weight, score in POINTS}
    found["0.0001-0.1-0.02"] = None  # refused: its record has other arguments
    del found["1e-05-0.1-0.2"]
    summary["experiments"]["msse"] |= {"grid": found, "finished_seeds": [43]}
    write(path, summary)
    (row,) = [line for line in render("plan/grid", results).splitlines() if line.startswith("| MSSE")]
    assert row.startswith("| MSSE | – | 75.25 | 1e-4, dropout 0.1 |")
    assert "| 430 |" in row
