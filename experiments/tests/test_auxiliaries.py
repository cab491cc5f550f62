"""The table of auxiliary networks that trained alone, made of their records."""

import json
from pathlib import Path

import pytest

from experiments.tables.render import TableError, update

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
