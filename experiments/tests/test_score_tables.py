"""Tables of csekit eval's results files."""

from pathlib import Path
from typing import Any

import pytest

from csekit.evaluation.results import write_results
from csekit.evaluation.sts_data import STS_TASKS
from csekit.evaluation.transfer_data import TRANSFER_TASKS
from experiments.tables.render import TableError, render


def content(title: str, avg: float | None, mode: str = "test", sts: bool = True) -> dict[str, Any]:
    tasks = {
        name: {"accuracy": 70 + i, "seconds": {"embed": 9, "fit": 9, "embed_cpu": 2.4, "fit_cpu": 10.6}}
        for i, name in enumerate(TRANSFER_TASKS)
    }
    if avg is None:
        del tasks["SST2"]
    found = {"transfer": {"tasks": tasks, "avg": avg, "mode": mode, "seed": 1111}, "title": title}
    if sts:
        scores = {name: {"all": 60.125} for name in STS_TASKS}
        found["test"] = {"tasks": scores, "avg": avg, "text_form": "tokenized"}
    return {**found, "suites": {"transfer": {"environment": {"threads": 2}}}}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [content("high", 80), content("low", 61.5, sts=False), content("part", None), content("chosen", 9, "dev")]
    for i, row in enumerate(rows):
        write_results(tmp_path / f"evaluation/{i}.json", row)
    write_results(tmp_path / "evaluation/of-something-else.json", {"run": {}})
    return tmp_path


def test_transfer_rows_are_sorted_by_avg_and_dev_scores_stay_out(results: Path) -> None:
    caption, _, head, _, *rows = render("evaluation/transfer", results).splitlines()
    assert "seed 1111" in caption and head == "|  | MR | CR | SUBJ | MPQA | SST2 | TREC | MRPC | Avg |"
    assert [row.split(" | ")[0] for row in rows] == ["| low", "| high", "| part"]
    assert rows[0].endswith("| 75.00 | 76.00 | 61.50 |") and rows[2].endswith("| – | 75.00 | 76.00 | – |")


def test_sts_rows_are_those_with_sts_scores(results: Path) -> None:
    caption, _, head, _, *rows = render("evaluation/sts", results).splitlines()
    assert "tokenized text" in caption and head.endswith("| STS-B | SICK-R | Avg |")
    assert [row.split(" | ")[0] for row in rows] == ["| chosen", "| high", "| part"]
    assert rows[1].endswith("| 60.12 | 80.00 |")


def test_seconds_are_those_of_complete_rows(results: Path) -> None:
    caption, _, head, _, *rows = render("evaluation/transfer-seconds", results).splitlines()
    assert "Processor seconds" in caption and head.endswith("| MRPC | all |")
    assert [row.split(" | ")[0] for row in rows] == ["| high", "| low"]
    assert rows[0].startswith("| high | 2 + 11 |") and rows[0].endswith("| 17 + 74 |")


@pytest.mark.parametrize(("name", "message"), [("other", "must be one of"), ("sts", "no results file has scores")])
def test_errors_name_the_table(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(TableError, match=f"table:evaluation/{name}: .*{message}"):
        render(f"evaluation/{name}", tmp_path)
