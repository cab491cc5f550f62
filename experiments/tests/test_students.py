"""The table of teacher and students is made of what its results file holds."""

import json
from pathlib import Path

import numpy as np
import pytest

from csekit.encoding import load_encoder
from csekit.trainers.static_distillation import StaticDistillation, distill_static
from experiments.students import main


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
