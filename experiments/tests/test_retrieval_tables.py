"""Tables of retrieval scores and of the time of an evaluation, made of results files."""

from pathlib import Path
from typing import Any

import pytest

from csekit.evaluation.results import write_results
from experiments.tables.render import TableError, update
from experiments.tables.retrieval import retrieval_table, speed_table

PAGE = "<!-- table:evaluation/retrieval -->\n<!-- end table -->\n"


def scores(first: float, **more: Any) -> dict[str, Any]:
    recall = {"recall@1": first, "recall@5": 80.0, "recall@10": 90.126}
    stsb = {
        f"STS-B, {n} queries": {"metrics": recall | {"recall@1": first - 97 / n}, "documents": 2758} for n in (194, 97)
    }
    return {"title": f"at {first}", "retrieval": {**stsb, **more}}


def test_rows_by_recall(tmp_path: Path) -> None:
    metrics = {"ndcg@10": 64.508, "mrr@10": 60.5, "recall@10": 78.0, "recall@100": 92.5}
    folder = tmp_path / "evaluation" / "retrieval"
    write_results(folder / "a.json", scores(70.0, scifact={"metrics": metrics, "queries": 300, "documents": 5183}))
    intents = {"banking77": {"accuracy": 79.987, "n": 3080, "experiments": [80.0] * 10}}
    write_results(folder / "b.json", scores(60.0) | {"classification": intents})
    caption, head, body = retrieval_table(tmp_path)
    assert [row[0] for row in body] == ["at 60.0", "at 70.0"] and {len(row) for row in body} == {len(head)}
    assert head[1].startswith("STS-B, 97") and head[2].startswith("STS-B, 194")
    assert body[0][1:3] == ["59.00 / 80.00 / 90.13", "59.50 / 80.00 / 90.13"] and body[0][3:] == [
        "–",
        "–",
        "–",
        "–",
        "79.99",
    ]
    assert body[1][3:] == ["64.51", "60.50", "78.00", "92.50", "–"]
    for words in ("scifact: 300 queries, 5,183 documents", "among 2,758 sentences", "10 classifiers on 3,080"):
        assert words in caption
    assert "| at 70.0 |" in update(PAGE, tmp_path)


def test_without_files(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"holds no results of experiments/score_retrieval\.py"):
        update(PAGE, tmp_path)


def test_speed() -> None:
    run = {"encoder": "mine", "precision": "fp32", "batch_size": 64, "device": "cpu", "threads": 2, "repetitions": 3}
    run |= {"tasks": ["STS12", "STS-B"], "sentences": 8974, "distinct": 7000}
    sides = [
        {"title": "`evaluate_sts`", "seconds": 10.04, "time_ratio": 1.0, "cpu_seconds": 9.0, "cpu_ratio": 1.0},
        {"title": "mteb", "seconds": 25.1, "time_ratio": 2.504, "cpu_seconds": 18.0, "cpu_ratio": 2.0},
    ]
    results = {
        "run": run,
        "sides": sides,
        "largest_difference": 0.00012,
        "mteb": "2.26",
        "environment": {"device": "X"},
    }
    caption, head, body = speed_table(results)
    assert body == [
        ["`evaluate_sts`", "10.0", "1.00 ×", "9.0", "1.00 ×"],
        ["mteb", "25.1", "2.50 ×", "18.0", "2.00 ×"],
    ]
    assert len(head) == 5
    for words in ("2 STS sets", "8,974 sentences of which 7,000 differ", "CPU threads: 2", "0.0001 at most"):
        assert words in caption
    assert "median of 3 runs" in caption
    assert "one run each" in speed_table(results | {"run": run | {"repetitions": 1}})[0]
    assert ", X, mteb 2.26" in speed_table(results | {"run": run | {"device": "cuda"}})[0]
