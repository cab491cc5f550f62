"""The table of label-free selection."""

import json
from pathlib import Path

import pytest

from csekit.evaluation.results import write_results
from experiments.tables.render import TableError, update
from experiments.tables.selection import agreement, selection_table


def _write(folder: Path, name: str, dev: list[float], rank: list[float], corpus: str = "wiki.txt") -> None:
    history = [
        {"step": i, "stsb_spearman": d, "alignment": 1 - d / 100, "uniformity": -d / 50, "effective_rank": r}
        for i, (d, r) in enumerate(zip(dev, rank, strict=True))
    ]
    (folder / f"{name}.json").write_text(json.dumps({"corpus": {"name": corpus}, "dev": {"history": history}}))


def test_agreement_against_hand_computed_runs(tmp_path: Path) -> None:
    _write(tmp_path, "a", [70, 72, 71, 69], [1, 2, 3, 4])
    _write(tmp_path, "b", [60, 61, 62, 63], [4, 3, 2, 1])
    _write(tmp_path, "too-short", [1, 2], [1, 2])
    found = agreement(tmp_path)
    assert found["runs"] == 2
    alignment, rank = found["criteria"]["alignment"], found["criteria"]["effective_rank"]
    assert alignment["within"] == pytest.approx(1) and alignment["regret"] == 0
    assert rank["within"] == pytest.approx((-0.4 + -1) / 2)  # ranks 2,4,3,1 against 1,2,3,4; and reversed
    assert rank["regret"] == pytest.approx((72 - 69 + 63 - 60) / 2)
    assert rank["across"] == pytest.approx(1) and found["last_regret"] == pytest.approx(1.5)
    assert "| `effective_rank` | -0.70 | 1.00 | 3.00 |" in selection_table(tmp_path)


def test_the_caption_names_the_corpora_of_the_runs(tmp_path: Path) -> None:
    """It called all of them Wikipedia, those on labelled triplets, too."""
    for name, corpus in (("a", "nli.csv"), ("b", "wiki.txt"), ("c", "wiki.txt")):
        _write(tmp_path, name, [70, 72, 71, 69], [1, 2, 3, 4], corpus)
    assert selection_table(tmp_path).startswith("Over 3 runs: 2 on wiki.txt, 1 on nli.csv. ")


def test_no_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run that logged"):
        selection_table(tmp_path)


def test_each_precision_names_its_checkpoint_with_its_float32_score(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no results of experiments"):
        update("<!-- table:dev-precision -->\n<!-- end table -->\n", tmp_path)
    rows = [
        {"step": 10, "fp32": 70.0, "bf16": 70.5},
        {"step": 20, "fp32": 71.0, "bf16": 70.75},
        {"step": 30, "fp32": 70.9, "bf16": 71.125},
    ]
    content = {"run": {"backbone": "mini", "max_steps": 30}, "checkpoints": rows}
    write_results(tmp_path / "dev-precision" / "mini.json", content)
    text = update("<!-- table:dev-precision -->\n<!-- end table -->\n", tmp_path)
    assert "| mini, 30 steps | 3 | 20 (71.00) | 30 (70.90) | 0.500 |" in text
