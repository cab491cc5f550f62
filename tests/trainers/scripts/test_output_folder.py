"""The folder of a run: an earlier run in it stays until the new one is checked, and files of others stay."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder
from csekit.trainers import CSETrainer

FEW = ("--report_to", "none", "--disable_tqdm", "True", "--use_cpu", "True", "--max_steps", "2", "--eval_steps", "1",
       "--per_device_train_batch_size", "8", "--label_free_samples", "0", "--max_seq_length", "16")  # fmt: skip
PRETRAIN = ("--report_to", "none", "--disable_tqdm", "True", "--use_cpu", "True", "--max_steps", "2",
            "--block_length", "16", "--per_device_train_batch_size", "4")  # fmt: skip


def start(command: str, *words: object) -> Any:
    return CliRunner().invoke(main, [command, *map(str, words)])


def refused(command: str, *words: object) -> str:
    found = start(command, *words)
    assert found.exit_code == 2, found.output
    (line,) = [line for line in found.output.splitlines() if "error: " in line]
    return line


def files(folder: Path) -> dict[str, bytes]:
    """The content of all files but the lock's."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".run.")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def data(small: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    small.write_backbone(folder / "tiny-bert")
    small.write_texts(folder / "texts.txt", 40)
    words = ("--model_name_or_path", folder / "tiny-bert", "--train_file", folder / "texts.txt", *FEW)
    found = start("train", *words, "--output_dir", folder / "run", "--mlm_weight", "0.1", "--method", "joint",
                  "--objective_warmup_steps", "1")  # fmt: skip
    assert found.exit_code == 0, found.output
    return folder


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Path:
    """A finished run of its own, with checkpoints, results, objectives and teachers' vectors."""
    shutil.copytree(data / "run", tmp_path / "run")
    (tmp_path / "run" / "teachers").mkdir()
    (tmp_path / "run" / "teachers" / "0.npy").write_bytes(b"vectors")
    return tmp_path / "run"


@pytest.mark.parametrize("command", ["train", "train-pairs", "distill", "pretrain"])
@pytest.mark.parametrize("wrong", ["text", "model"])
def test_a_refused_overwrite_leaves_the_earlier_run(command: str, wrong: str, data: Path, run: Path) -> None:
    """``--overwrite`` deleted checkpoints and results, and then said that the new command has a typo."""
    before = files(run)
    text = data / ("typo.txt" if wrong == "text" else "texts.txt")
    model = data / ("typo-bert" if wrong == "model" else "tiny-bert")
    words = ["--model_name_or_path", model, "--train_file", text, "--output_dir", run, "--overwrite"]
    words += ["--teachers", f"{data / 'tiny-bert'}:mean"] if command == "distill" else []
    line = refused(command, *words, *(PRETRAIN if command == "pretrain" else FEW))
    assert "typo" in line or command == "train-pairs"
    assert files(run) == before


@pytest.mark.parametrize(
    ("option", "place"),
    [
        ("--objectives_from", "."),
        ("--objectives_from", "objectives"),
        ("--model_name_or_path", "training/checkpoint-2"),
        ("--model_name_or_path", "."),
        ("--train_file", "training/trainer_state.json"),
    ],
)
def test_a_run_does_not_replace_its_own_input(option: str, place: str, data: Path, run: Path) -> None:
    """The input was deleted, and then missing."""
    before = files(run)
    words = {"--model_name_or_path": data / "tiny-bert", "--train_file": data / "texts.txt", "--output_dir": run}
    words |= {option: run / place}
    given = [word for pair in words.items() for word in pair]
    line = refused("train", *given, *FEW, "--method", "joint", "--mlm_weight", "0.1", "--overwrite")
    assert f"{option} {run / place} lies in --output_dir {run}" in line
    assert files(run) == before


def test_a_killed_replacement_leaves_no_encoder_of_the_earlier_run(
    data: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder served the earlier run's encoder while another one was trained in it, and after a kill for good."""

    def killed(self: CSETrainer, *args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(CSETrainer, "train", killed)
    words = ("--model_name_or_path", data / "tiny-bert", "--train_file", data / "texts.txt", "--output_dir", run)
    assert load_encoder(run, device="cpu").encode(["a dog"]).shape == (1, 32)
    if (child := os.fork()) == 0:
        try:
            start("train", *words, *FEW, "--overwrite")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    for folder in (run, run / "training"):
        with pytest.raises((OSError, ValueError)):
            load_encoder(folder, device="cpu")
    monkeypatch.undo()
    assert start("train", *words, *FEW, "--overwrite").exit_code == 0
    assert load_encoder(run, device="cpu").encode(["a dog"]).shape == (1, 32)


@pytest.mark.parametrize("held", ["README.md", "config.json", "vocab.txt", "modules.json", "my.model", "2_Dense"])
@pytest.mark.parametrize("command", ["train", "pretrain"])
def test_a_folder_with_files_of_others_is_refused(command: str, held: str, data: Path, tmp_path: Path) -> None:
    """A run with ``--output_dir .`` replaced the README.md of the project and deleted its ``*.model`` files."""
    (tmp_path / held).mkdir() if held == "2_Dense" else (tmp_path / held).write_text("mine")
    before = files(tmp_path)
    words = ("--model_name_or_path", data / "tiny-bert", "--train_file", data / "texts.txt", "--output_dir", tmp_path)
    line = refused(command, *words, *(PRETRAIN if command == "pretrain" else FEW))
    assert f"{tmp_path} holds {held}, which no run wrote: choose another --output_dir" in line
    assert files(tmp_path) == before


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_the_folder_of_the_encoder_is_no_output_folder(overwrite: list[str], data: Path, tmp_path: Path) -> None:
    """The masked LM was replaced by the encoder that was trained from it."""
    own = shutil.copytree(data / "tiny-bert", tmp_path / "my-bert")
    before = files(own)
    words = ("--model_name_or_path", own, "--train_file", data / "texts.txt", "--output_dir", own)
    for command, few in (("train", FEW), ("pretrain", PRETRAIN)):
        assert f"--model_name_or_path {own} lies in --output_dir {own}" in refused(command, *words, *few, *overwrite)
    assert files(own) == before


def test_a_checkpoint_of_another_folder_does_not_open_an_output_folder(data: Path, run: Path, tmp_path: Path) -> None:
    """A checkpoint of one run was continued in the folder of another run, whose files were replaced."""
    other = shutil.copytree(run, tmp_path / "other")
    before = files(other)
    words = ("--model_name_or_path", data / "tiny-bert", "--train_file", data / "texts.txt", *FEW, "--method", "joint",
             "--mlm_weight", "0.1", "--objective_warmup_steps", "1")  # fmt: skip
    resume = ("--resume_from_checkpoint", run / "training" / "checkpoint-1")
    assert f"{other} already holds a run" in refused("train", *words, "--output_dir", other, *resume)
    assert files(other) == before
    found = start("train", *words, "--output_dir", run, *resume)
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("place", ["file", "file/inside", "nowhere", "loop"])
@pytest.mark.parametrize("script", ["run_unsup.py", "run_pretrain.py"])
def test_an_output_folder_that_is_none_is_named(
    script: str, place: str, started: Callable[..., str], backbone: Path, tmp_path: Path
) -> None:
    """Regression: a link to itself ended in a traceback, and a file in ``File exists``."""
    (tmp_path / "file").write_text("kept")
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent" / "deep")
    (tmp_path / "loop").symlink_to("loop")
    line = started(script, backbone, "--output_dir", str(tmp_path / place))
    assert f"output_dir must be a folder, got {tmp_path / place}: " in line
    assert (tmp_path / "file").read_text() == "kept"
