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
    rows = {
        "base": {"title": "Base"},
        "msse": {"title": "MSSE", "dev": {"n": 2}, "test": {"Avg": {"mean": 71.5, "std": 0.25, "n": 2}}},
        "waits": {"title": "Waits"},
    }
    margins = {"rows": {"msse": {"base": {"mean": 1.25, "std": 0.5, "n": 2}}}}
    write(tmp_path / "plan/summary.json", {"experiments": rows, "margins": margins, "tables": {}})
    return tmp_path


def test_each_rate_has_its_best_point_and_the_choice_its_long_runs(results: Path) -> None:
    caption, _, head, _, *rows = render("plan/grid", results).splitlines()
    assert "2 seeds" in caption
    assert "| dev at 1e-5 | dev at 1e-4 |" in head
    assert rows == [
        "| MSSE | 70.00 | 75.25 | 1e-4, dcm_weight 0.2 | 0.02: 74.50; 0.2: 75.25 | 76.50 | 420, 430 | 71.50 ± 0.25 | "
        "+1.25 ± 0.50 over Base |",
        "| Waits | 70.00 | 75.25 | 1e-4, dcm_weight 0.2 | 0.02: 74.50; 0.2: 75.25 | – | – | – |  |",
    ]


def test_a_plan_without_a_grid_has_no_such_table(results: Path) -> None:
    write(results / "none/summary.json", {"experiments": {"base": {"title": "Base"}}, "tables": {}})
    with pytest.raises((TableError, ValueError), match="no grid trial"):
        render("none/grid", results)
