"""The table of auxiliary networks that trained alone, made of their records."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.tables.render import TableError, render, update

PAGE = "<!-- table:auxiliary-networks/alone -->\n\n<!-- end table -->"


def test_loss_and_gap_are_means_of_the_last_steps(tmp_path: Path) -> None:
    log = [
        {"loss/rtd": 0.05 if step < 10 else 0.02, "metrics/rtd_gap": 0.01 * (step % 2) + (9 if step < 50 else 0)}
        | {"metrics/rtd_accuracy_replaced": 0.25, "metrics/rtd_accuracy_kept": 0.75}
        for step in range(150)
    ]
    record = {"backbone": "mini", "seed": 7, "config": {"objectives": [{"name": "rtd", "weight": 0.1}]}}
    record["objective_warmup"] = {"steps": 150, "learning_rate": 2e-4, "log": log}
    path = tmp_path / "auxiliary-networks" / "rtd-alone" / "masked-0.6.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))
    text = update(PAGE, tmp_path)
    assert "for 150 steps of 64 sentences at 0.0002, on the vectors of the unchanged encoder mini" in text
    row = [line for line in text.splitlines() if line.startswith("| DiffCSE")]
    # 100 values, half of them 0 and half 0.01: mean 0.005, deviation 0.00503, error 0.0005
    assert row == ["| DiffCSE's discriminator | 60 % | 0.500 | 0.200 | 25 %, 75 % | 0.0050 ± 0.0005 | 2.5 % |"]


def test_without_records_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no network has been trained alone"):
        update(PAGE, tmp_path)


def gradients(title: str, step: int, warmup: int | None, gap: float, share: float) -> dict[str, Any]:
    name = {"diffcse": "rtd", "infocse": "aux_mlm"}[title]
    found = {"rtd_accuracy_replaced": 0.25, "rtd_accuracy_kept": 0.75} if name == "rtd" else {"aux_mlm_accuracy": 0.3}
    terms = {"contrastive": {}, name: {"share": share, "adam_share": 2 * share, "mean_cosine": -0.5}}
    settings = {} if warmup is None else {"objective_warmup_steps": warmup}
    metrics = {**found, f"{name}_gap": gap, "alignment": 0.1}
    weights = {"contrastive": 1.0, name: 0.005}
    return {"title": title, "step": step, "settings": settings, "metrics": metrics, "terms": terms, "weights": weights}


def test_gap_and_share_stand_against_the_warm_up(tmp_path: Path) -> None:
    rows = [
        gradients("infocse", 0, 100, 0.5, 0.25),
        gradients("diffcse", 60, 30, 0.001, 0.008),
        gradients("diffcse", 0, 100, 0.0004, 0.002),
        gradients("diffcse", 0, None, -0.00001, 0.0005),
    ]
    path = tmp_path / "gradients" / "minilm-wiki-warm-up.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"format": 1, "run": {"repetitions": 12, "batch_size": 64, "seed": 42}, "rows": rows}))
    _, _, head, _, *found = render("auxiliary-networks/warm-up", tmp_path).splitlines()
    assert head == "| network | weight | warm-up | then | right | gap | share | after Adam | cosine |"
    assert found == [
        "| DiffCSE's discriminator | 0.005 | 0 | 0 | 25 %, 75 % | 0.0000 | 0.0005 | 0.001 | -0.5 |",
        "| DiffCSE's discriminator | 0.005 | 100 | 0 | 25 %, 75 % | 0.0004 | 0.002 | 0.004 | -0.5 |",
        "| DiffCSE's discriminator | 0.005 | 30 | 60 | 25 %, 75 % | 0.0010 | 0.008 | 0.016 | -0.5 |",
        "| InfoCSE's head | 0.005 | 100 | 0 | 30 % | 0.5000 | 0.25 | 0.5 | -0.5 |",
    ]
    rows[1]["settings"]["objective_warmup_steps"] = None
    path.write_text(json.dumps({"format": 1, "run": {"repetitions": 12, "batch_size": 64, "seed": 42}, "rows": rows}))
    with pytest.raises(TableError, match="a row of diffcse does not know the steps of its warm-up"):
        render("auxiliary-networks/warm-up", tmp_path)


def taught(name: str, dev: dict[int, float], gap: dict[int, float]) -> dict[str, Any]:
    history = [{"step": step, "stsb_spearman": score} for step, score in dev.items()]
    log = [{"step": step, "metrics/aux_mlm_gap": value} for step, value in gap.items()]
    return {"name": name, "dev": {"history": history}, "log": [{"step": 1, "loss": 0.5}, *log]}


def test_dev_and_gap_stand_at_two_steps_of_the_joint_training(tmp_path: Path) -> None:
    runs = {"base/seed=1": taught("a", {200: 80.0, 400: 99.0, 600: 82.0}, {})}
    runs["base/seed=2"] = taught("b", {200: 81.0, 600: 82.0}, {})
    runs["info/seed=1"] = taught("c", {25: 70.0, 200: 81.0, 600: 80.0}, {175: 0.5, 225: 9.0, 600: 1.0})
    runs["info/seed=2"] = taught("d", {200: 83.0, 600: 81.0}, {200: 0.7, 600: 1.2})
    for label, record in runs.items():
        path = tmp_path / "teachers" / f"{label}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    rows = {name: {"title": name.title(), "kind": "selected", "finished_seeds": [1, 2]} for name in ("base", "info")}
    summary = {"baseline": "base", "experiments": {"start": {"title": "Start", "kind": "command"}, **rows}}
    (tmp_path / "teachers" / "summary.json").write_text(json.dumps(summary))
    caption, _, head, _, *found = render("teachers/steps", tmp_path).splitlines()
    assert "over the seeds 1, 2. Less: Base, with the same seed" in caption
    assert head == "|  | dev at 200 | less, at 200 | dev at 600 | less, at 600 | gap at 200 | gap at 600 |"
    assert found == [
        "| Base | 80.50 ± 0.71 |  | 82.00 ± 0.00 |  |  |  |",
        "| Info | 82.00 ± 1.41 | +1.50 ± 0.71 | 80.50 ± 0.71 | -1.50 ± 0.71 | 0.60 | 1.10 |",
    ]
    runs["info/seed=2"]["dev"]["history"].pop()
    (tmp_path / "teachers" / "info" / "seed=2.json").write_text(json.dumps(runs["info/seed=2"]))
    with pytest.raises(TableError, match="d has no dev score at step 600"):
        render("teachers/steps", tmp_path)
