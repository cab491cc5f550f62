"""The lines that a training prints."""

import json
import math
import re
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers import EarlyStoppingCallback

from csekit.trainers import CSETrainer
from csekit.trainers.run_record import kept_step

OPTIONS = {"max_steps": 8, "eval_steps": 4, "logging_steps": 2, "label_free_samples": 0}


def lines(small_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[Any, list[str]]:
    """A trainer after its training, and what it printed."""
    trainer = small_run(tmp_path / "run", dev=True, **OPTIONS | options)
    capsys.readouterr()
    trainer.train()
    return trainer, capsys.readouterr().out.splitlines()


def test_a_line_for_each_log_entry_in_aligned_columns(
    small_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, (*printed, best) = lines(small_run, tmp_path, capsys, method="informin")
    heads = [line for line in printed if line.split()[0] == "step"]
    rows = [line.split() for line in printed if line.split()[0] != "step"]
    assert heads[0].split() == [
        "step",
        "epoch",
        "loss",
        "contrastive",
        "reconstruction",
        "lr",
        "grad_norm",
        "rows/s",
        "left",
    ]
    assert heads[-1].split()[3:6] == ["contrastive", "reconstruction", "dev_spearman"]
    assert [int(row[0]) for row in rows] == [2, 4, 6, 8]
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [row[2] for row in rows] == [f"{entry['loss']:.4f}" for entry in logged]
    scores = [entry["eval_dev_spearman"] for entry in trainer.state.log_history if "eval_dev_spearman" in entry]
    shown = [row[5] for row in rows if row[0] in ("4", "8")]
    assert [score.rstrip("*") for score in shown] == [f"{score:.2f}" for score in scores]
    assert [score.endswith("*") for score in shown] == [True, scores[1] > scores[0]]
    assert best == f"* best dev_spearman; the weights of step {trainer.state.best_global_step} are kept"
    # a column's numbers end where its name ends
    starts = heads[-1]
    for line in (line for line in printed[printed.index(starts) + 1 :]):
        assert line[: starts.index("epoch") + len("epoch")].rstrip()[-1].isdigit()
        assert re.fullmatch(r"\d+\.\d{4}", line[: starts.index("loss") + len("loss")].split()[-1])


@pytest.mark.parametrize("way", ["early stopping", "SIGTERM"])
def test_the_last_line_of_a_run_that_ends_before_its_last_step(
    small: ModuleType, small_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    """Early stopping keeps the best weights, which the line did not say. After SIGTERM the run is not finished."""

    class Falling(CSETrainer):
        def dev_scores(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            return {"dev_spearman": 50.0 - self.state.global_step}

    trainer = small_run(tmp_path / "run", dev=True, kind=Falling, **OPTIONS | {"eval_steps": 1})
    stop = EarlyStoppingCallback(2) if way == "early stopping" else small.SignalAt(3, signal.SIGTERM)
    trainer.add_callback(stop)
    trainer.train()
    last = capsys.readouterr().out.splitlines()[-1]
    assert (trainer.state.global_step, trainer.state.best_global_step) == (3, 1)
    if way == "early stopping":
        assert last == "* best dev_spearman; the weights of step 1 are kept; training stopped early, at step 3 of 8"
        assert kept_step(trainer) == 1
    else:
        assert last == "* best dev_spearman so far; training was interrupted at step 3 of 8"


def test_a_score_of_nan_is_not_the_best(small_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: if the first score was nan, the asterisk stayed there, and the step that is kept had none."""

    class Collapsed(CSETrainer):
        def dev_scores(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            return {"dev_spearman": [math.nan, 20.0, 10.0, 30.0][self.state.global_step // 2 - 1]}

    trainer, printed = lines(small_run, tmp_path, capsys, kind=Collapsed, eval_steps=2)
    found = [score for line in printed[:-1] for score in re.findall(r" ((?:nan|[123]0\.00)\*?)(?: |$)", line)]
    assert (found, kept_step(trainer)) == (["nan", "20.00*", "10.00", "30.00*"], 8)


def test_json_lines(small_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer, printed = lines(small_run, tmp_path, capsys, log_format="json")
    entries = [json.loads(line) for line in printed]
    expected = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
    assert len(entries) == len(expected)
    assert [entry.get("loss") for entry in entries] == [entry.get("loss") for entry in expected]
    assert [entry["step"] for entry in entries] == [entry["step"] for entry in expected]


def test_only_the_main_process_prints(small_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = small_run(tmp_path / "run", dev=True, **OPTIONS)
    capsys.readouterr()
    trainer.state.is_world_process_zero = False
    handler = trainer.callback_handler
    trainer.control = handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    trainer.control = handler.on_log(trainer.args, trainer.state, trainer.control, {"loss": 1.0})
    handler.on_step_begin(trainer.args, trainer.state, trainer.control)
    trainer.stop_on_terminate.restore()
    assert capsys.readouterr().out == ""


def test_an_unknown_format_is_refused(small_run: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="log_format must be one of 'table', 'json', got 'xml'"):
        small_run(tmp_path / "run", log_format="xml")
