"""The starts of the plan ``backbone``: read from its records, as a table and as a picture."""

import json
from pathlib import Path
from typing import Any

import pytest

from csekit.evaluation.pictures import NoResults
from experiments.pictures.drawings import backbone
from experiments.starts import read_starts
from experiments.tables.render import TableError, update


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def score(mean: float, n: int = 1) -> dict[str, Any]:
    return {"mean": mean, "std": 0.5 if n > 1 else None, "n": n}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two continuations; the second start has one trained row so far, and no untrained score."""
    folder = tmp_path / "backbone"
    losses = [(4.25, 0.30), (4.0, 0.35), (3.75, 0.40)]
    for place, steps in ((1, 1000), (2, 2000)):
        before, after = ({"mlm": loss, "mlm_accuracy": share} for loss, share in losses[place - 1 : place + 1])
        record = {"backbone": "a/mini", "steps": steps, "heldout": {"before": before, "after": after}}
        write(folder / f"continued-{place}" / f"mlm-{place}.json", record)
    for pooling, value in (("cls", 50.0), ("mean", 60.0)):
        write(folder / f"as-is-{pooling}" / "start.json", {"dev": {"tasks": {"STS-B-dev": {"all": value}}}})
    untrained = {"dev": {"tasks": {"STS-B-dev": {"all": 55.0}}}}
    write(folder / "untrained-cls" / "continued-1.mlm-1.json", untrained)
    rows = {
        "simcse": {"dev": score(70.0, 2), "test": {"Avg": score(71.0, 2)}},
        "simcse-1": {"dev": score(72.0), "test": {"Avg": score(73.0)}},
        "infocse-2": {"dev": score(74.0), "test": {"Avg": score(75.0)}},
        "diffcse-2": {"finished_seeds": []},  # not run yet
    }
    write(folder / "summary.json", {"experiments": rows})
    return tmp_path


def test_steps_add_up_and_every_start_has_its_own_scores(results: Path) -> None:
    starts = read_starts(results)
    assert [(start.steps, start.loss, start.accuracy) for start in starts] == [
        (0, 4.25, 0.30),
        (1000, 4.0, 0.35),
        (3000, 3.75, 0.40),
    ]
    assert [start.untrained for start in starts] == [{"cls": 50.0, "mean": 60.0}, {"cls": 55.0}, {}]
    assert [list(start.test) for start in starts] == [["simcse"], ["simcse"], ["infocse"]]


def test_the_table_has_a_row_for_each_start(results: Path) -> None:
    page = "<!-- table:backbone/starts -->\n\n<!-- end table -->"
    text = update(page, results)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert rows[0][:5] == [
        "masked LM, steps more",
        "loss",
        "accuracy",
        "untrained [CLS], dev",
        "untrained mean pooling, dev",
    ]
    assert rows[0][5:7] == ["SimCSE, dev", "SimCSE, Avg"]
    assert rows[2][:7] == ["0", "4.25", "30.0 %", "50.00", "60.00", "70.00 ± 0.50", "71.00 ± 0.50"]
    assert rows[3][:7] == ["1,000", "4.00", "35.0 %", "55.00", "–", "72.00", "73.00"]
    assert rows[4][:7] == ["3,000", "3.75", "40.0 %", "–", "–", "–", "–"] and rows[4][9:11] == ["74.00", "75.00"]
    assert "The masked LM mini" in text and "over 1 or 2 seeds" in text


def test_the_picture_has_a_point_for_each_score(results: Path) -> None:
    dev, test = backbone(results).axes
    points = {line.get_label(): line.get_xydata().tolist() for line in dev.get_lines()}
    assert points["untrained, [CLS]"] == [[4.25, 50.0], [4.0, 55.0]]
    assert points["SimCSE"] == [[4.25, 70.0], [4.0, 72.0]] and points["InfoCSE"] == [[3.75, 74.0]]
    assert {line.get_label() for line in test.get_lines()} == {"SimCSE", "InfoCSE"}
    assert dev.xaxis_inverted()  # the better language model stands on the right


def test_without_a_continuation_there_is_neither(results: Path) -> None:
    (results / "backbone" / "continued-1" / "mlm-1.json").unlink()
    with pytest.raises(NoResults, match=r"mlm-1.json: no such record"):
        backbone(results)
    with pytest.raises(TableError, match=r"mlm-1.json: no such record"):
        update("<!-- table:backbone/starts -->\n\n<!-- end table -->", results)
