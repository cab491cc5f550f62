"""A dev set that was scored with ``csekit label`` chooses the checkpoint of a training."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from csekit.cli import main

ROOT = Path(__file__).parents[2]
small = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "trainers" / "small_runs.py")))


def test_scores_from_the_keyboard_select_a_checkpoint_and_score_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small.write_backbone(tmp_path / "tiny-bert")
    small.write_texts(tmp_path / "texts.txt", 60)
    dev, folder = tmp_path / "dev.tsv", tmp_path / "run"
    words = ["label", tmp_path / "texts.txt", "--model", tmp_path / "tiny-bert", "--pooling", "cls", "-o", dev]
    keys = "".join(f"{i % 11 / 2}\n" for i in range(50))
    labelled = CliRunner().invoke(main, [*map(str, words), "--no_progress"], input=keys)
    assert labelled.exit_code == 0, labelled.output
    assert "50 of 50 pairs scored" in labelled.output
    assert f"csekit eval RUN --pairs {dev}" in labelled.output
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    arguments = {
        "model_name_or_path": tmp_path / "tiny-bert", "train_file": tmp_path / "texts.txt", "dev_file": dev,
        "output_dir": folder, "per_device_train_batch_size": 8, "eval_steps": 4, "logging_steps": 2, "use_cpu": True,
        "do_predict": False,
    }  # fmt: skip
    argv = [str(word) for name, value in arguments.items() for word in (f"--{name}", value)]
    monkeypatch.setattr(sys, "argv", ["run_unsup.py", *argv])
    assert runpy.run_path(str(ROOT / "examples" / "run_unsup.py"))["main"]() == 0
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["dev"]["metric"] == "dev_spearman"
    assert results["dev"]["best"] is not None
    assert [entry["step"] for entry in results["dev"]["history"]] == [4, 8]

    # the pairs are of the corpus, which does not spoil the choice of the checkpoint
    assert results["overlap"]["rows"] > 0
    assert results["overlap"]["filtered"] is False
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "hold a sentence of" in line]
    assert "your own pairs" in line
    assert "harmless" in line

    # the command that the labelling named at its end
    scored = CliRunner().invoke(main, ["eval", str(folder), "--pairs", str(dev), "--device", "cpu", "--no_progress"])
    assert scored.exit_code == 0, scored.output
    (row,) = [line.split() for line in scored.output.splitlines() if line.startswith("dev ")]
    assert float(row[1]) == pytest.approx(results["dev"]["after"]["dev_spearman"], abs=0.006)
