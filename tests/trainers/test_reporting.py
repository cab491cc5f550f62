"""What ``report_to`` writes, read back from the trackers' own files."""

import sqlite3
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from csekit.trainers.scripts.run_arguments import parse_run_arguments
from csekit.trainers.scripts.train import main as train


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


def unmet(library: str) -> list[str]:
    """What an installed library requires and does not find."""
    found = []
    for requirement in map(Requirement, requires(library) or []):
        with suppress(PackageNotFoundError):
            here = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if here and not requirement.specifier.contains(version(requirement.name)):
                found.append(str(requirement))
    return found


def test_trackio_keeps_them_in_a_local_file(small_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when trackio is imported
    if find_spec("trackio") and (missing := unmet("trackio")):
        pytest.skip(f"trackio wants {', '.join(missing)}")
    trackio = pytest.importorskip("trackio", reason="needs trackio")
    options = {"report_to": "trackio", "project": "csekit-test", "run_name": "tiny", "method": "informin"}
    small_run(tmp_path / "run", max_steps=4, **options).train()
    with sqlite3.connect(Path(trackio.utils.TRACKIO_DIR) / "csekit-test.db") as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    kept = "\n".join(str(metrics) for _, metrics in rows)
    assert "loss/contrastive" in kept and "loss/reconstruction" in kept, kept[:500]


def test_several_trackers_are_named_with_blanks_or_in_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/reporting.md says. The second one was an unknown argument, and a list in YAML no str."""
    known = ["tensorboard", "trackio"]
    monkeypatch.setattr("csekit.trainers.arguments.get_available_reporting_integrations", lambda: known)
    preset = tmp_path / "preset.yaml"
    preset.write_text("report_to: [tensorboard, trackio]\n")
    for words in (["--report_to", "tensorboard", "trackio"], ["--config", str(preset)]):
        args = parse_run_arguments([*words, "--output_dir", str(tmp_path / "run")], {}, "")[1]
        assert args.report_to == known


@pytest.mark.parametrize(("tracker", "package"), [("trackio", "csekit[trackers]"), ("wandb", "wandb")])
def test_a_tracker_that_is_not_installed_is_told_in_one_line(
    tracker: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Transformers raised a RuntimeError once the corpus and the encoder were loaded."""
    monkeypatch.setattr(f"transformers.integrations.integration_utils.is_{tracker}_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        train(["--model_name_or_path", "x", "--train_file", "x.txt", "--report_to", tracker, "--output_dir", "unused"])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told.endswith(f"error: report_to '{tracker}' needs {tracker}: pip install '{package}'\n")
    assert told.count("\n") == 1
