"""What ``report_to`` writes, read back from the trackers' own files."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import small_runs
trainer = small_runs.make_trainer(
    Path({backbone!r}), Path({texts!r}), Path({out!r}), max_steps=4, report_to="trackio", project="csekit-test",
    run_name="tiny", method="informin",
)
trainer.train()
"""


def test_tensorboard_gets_every_term_under_its_own_name(
    small_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    options: dict[str, Any] = {"method": "diffcse", "fields": {"reconstruction_weight": 0.4, "mlm_weight": 0.1}}
    trainer = small_run(tmp_path / "run", dev=True, max_steps=4, report_to="tensorboard", geometry=True, **options)
    trainer.train()
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    tags = set(events.Tags()["scalars"])
    terms = {f"train/loss/{name}" for name in ("contrastive", "rtd", "reconstruction", "mlm")}
    metrics = {"train/metrics/rtd_accuracy_replaced", "train/metrics/positive_cosine", "train/geometry/uniformity"}
    assert terms | metrics | {"train/loss", "train/learning_rate", "eval/dev_spearman"} <= tags, sorted(tags)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in logged] == [2, 4]
    for tag in terms:
        written = [(event.step, event.value) for event in events.Scalars(tag)]
        wanted = [(entry["step"], pytest.approx(entry[tag.removeprefix("train/")], rel=1e-6)) for entry in logged]
        assert written == wanted, tag


def test_trackio_keeps_them_in_a_local_file(small: Any, small_backbone: Path, tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="needs trackio")
    texts = small.write_texts(tmp_path / "texts.txt", 40)
    names = {"folder": str(Path(__file__).parent), "backbone": str(small_backbone), "texts": str(texts)}
    code = SCRIPT.format(**names, out=str(tmp_path / "run"))
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with sqlite3.connect(tmp_path / "trackio/csekit-test.db") as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    kept = "\n".join(str(metrics) for _, metrics in rows)
    assert "loss/contrastive" in kept and "loss/reconstruction" in kept, kept[:500]
