"""The table of teacher and students is made of what its results file holds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from csekit.encoding import load_encoder
from csekit.evaluation import evaluate_sts
from csekit.evaluation.pairs import Pairs
from csekit.evaluation.sts_data import STSTask
from csekit.modeling import SimCSEModel
from csekit.trainers.static_distillation import StaticDistillation, distill_static
from experiments import dimensions, students
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


@pytest.mark.parametrize("module", [students, dimensions])
def test_other_sets_have_their_own_scores(
    module: Any, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``--tasks`` the column was STS Avg., which only all seven sets have: a dash, or NaN in the file."""
    model = SimCSEModel.from_backbone(tiny_folder)
    folder = model.export(tmp_path / "encoder", AutoTokenizer.from_pretrained(tiny_folder))
    texts = ("the dog", "a cat", "the red house"), ("a dog", "the house", "the house")
    task = STSTask("STS-B", (Pairs("STS-B", *texts, np.array([4.0, 0.5, 3.0])),))
    monkeypatch.setattr(module, "load_sts", lambda *words: [task])
    (tmp_path / "texts.txt").write_text("the dog\na cat\n")
    own = ["--texts", str(tmp_path / "texts.txt")] if module is students else ["--sizes", "8"]
    output = tmp_path / "results.json"
    words = [f"one={folder}", *own, "--tasks", "STS-B", "--data_dir", str(tmp_path), "--device", "cpu"]
    assert module.main([*words, "--output", str(output)]) == 0
    encoder = load_encoder(folder, device="cpu", truncate_dim=None if module is students else 8)
    expected = evaluate_sts(encoder, [task]).tasks["STS-B"].all
    found = json.loads(output.read_text())["encoders"]["one"]["scores"]["STS-B"]
    assert (found if module is students else found["8"]) == pytest.approx(expected, abs=1e-3)
    assert f"{expected:.2f} |" in capsys.readouterr().out


@pytest.mark.parametrize("module", [students, dimensions])
def test_a_set_that_does_not_exist_is_one_line(
    module: Any, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a traceback."""
    (tmp_path / "texts.txt").write_text("the dog\na cat\n")
    own = ["--texts", str(tmp_path / "texts.txt")] if module is students else ["--sizes", "8"]
    words = [f"one={tiny_folder}", *own, "--data_dir", str(tmp_path), "--output", str(tmp_path / "results.json")]
    with pytest.raises(SystemExit) as ended:
        module.main([*words, "--tasks", "STS-C"])
    assert ended.value.code == 2
    assert "STS-C" in capsys.readouterr().err


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
