"""The table of teacher and students is made of what its results file holds."""

import json
from pathlib import Path

import numpy as np
import pytest

from csekit.encoding import load_encoder
from csekit.trainers.static_distillation import StaticDistillation, distill_static
from experiments.encoders import origin
from experiments.students import main
from experiments.tables.students import dimensions_table


def test_a_static_student_is_measured(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sentence_transformers")
    distill_static(load_encoder(tiny_folder, "mean", device="cpu"), tmp_path / "static", StaticDistillation(8), False)
    (tmp_path / "texts.txt").write_text("the dog\na cat\n")
    output = tmp_path / "students.json"
    words = [f"static={tmp_path / 'static'}", "--texts", str(tmp_path / "texts.txt"), "--data_dir", str(tmp_path)]
    assert main([*words, "--tasks", "none", "--output", str(output)]) == 0
    record = json.loads(output.read_text())
    found = record["encoders"]["static"]
    assert found["parameters"] == 27 * 8
    assert found["dimensions"] == 8
    assert found["texts_per_second"] > 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith(f"| static | 0.00 | {found['megabytes']:.1f} | 8 |")
    assert np.isfinite(found["megabytes"])


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["a=nowhere", "--texts", "t", "--data_dir", "d", "--output", str(tmp_path / "x.json")])
    assert "encoders must be NAME=FOLDER, got a=nowhere" in capsys.readouterr().err


def test_the_tables_say_what_was_trained(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    results = {
        "method": "simcse",
        "backbone": "mini",
        "arguments": {"max_steps": 5},
        "config": {},
        "seed": 7,
        "seconds": {"train": 1.0},
        "corpus": {"name": "wiki.txt", "checksum": "00", "used": 9, "rows": 9},
        "dev": None,
        "log": [{"step": 2}, {"step": 5}],
        "environment": {"commit": "abc"},
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    found = origin(tmp_path)
    assert list(found["weights"]) == ["model.safetensors"]
    assert found["run"]["commit"] == "abc"
    encoders = {"nested": {"scores": {"STS Avg.": {"2": 50.123, "4": 60.0}}, **found}}
    caption, head, rows = dimensions_table({"sizes": [2, 4], "encoders": encoders})
    assert caption.endswith("Trained here: 5 steps of 64 rows of wiki.txt from mini, seed 7.")
    assert head == ["task", "encoder", "2", "4"]
    assert rows == [["STS Avg.", "nested", "50.12", "60.00"]]
