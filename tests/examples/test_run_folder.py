"""The folder of a run: one process at a time, settings that stay, checkpoints and exports that are whole."""

import json
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from csekit.encoding import load_encoder
from csekit.trainers import CSETrainer, run_lock

ROOT = Path(__file__).parents[2]
small = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "trainers" / "small_runs.py")))
TEXTS = ["the man plays guitar .", "a red ball was in the house", "dog"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    small.write_backbone(folder / "tiny-bert")
    small.write_texts(folder / "texts.txt", 60)
    small.write_texts(folder / "other.txt", 62)
    small.write_texts(folder / "pairs.tsv", 60, 2)
    small.write_pairs(folder / "dev.tsv", rows=60)
    small.write_pairs(folder / "other.tsv", rows=60, seed=3)
    return folder


def words(data: Path, output_dir: Path, **changes: Any) -> list[str]:
    """A command line of 8 steps with checkpoints at 4 and 8; None takes an argument out."""
    arguments = {
        "model_name_or_path": data / "tiny-bert",
        "train_file": data / "texts.txt",
        "dev_file": data / "dev.tsv",
        "output_dir": output_dir,
        "per_device_train_batch_size": 8,
        "eval_steps": 4,
        "logging_steps": 2,
        "learning_rate": 1e-3,
        "do_predict": False,
        "use_cpu": True,
        "report_to": "none",
    } | changes
    return [str(word) for name, value in arguments.items() if value is not None for word in (f"--{name}", value)]


@pytest.fixture(scope="module")
def cache(data: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(data / "cache"))
        patch.setattr("datasets.config.HF_DATASETS_CACHE", data / "cache")
        yield


def start(script: str, argv: list[str]) -> int:
    """The script's main in this process; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, *argv])
        try:
            return int(runpy.run_path(str(ROOT / "examples" / script))["main"]())
        except SystemExit as end:
            return int(end.code or 0)


@pytest.fixture
def run(data: Path, cache: None) -> Callable[..., int]:
    """``run(output_dir, "--flag", name=value)``: examples/run_unsup.py with the arguments of ``words``."""

    def call(output_dir: Path, *more: str, **changes: Any) -> int:
        return start("run_unsup.py", [*words(data, output_dir, **changes), *more])

    return call


@pytest.fixture(scope="module")
def finished(data: Path, cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert start("run_unsup.py", words(data, folder)) == 0
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A run of its own with the checkpoints 4 and 8."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def error_line(capsys: pytest.CaptureFixture) -> str:
    text = capsys.readouterr().err
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if ".py: error: " in line]
    return line


# One process at a time


@contextmanager
def in_use(folder: Path) -> Iterator[int]:
    """Another process holds the folder; yield its pid."""
    folder.mkdir(parents=True, exist_ok=True)
    code = (
        "import json, os, socket, sys, pathlib, filelock\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        f"lock = filelock.FileLock(folder / {run_lock.LOCK!r}); lock.acquire()\n"
        "note = {'host': socket.gethostname(), 'pid': os.getpid(), 'token': 'other'}\n"
        f"(folder / {run_lock.NOTE!r}).write_text(json.dumps(note)); print('held', flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield other.pid
        finally:
            other.kill()


@pytest.mark.parametrize("script", ["run_unsup.py", "run_sup.py", "run_pretrain.py"])
def test_a_second_training_in_a_folder_is_refused(
    script: str,
    data: Path,
    cache: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Two trainings mixed their checkpoints and both exited with 0."""
    monkeypatch.setattr(run_lock, "_WAIT", 0.01)
    argv = words(data, tmp_path / "run")
    if script == "run_sup.py":
        argv = words(data, tmp_path / "run", train_file=data / "pairs.tsv")
    if script == "run_pretrain.py":
        argv = words(data, tmp_path / "run", dev_file=None)
    with in_use(tmp_path / "run") as pid:
        assert start(script, [*argv, "--resume_from_checkpoint", "True"]) == 2
        assert f"is in use by process {pid} on " in error_line(capsys)
        assert start(script, [*argv, "--overwrite"]) == 2
    assert not (tmp_path / "run" / "training").exists()


def test_the_trainer_itself_refuses_a_folder_in_use(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "_WAIT", 0.01)
    trainer = small.make_trainer(data / "tiny-bert", data / "texts.txt", tmp_path / "run", max_steps=2)
    with in_use(tmp_path / "run"):
        with pytest.raises(run_lock.FolderInUseError):
            trainer.train()
        with pytest.raises(run_lock.FolderInUseError):
            trainer.save_run()


def test_the_lock_of_a_killed_process_is_taken_over_with_a_word(
    run: Callable[..., int], copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with in_use(copy) as pid:
        pass
    assert run(copy, resume_from_checkpoint=True) == 0
    assert f"was in use by process {pid} on " in caplog.text
    assert not (copy / run_lock.NOTE).exists()


def test_a_lock_of_another_machine_counts_for_two_minutes(
    run: Callable[..., int], copy: Path, capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """On file systems that do not share locks only the note tells of the other machine."""
    note = copy / run_lock.NOTE
    note.write_text(json.dumps({"host": "elsewhere", "pid": 7, "token": "other"}))
    assert run(copy, resume_from_checkpoint=True) == 2
    assert "is in use by process 7 on elsewhere, whose last sign of life was " in error_line(capsys)
    silent = time.time() - run_lock.STALE - 1
    os.utime(note, (silent, silent))
    assert run(copy, resume_from_checkpoint=True) == 0
    assert "process 7 on elsewhere, which is gone" in caplog.text


def test_a_training_whose_folder_was_taken_over_stops_without_writing(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(run_lock, "BEAT", 0.01)
    save = CSETrainer._save_checkpoint

    def taken_over(self: CSETrainer, *args: Any) -> None:
        if self.state.global_step == 8:
            note = {"host": "elsewhere", "pid": 7, "token": "other"}
            (tmp_path / "run" / run_lock.NOTE).write_text(json.dumps(note))
            time.sleep(0.2)
        save(self, *args)

    monkeypatch.setattr(CSETrainer, "_save_checkpoint", taken_over)
    assert run(tmp_path / "run") == 1
    assert "was taken over by process 7 on elsewhere" in error_line(capsys)
    assert [path.name for path in (tmp_path / "run" / "training").glob("checkpoint-*")] == ["checkpoint-4"]


def test_a_training_whose_note_was_deleted_goes_on_and_writes_it_again(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a note that was gone, or not readable once, counted as another owner, and the run was lost."""
    monkeypatch.setattr(run_lock, "BEAT", 0.01)
    save, note, found = CSETrainer._save_checkpoint, tmp_path / "run" / run_lock.NOTE, []

    def deleted(self: CSETrainer, *args: Any) -> None:
        note.unlink()
        time.sleep(0.2)
        found.append(note.exists() and json.loads(note.read_text())["pid"])
        save(self, *args)

    monkeypatch.setattr(CSETrainer, "_save_checkpoint", deleted)
    assert run(tmp_path / "run") == 0
    assert set(found) == {os.getpid()}
    assert not note.exists()


# A resumed run has the settings of its start


@pytest.mark.parametrize(
    ("changes", "told", "field"),
    [
        ({"learning_rate": 2e-3}, "learning_rate was 0.001 and is 0.002 now", "learning_rate"),
        ({"seed": 7}, "seed was 42 and is 7 now", "seed"),
        ({"temperature": 0.1}, "temperature was 0.05 and is 0.1 now", "temperature"),
        ({"per_device_train_batch_size": 4}, "per_device_train_batch_size was 8 and is 4 now", "per_device"),
        ({"num_train_epochs": 3}, "num_train_epochs was 1.0 and is 3.0 now", "num_train_epochs"),
        ({"train_file": "other.txt"}, "corpus.rows was 60 and is 62 now", "corpus"),
        ({"dev_file": "other.tsv"}, "dev.checksum was ", "dev"),
        ({"mlm_weight": 0.1}, "objectives was [] and is ['mlm'] now", "objectives"),
        ({"dropout": 0.2}, "encoder.hidden_dropout_prob was 0.1 and is 0.2 now", "encoder"),
    ],
)
def test_a_changed_setting_is_refused_on_resume_with_both_values(
    run: Callable[..., int],
    data: Path,
    copy: Path,
    capsys: pytest.CaptureFixture,
    changes: dict[str, Any],
    told: str,
    field: str,
) -> None:
    """A resumed run took the new values and recorded them, as if they had been there from the start."""
    changes = {n: data / v if n in ("train_file", "dev_file") else v for n, v in changes.items()}
    assert run(copy, resume_from_checkpoint=True, **changes) == 2
    line = error_line(capsys)
    assert told in line
    assert f"--allow_changed {field}" in line


def test_several_changes_are_told_at_once_and_pass_if_they_are_meant(
    run: Callable[..., int], copy: Path, capsys: pytest.CaptureFixture
) -> None:
    changes = {"resume_from_checkpoint": True, "learning_rate": 2e-3, "num_train_epochs": 2}
    assert run(copy, **changes) == 2
    line = error_line(capsys)
    assert "learning_rate was " in line
    assert "num_train_epochs was " in line
    assert run(copy, "--allow_changed", "learning_rate", **changes) == 2
    assert "learning_rate was " not in error_line(capsys)
    assert run(copy, "--allow_changed", "learning_rate", "num_train_epochs", **changes) == 0
    record = json.loads((copy / "training" / "settings.json").read_text())
    assert [(change["name"], change["old"], change["new"]) for change in record["changes"]] == [
        ("learning_rate", 1e-3, 2e-3),
        ("num_train_epochs", 1.0, 2.0),
    ]


def test_a_name_that_is_no_setting_cannot_be_allowed(
    run: Callable[..., int], copy: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run(copy, "--allow_changed", "learning_rates", resume_from_checkpoint=True) == 2
    assert "allow_changed must name settings, got 'learning_rates'" in error_line(capsys)


def test_settings_that_change_no_result_are_free(run: Callable[..., int], data: Path, copy: Path) -> None:
    moved = copy.rename(copy.with_name("moved"))
    shutil.copy(data / "texts.txt", data / "renamed.txt")
    free = {"logging_steps": 1, "dataloader_num_workers": 1, "save_total_limit": 5, "run_name": "again"}
    assert run(moved, resume_from_checkpoint=True, train_file=data / "renamed.txt", **free) == 0


@pytest.mark.slow
def test_a_constant_learning_rate_lets_a_training_grow(run: Callable[..., int], tmp_path: Path) -> None:
    constant = {"lr_scheduler_type": "constant"}
    assert run(tmp_path / "run", max_steps=4, **constant) == 0
    assert run(tmp_path / "run", max_steps=8, resume_from_checkpoint=True, **constant) == 0
    assert run(tmp_path / "straight", max_steps=8, **constant) == 0
    found, expected = (
        load_file(tmp_path / name / "training/checkpoint-8/model.safetensors") for name in ("run", "straight")
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


# A broken checkpoint


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (truncate, "trainer_state.json"),
        (flip, "model.safetensors"),
        (truncate, "optimizer.pt"),
        (Path.unlink, "rng_state.pth"),
        (truncate, "manifest.json"),
        (Path.unlink, "manifest.json"),
    ],
)
def test_a_run_with_a_broken_checkpoint_resumes_from_the_one_before(
    run: Callable[..., int],
    finished: Path,
    copy: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    name: str,
) -> None:
    """A truncated trainer_state.json was a traceback; a flipped bit of the weights was trained on."""
    damage(copy / "training" / "checkpoint-8" / name)
    assert run(copy, resume_from_checkpoint=True) == 0
    assert "checkpoint-8 cannot be continued: " in caplog.text
    found, expected = (load_file(folder / "model.safetensors") for folder in (copy, finished))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_broken_checkpoint_that_the_user_names_is_refused(
    run: Callable[..., int], copy: Path, capsys: pytest.CaptureFixture
) -> None:
    checkpoint = copy / "training" / "checkpoint-8"
    truncate(checkpoint / "optimizer.pt")
    assert run(copy, resume_from_checkpoint=checkpoint) == 2
    assert "checkpoint-8 cannot be continued: optimizer.pt has " in error_line(capsys)
    assert run(copy, resume_from_checkpoint=copy / "nowhere") == 2
    assert "nowhere: no such one" in error_line(capsys)


def test_checkpoints_of_an_earlier_training_in_the_folder_are_not_continued(
    data: Path, tmp_path: Path, small_trainer: Callable[..., CSETrainer]
) -> None:
    """A training that a user's script began anew in a folder resumed from the old run's later checkpoint."""
    small_trainer(tmp_path / "run", max_steps=8).train()
    small_trainer(tmp_path / "run", max_steps=8, seed=5, stop_after=4).train()
    resumed = small_trainer(tmp_path / "run", max_steps=8, seed=5)
    resumed.train(resume_from_checkpoint=True)
    straight = small_trainer(tmp_path / "straight", max_steps=8, seed=5)
    straight.train()
    torch.testing.assert_close(dict(resumed.model.state_dict()), dict(straight.model.state_dict()), rtol=0, atol=0)


@pytest.fixture
def small_trainer(data: Path) -> Callable[..., CSETrainer]:
    def make(output_dir: Path, stop_after: int | None = None, **options: Any) -> CSETrainer:
        trainer = small.make_trainer(data / "tiny-bert", data / "texts.txt", output_dir, **options)
        if stop_after is not None:
            trainer.add_callback(small.SignalAt(stop_after, int(signal.SIGTERM)))
        return trainer

    return make


# The export


def in_a_child(function: Callable[[], None]) -> int:
    """Run in a forked process; its exit code, -9 if it was killed."""
    if (child := os.fork()) == 0:
        try:
            function()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(name: str, count: int) -> Callable[..., Any]:
    """A replacement of a function that kills the process at its call number ``count``."""
    module, attribute = name.rsplit(".", 1)
    before = getattr(sys.modules[module], attribute)
    calls = 0

    def replacement(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return before(*args, **kwargs)

    return replacement


@pytest.mark.parametrize("method", ["simcse", "pretraining"])
def test_a_killed_export_leaves_the_old_encoder(
    method: str, data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill left a folder without modules.json, which SentenceTransformer loaded with another pooling."""
    folder = tmp_path / "encoder"
    export = exporter(method, data, folder)
    export()
    before = load_encoder(folder, pooling=None if method == "simcse" else "mean").encode(TEXTS)
    monkeypatch.setattr("csekit.modeling.export.save_tokenizer", killed_at("csekit.modeling.export.save_tokenizer", 1))
    target = "csekit.modeling.modeling_infocse_pretraining.save_tokenizer"
    monkeypatch.setattr(target, killed_at(target, 1))
    assert in_a_child(export) == -signal.SIGKILL
    after = load_encoder(folder, pooling=None if method == "simcse" else "mean").encode(TEXTS)
    assert (before == after).all()
    monkeypatch.undo()
    assert len(list(folder.glob(".*.draft"))) == 1
    export()
    assert not list(folder.glob(".*.draft"))


def exporter(method: str, data: Path, folder: Path) -> Callable[[], None]:
    from csekit.modeling import InfoCSEForPreTraining, SimCSEModel

    tokenizer = small.BertTokenizer.from_pretrained(data / "tiny-bert")
    if method == "simcse":
        model = SimCSEModel.from_backbone(data / "tiny-bert")
        return lambda: model.export(folder, tokenizer)
    stage1 = InfoCSEForPreTraining.from_backbone(data / "tiny-bert", split_layer=1)
    return lambda: stage1.export_checkpoint(folder, tokenizer)


@pytest.mark.parametrize("moved", [1, 3, 6])
def test_an_export_killed_while_its_files_move_says_so(
    moved: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModel

    folder = tmp_path / "encoder"
    export = exporter("simcse", data, folder)
    export()
    monkeypatch.setattr("os.replace", killed_at("os.replace", moved))
    assert in_a_child(export) == -signal.SIGKILL
    monkeypatch.undo()
    with pytest.raises(ValueError, match="the encoder in it is unfinished"):
        load_encoder(folder)
    with pytest.raises((OSError, ValueError), match="config"):
        AutoModel.from_pretrained(folder)
    export()
    assert load_encoder(folder).encode(TEXTS).shape == (3, 32)


def test_a_new_export_leaves_no_file_of_the_old_one(data: Path, tmp_path: Path) -> None:
    from csekit.modeling import SimCSEModel

    tokenizer = small.BertTokenizer.from_pretrained(data / "tiny-bert")
    (tmp_path / "training").mkdir()
    (tmp_path / "README.md").write_text("card")
    SimCSEModel.from_backbone(data / "tiny-bert", projector_at_inference=True).export(tmp_path, tokenizer)
    assert (tmp_path / "2_Dense").is_dir()
    SimCSEModel.from_backbone(data / "tiny-bert").export(tmp_path, tokenizer)
    assert not (tmp_path / "2_Dense").exists()
    assert (tmp_path / "README.md").read_text() == "card"
    assert (tmp_path / "training").is_dir()


def test_an_export_that_is_not_the_selected_encoder_is_an_error_with_both_scores(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A mixed-up checkpoint exported an encoder with dev 0.99 under a record of 29.83, with exit code 0."""

    def load_another(self: CSETrainer) -> None:
        for parameter in self.model.backbone.parameters():
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))

    monkeypatch.setattr(CSETrainer, "_load_best_model", load_another)
    assert run(tmp_path / "run") == 1
    line = error_line(capsys)
    state = json.loads((tmp_path / "run" / "training" / "trainer_state.json").read_text())
    assert f"the weights that training selected scored {state['best_metric']:.2f}" in line
    assert (tmp_path / "run" / "training" / "checkpoint-8").is_dir()


def test_without_a_dev_set_the_embeddings_are_compared(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from csekit.modeling import CSEModel

    export = CSEModel.export

    def changed(self: CSEModel, path: str, tokenizer: Any) -> Path:
        folder = export(self, path, tokenizer)
        weights = load_file(folder / "model.safetensors")
        weights["embeddings.word_embeddings.weight"].mul_(2)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    monkeypatch.setattr(CSEModel, "export", changed)
    assert run(tmp_path / "run", dev_file=None, max_steps=2) == 1
    assert "the saved encoder differs from the trained one by " in error_line(capsys)


# A full disk


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file may grow beyond this many bytes: writers fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [1_000, 150_000])
def test_a_full_disk_ends_the_training_in_one_line_and_it_resumes(
    room: int,
    run: Callable[..., int],
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """The weights fail first (safetensors), or the optimiser's state (torch)."""
    save = CSETrainer._save_checkpoint

    def crowded(self: CSETrainer, *args: Any) -> None:
        if self.state.global_step < 8:
            return save(self, *args)
        with full_disk(room):
            return save(self, *args)

    monkeypatch.setattr(CSETrainer, "_save_checkpoint", crowded)
    assert run(tmp_path / "run") == 1
    line = error_line(capsys)
    assert "checkpoint-8: no space left on the disk, " in line
    assert " MB free" in line
    assert "; earlier checkpoints are whole: " in line
    assert [path.name for path in (tmp_path / "run" / "training").glob("checkpoint-*")] == ["checkpoint-4"]
    monkeypatch.undo()
    assert run(tmp_path / "run", resume_from_checkpoint=True) == 0
    found, expected = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run", finished))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("step", ["csekit.trainers.scripts.runs.write_results", "csekit.modeling.CSEModel.export"])
def test_a_full_disk_after_training_is_one_line_and_it_resumes(
    step: str, run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    module, attribute = step.rsplit(".", 1)
    owner: Any = sys.modules[module] if module in sys.modules else sys.modules["csekit.modeling"].CSEModel
    write = getattr(owner, attribute)

    def crowded(*args: Any, **kwargs: Any) -> Any:
        with full_disk(100):
            return write(*args, **kwargs)

    monkeypatch.setattr(owner, attribute, crowded)
    assert run(tmp_path / "run") == 1
    assert "no space left on the disk, " in error_line(capsys)
    monkeypatch.undo()
    assert run(tmp_path / "run", resume_from_checkpoint=True) == 0
