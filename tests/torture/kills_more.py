"""Back-translation and pushes that are killed, clocks that jump, and the gradients of two processes."""

import hashlib
import random
import runpy
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.torture
TESTS = Path(__file__).parents[1]


# Back-translation


@pytest.fixture(scope="module")
def translators(data: Path) -> list[str]:
    """The options that name two random Marian models."""
    parts = runpy.run_path(str(TESTS / "trainers/data/test_back_translation.py"))
    words = runpy.run_path(str(TESTS / "trainers/small_runs.py"))["WORDS"]
    there = parts["write_translator"](data / "there", words)
    back = parts["write_translator"](data / "back", words[::-1])
    return ["--forward", str(there), "--backward", str(back), "--block_size", "4", "--batch_size", "4"]


def test_killed_back_translations_end_like_others(
    data: Path,
    translators: list[str],
    start: Callable[..., Any],
    tmp_path: Path,
    rounds: Iterator[random.Random],
    tally: Any,
) -> None:
    def words(target: Path) -> list[str]:
        return ["examples/back_translate.py", str(data / "texts.txt"), str(target), *translators]

    straight = start(*words(tmp_path / "straight.tsv")).end()
    assert straight.code == 0, straight.text[-3000:]
    reference = (tmp_path / "straight.tsv").read_bytes()
    broken = []
    for number, rng in enumerate(rounds):
        folder = tmp_path / f"killed-{number}"
        folder.mkdir()
        target, kills = folder / "pairs.tsv", []
        outcome, detail, done = "held", "", False
        for _ in range(rng.randint(1, 4)):
            kills.append((round(rng.uniform(0, straight.seconds), 2), rng.choice([signal.SIGKILL, signal.SIGTERM])))
            start(*words(target)).end(*kills[-1])
            if done := target.exists():  # the command refuses to write it again
                break
        ended = start(*words(target)).end()
        if done and ended.code == 2 and "exists already" in ended.text and target.read_bytes() == reference:
            pass
        elif ended.code != 0:
            outcome = "lost" if ended.outcome() == "told in one line" else "traceback"
            detail = ended.text
        elif target.read_bytes() != reference:
            outcome, detail = "silently wrong", "other pairs after the kills"
        elif left := sorted(p.name for p in folder.iterdir() if p.name not in ("pairs.tsv", "pairs.tsv.json")):
            outcome, detail = "lost", f"left behind: {left}"
        if not tally("kill: back-translation", outcome, f"kills {kills}: {detail}"):
            broken.append(tally.broken[-1]["detail"])
        shutil.rmtree(folder)
    assert not broken, "\n\n".join(broken)


# Pushes


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Hub on loopback, with ``hub.worker`` for commands that know it."""
    parts = SimpleNamespace(**runpy.run_path(str(TESTS / "hub_server.py")))
    with parts.HubServer() as server:
        server.users[parts.TOKEN] = "me"
        server.worker = parts.Worker(server.endpoint, tmp_path_factory.mktemp("home"))
        yield server
        server.worker.close()


def test_killed_pushes_publish_nothing_or_all(
    data: Path, hub: Any, start: Callable[..., Any], tmp_path: Path, rounds: Iterator[random.Random], tally: Any
) -> None:
    run = tmp_path / "run"
    files = ["--train_file", str(data / "texts.txt"), "--dev_file", str(data / "dev.tsv"), "--do_predict", "False"]
    sizes = ["--per_device_train_batch_size", "8", "--eval_steps", "8", "--use_cpu", "True", "--report_to", "none"]
    words = ["--model_name_or_path", str(data / "tiny-bert"), "--output_dir", str(run), *files, *sizes]
    assert start("examples/run_unsup.py", *words).end().code == 0
    straight = hub.worker.push(run, "me/straight")
    assert straight.code == 0, straight.errors
    reference = hub.repositories["me/straight"].files()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    broken = []
    for number, rng in enumerate(rounds):
        name, kills = f"me/killed-{number}", []
        outcome, detail = "held", ""
        for _ in range(rng.randint(1, 4)):
            kills.append(round(rng.uniform(0.01, straight.seconds * 1.1), 3))
            tally.kills += hub.worker.push(run, name, kill_after=kills[-1]).code < 0
            repository = hub.repositories.get(name)
            found = repository.files() if repository is not None else {}
            if len(found) > 1 and content(found, name) != content(reference, "me/straight"):
                outcome, detail = "silently wrong", f"a part is published: {sorted(found)}"
        ended = hub.worker.push(run, name)
        if ended.code != 0:
            outcome = "traceback" if "Traceback" in ended.errors else "lost"
            detail = ended.errors
        elif content(hub.repositories[name].files(), name) != content(reference, "me/straight"):
            outcome, detail = "silently wrong", "another content after the kills"
        elif {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} != before:
            outcome, detail = "lost", "the run's folder has changed"
        if not tally("kill: push", outcome, f"kills {kills}: {detail}"):
            broken.append(tally.broken[-1]["detail"])
        hub.repositories.pop(name, None)
    assert not broken, "\n\n".join(broken)


def content(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    """The files of a repository without its name, which the card holds, and without the card's checksum of itself,
    which must be right. A repository without a card has been created, no more."""
    files = dict(files)
    if card := files.get("README.md"):
        text, mark, seal = card.rpartition(b"<!-- sha256 of the card above: ")
        assert seal == hashlib.sha256(text).hexdigest().encode() + b" -->\n", f"{name}: {(mark + seal).decode()}"
        files["README.md"] = text
    return {path: value.replace(name.encode(), b"NAME") for path, value in files.items()}


# Clocks


def test_trainings_with_a_jumping_clock_end_like_others(
    data: Path, start: Callable[..., Any], tmp_path: Path, rounds: Iterator[random.Random], tally: Any
) -> None:
    """The clock jumps by up to ten days in both directions; half of the trainings are killed and resumed as well."""

    def words(output: Path) -> list[str]:
        files = ["--train_file", str(data / "texts.txt"), "--dev_file", str(data / "dev.tsv"), "--do_predict", "False"]
        sizes = [
            "--per_device_train_batch_size",
            "8",
            "--eval_steps",
            "4",
            "--logging_steps",
            "2",
            "--use_cpu",
            "True",
        ]
        more = ["--report_to", "none", "--resume_from_checkpoint", "True", "--output_dir", str(output)]
        return ["examples/run_unsup.py", "--model_name_or_path", str(data / "tiny-bert"), *files, *sizes, *more]

    def weights(output: Path) -> bytes:
        return (output / "model.safetensors").read_bytes()

    straight = start(*words(tmp_path / "straight")).end()
    assert straight.code == 0, straight.text[-3000:]
    reference, broken = weights(tmp_path / "straight"), []
    for number, rng in enumerate(rounds):
        output = tmp_path / f"jumped-{number}"
        after = rng.choice([None, rng.uniform(0, straight.seconds)])
        ended = start(*words(output), clock=rng.random()).end(after)
        if after is not None:
            ended = start(*words(output), clock=rng.random()).end()
        outcome, detail = ended.outcome(), ended.text
        if outcome == "told in one line":
            outcome = "lost"  # nothing was wrong but the clock
        elif outcome == "held" and weights(output) != reference:
            outcome, detail = "silently wrong", "another encoder"
        if not tally("clock jumps: train", outcome, f"killed after {after}: {detail}"):
            broken.append(tally.broken[-1]["detail"])
        shutil.rmtree(output, ignore_errors=True)
    assert not broken, "\n\n".join(broken)


# Two processes


def test_two_processes_give_the_gradients_of_one(
    tmp_path: Path, rounds: Iterator[random.Random], tally: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every objective, on other weights and another batch in every round, in float32 and bfloat16."""
    path = TESTS / "modeling" / "distributed_worker.py"
    worker = SimpleNamespace(**runpy.run_path(str(path)))
    worker.write_generator(tmp_path / "generator")
    broken = []
    for rng in rounds:
        seed, bf16 = rng.randint(0, 10**6), rng.choice([0, 1])
        monkeypatch.setenv("CSEKIT_TEST_SEED", str(seed))
        monkeypatch.setenv("CSEKIT_TEST_BF16", str(bf16))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        calls = [[sys.executable, str(path), rank, port, str(tmp_path)] for rank in ("0", "1")]
        processes = [subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for call in calls]
        one = {name: worker.run(None, tmp_path / "generator", **case) for name, case in worker.CASES.items()}
        printed = [process.communicate(timeout=600)[0].decode() for process in processes]
        if any(process.returncode for process in processes):
            tally("2 processes: gradients", "traceback", "".join(printed))
            broken.append("".join(printed)[-3000:])
            continue
        two = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
        for name in worker.CASES:
            wrong = different(one[name]["gradients"], [each[name]["gradients"] for each in two], bool(bf16))
            kind = "bfloat16" if bf16 else "float32"
            if not tally(
                f"2 processes: {kind}", "silently wrong" if wrong else "held", f"{name}, seed {seed}: {wrong}"
            ):
                broken.append(f"{name}, seed {seed}, {kind}: {wrong}")
    assert not broken, "\n".join(broken)


def different(one: dict[str, Tensor], two: list[dict[str, Tensor]], bf16: bool) -> str:
    """What differs: both processes must agree to the bit, and with one process within the precision's rounding."""
    whole = torch.cat([gradient.flatten().double() for gradient in one.values()])
    halves = [torch.cat([each[name].flatten().double() for name in one]) for each in two]
    if not torch.equal(*halves):
        return "the processes have different gradients"
    error = ((halves[0] - whole).norm() / whole.norm().clamp_min(1e-12)).item()
    return f"relative error {error:.2e}" if not error < (3e-2 if bf16 else 1e-4) else ""
