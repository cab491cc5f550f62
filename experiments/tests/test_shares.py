"""The table of gradient shares joins the benchmark's file with the plan's gaps and margins."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.tables.render import TableError, render


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def measured(title: str, step: int, weights: dict[str, float], shares: dict[str, float]) -> dict[str, Any]:
    terms = {"contrastive": {"share": 1.0, "adam_share": 1.0, "mean_cosine": 1.0}}
    terms |= {name: {"share": share, "adam_share": 2 * share, "mean_cosine": -0.5} for name, share in shares.items()}
    return {"title": title, "step": step, "weights": {"contrastive": 1.0, **weights}, "terms": terms}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [
        measured("simcse", 0, {"dcm": 0.002}, {"dcm": 0.25}),
        measured("infocse", 60, {"aux_mlm": 0.1}, {"aux_mlm": 0.0375}),
        measured("infocse", 0, {"aux_mlm": 0.1}, {"aux_mlm": 0.03}),
    ]
    run = {"repetitions": 12, "batch_size": 64}
    write(tmp_path / "gradients/minilm-wiki.json", {"format": 1, "run": run, "rows": rows})
    for seed, gap in ((42, 1.0), (43, 2.0)):
        log = [{"step": 5, "metrics/aux_mlm_gap": 0.0}, *[{"metrics/aux_mlm_gap": gap}] * 3, {"step": 9}]
        write(tmp_path / f"equal-terms-minilm/infocse/seed={seed}.json", {"log": log})
    experiments = {
        "simcse": {"title": "SimCSE"},
        "simcse-dcm": {"title": "SimCSE with DCM", "finished_seeds": [42]},
        "infocse": {"title": "InfoCSE", "finished_seeds": [42, 43]},
    }
    margin = {"mean": 0.25, "std": 0.5, "n": 2}
    margins = {"rows": {"infocse": {"simcse": margin}, "simcse-dcm": {"simcse": margin}}}
    write(tmp_path / "equal-terms-minilm/summary.json", {"experiments": experiments, "margins": margins})
    return tmp_path


def test_each_term_has_its_shares_beside_gap_and_margin(results: Path) -> None:
    _, _, head, _, *rows = render("equal-terms-minilm/shares", results).splitlines()
    assert head == "|  | term | weight | step | share | after Adam | cosine | gap | margin |"
    assert rows == [
        "| InfoCSE | aux_mlm | 0.1 | 0 | 0.03 | 0.06 | -0.5 | 1.50 | +0.25 ± 0.50 over SimCSE |",
        "| InfoCSE | aux_mlm | 0.1 | 60 | 0.037 | 0.075 | -0.5 | 1.50 | +0.25 ± 0.50 over SimCSE |",
        "| SimCSE with DCM | dcm | 0.002 | 0 | 0.25 | 0.5 | -0.5 |  | +0.25 ± 0.50 over SimCSE |",
    ]


def test_a_model_without_a_row_in_the_plan_is_named(results: Path) -> None:
    path = results / "gradients/minilm-wiki.json"
    content = json.loads(path.read_text())
    content["rows"].append(measured("msse", 0, {"icm": 0.2}, {"icm": 0.1}))
    path.write_text(json.dumps(content))
    with pytest.raises(TableError, match="must have a margin of 'msse'"):
        render("equal-terms-minilm/shares", results)
