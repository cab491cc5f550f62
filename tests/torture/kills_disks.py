"""Full disks, read-only folders, and several processes on one output."""

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csekit.encoding.provenance import checksum
from csekit.evaluation.results import write_results

pytestmark = pytest.mark.torture


def words(data: Path, output: Path) -> list[str]:
    """A training of 15 steps with checkpoints every 4."""
    files = [
        "--model_name_or_path",
        data / "tiny-bert",
        "--train_file",
        data / "texts.txt",
        "--dev_file",
        data / "dev.tsv",
    ]
    sizes = ["--per_device_train_batch_size", 8, "--eval_steps", 4, "--logging_steps", 2, "--learning_rate", 1e-3]
    more = ["--output_dir", output, "--use_cpu", True, "--report_to", "none", "--do_predict", False]
    return ["examples/run_unsup.py", *map(str, [*files, *sizes, *more])]


def result(folder: Path) -> Any:
    state = json.loads((folder / "training" / "trainer_state.json").read_text())
    return checksum(folder / "model.safetensors"), state["best_metric"], state["global_step"]


@pytest.fixture
def reference(data: Path, start: Callable[..., Any], tmp_path: Path) -> Any:
    ended = start(*words(data, tmp_path / "straight")).end()
    assert ended.code == 0, ended.text[-3000:]
    return result(tmp_path / "straight")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """``disk("size=400k")``: a small disk of its own, or the same one with other options."""
    folder, mounted = tmp_path / "disk", False
    folder.mkdir()

    def mount(options: str) -> Path:
        nonlocal mounted
        options = f"remount,{options}" if mounted else options
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
        mounted = True
        return folder

    yield mount
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_trainings_on_a_full_disk_say_so_and_resume(
    data: Path,
    start: Callable[..., Any],
    reference: Any,
    disk: Callable[[str], Path],
    rounds: Iterator[random.Random],
    tally: Any,
) -> None:
    broken = []
    for rng in rounds:
        kilobytes = rng.randint(4, 2500)
        output = disk(f"size={kilobytes}k,rw") / "run"
        ended = start(*words(data, output)).end()
        outcome, detail = ended.outcome(), ended.text
        if outcome == "told in one line" and "space left" not in ended.text:
            outcome = "traceback"
        if outcome in ("held", "told in one line"):
            disk("size=64m,rw")
            again = start(*words(data, output), "--resume_from_checkpoint", "True").end()
            if again.code:
                outcome, detail = "lost", again.text
            elif result(output) != reference:
                outcome, detail = "silently wrong", "another encoder after the full disk"
        if not tally("full disk: train", outcome, f"{kilobytes} kB: {detail}"):
            broken.append(tally.broken[-1]["detail"])
        shutil.rmtree(output, ignore_errors=True)
    assert not broken, "\n\n".join(broken)


def commands(data: Path, output: Path) -> dict[str, list[str]]:
    tiny = str(data / "tiny-bert")
    encode = ["csekit", "encode", str(data / "long.txt"), "--model", tiny, "--pooling", "mean", "--chunk_rows", "400"]
    score = ["csekit", "eval", tiny, "--pooling", "mean", "--data_dir", str(data), "--tasks", "STS-B-dev"]
    return {
        "encode npy": [*encode, "-o", f"{output}/out.npy", "--no_progress"],
        "encode parquet": [*encode, "-o", f"{output}/out.parquet", "--no_progress"],
        "eval": [*score, "--output", f"{output}/out.json"],
        "export": [
            "csekit",
            "export",
            tiny,
            "--pooling",
            "mean",
            "-o",
            f"{output}/out",
            "--format",
            "sentence-transformers",
        ],
        "card": ["csekit", "card", run_record(data), "-o", f"{output}/card.md"],
        "report": ["csekit", "report", run_record(data), "-o", f"{output}/page.html", "--no_progress"],
        "train": words(data, output / "run"),
    }


def run_record(data: Path) -> str:
    """Write the results file of a run, as a card and a report read it, and return its path."""
    path = data / "run.json"
    if not path.exists():
        run = {"method": "simcse", "backbone": "b", "seed": 1, "corpus": {"name": "c"}, "config": {"pooling": "cls"}}
        run |= {"arguments": {}, "name": "n", "test": {"tasks": {"STS12": {"all": 5.0}}}}
        write_results(path, run, {"STS12": (np.linspace(0, 1, 9), np.arange(9) % 4.0)})
    return str(path)


@pytest.mark.parametrize("kind", ["encode npy", "encode parquet", "eval", "export", "card", "report"])
def test_commands_on_a_full_disk_say_so_and_go_on(
    kind: str,
    data: Path,
    start: Callable[..., Any],
    disk: Callable[[str], Path],
    rounds: Iterator[random.Random],
    tally: Any,
) -> None:
    broken = []
    for rng in rounds:
        kilobytes = rng.choice([4, 8, 12, rng.randint(4, 1000)])
        folder = disk(f"size={kilobytes}k,rw")
        ended = start(*commands(data, folder)[kind]).end()
        outcome, detail = ended.outcome(), ended.text
        if outcome == "told in one line" and "space" not in ended.text:
            outcome = "traceback"
        if outcome == "told in one line":
            disk("size=64m,rw")
            if start(*commands(data, folder)[kind]).end().code:
                outcome, detail = "lost", "the same command does not go on once there is room"
        if not tally(f"full disk: {kind}", outcome, f"{kilobytes} kB: {detail}"):
            broken.append(tally.broken[-1]["detail"])
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not broken, "\n\n".join(broken)


@pytest.mark.parametrize("kind", ["encode npy", "encode parquet", "eval", "export", "card", "report", "train"])
def test_a_read_only_output_is_one_line(
    kind: str, data: Path, start: Callable[..., Any], disk: Callable[[str], Path], tally: Any
) -> None:
    folder = disk("size=1m,ro")
    ended = start(*commands(data, folder)[kind]).end()
    outcome = "silently wrong" if ended.code == 0 else ended.outcome()
    assert tally(f"read-only: {kind}", outcome, ended.text), ended.text[-2000:]


def test_of_several_trainings_in_a_folder_one_wins(
    data: Path, start: Callable[..., Any], reference: Any, tmp_path: Path, rounds: Iterator[random.Random], tally: Any
) -> None:
    broken = []
    for number, rng in enumerate(rounds):
        output = tmp_path / f"shared-{number}"
        flags = rng.choice([["--overwrite"], ["--resume_from_checkpoint", "True"]])
        processes = [start(*words(data, output), *flags) for _ in range(rng.randint(2, 3))]
        ends = [process.end() for process in processes]
        codes = sorted(ended.code for ended in ends)
        told = all(ended.code == 0 or ended.outcome() == "told in one line" for ended in ends)
        if not told:
            outcome = "traceback"
        elif 0 not in codes:
            outcome = "lost"
        elif result(output) != reference:
            outcome = "silently wrong"
        else:
            outcome = "held"
        detail = "\n".join(ended.text[-700:] for ended in ends if ended.code)
        if not tally("2 or 3 trainings in a folder", outcome, f"{flags} {codes}: {detail}"):
            broken.append(f"{flags} {codes}: {detail}")
        shutil.rmtree(output)
    assert not broken, "\n\n".join(broken)
