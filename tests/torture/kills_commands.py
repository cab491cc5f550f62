"""Commands killed at random moments: their output is absent or whole, and the next call completes it."""

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from csekit.encoding.provenance import checksum
from csekit.encoding.stores import differences

pytestmark = pytest.mark.torture

TIMES = ("seconds", "environment", "time", "texts_per_second")


def commands(data: Path, output: Path) -> dict[str, tuple[list[str], Path]]:
    """For each command its words and what it writes."""
    tiny = str(data / "tiny-bert")
    encode = ["csekit", "encode", str(data / "long.txt"), "--model", tiny, "--pooling", "mean", "--chunk_rows", "400"]
    score = ["csekit", "eval", tiny, "--pooling", "mean", "--data_dir", str(data), "--tasks", "STS-B-dev"]
    export = ["csekit", "export", tiny, "--pooling", "mean", "--format", "sentence-transformers"]
    return {
        "encode npy": ([*encode, "-o", f"{output}.npy", "--no_progress"], Path(f"{output}.npy")),
        "encode parquet": ([*encode, "-o", f"{output}.parquet", "--no_progress"], Path(f"{output}.parquet")),
        "eval": (
            [*score, "--output", f"{output}.json"],
            Path(f"{output}.json"),
        ),
        "export": (
            [*export, "-o", str(output), "--overwrite"],
            output,
        ),
    }


def content(path: Path) -> Any:
    """What must be the same: a file's bytes, or the values of a JSON file without times; {} where there is nothing."""
    if path.is_dir():
        files = [p for p in sorted(path.rglob("*")) if p.is_file() and ".draft" not in p.name]
        return {str(p.relative_to(path)): content(p) for p in files}
    if not path.exists():
        return {}
    return without_times(json.loads(path.read_text())) if path.suffix == ".json" else checksum(path)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(inner) for name, inner in value.items() if name not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", ["encode npy", "encode parquet", "eval", "export"])
def test_killed_commands_leave_nothing_or_all(
    kind: str, data: Path, start: Callable[..., Any], tmp_path: Path, rounds: Iterator[random.Random], tally: Any
) -> None:
    words, written = commands(data, tmp_path / "straight" / "out")[kind]
    written.parent.mkdir()
    straight = start(*words).end()
    assert straight.code == 0, straight.text[-3000:]
    reference = content(written)
    broken = []
    for number, rng in enumerate(rounds):
        folder = tmp_path / f"killed-{number}"
        folder.mkdir()
        words, written = commands(data, folder / "out")[kind]
        outcome, detail, kills = "held", "", []
        for _ in range(rng.randint(1, 4)):
            kills.append((round(rng.uniform(0, straight.seconds), 2), rng.choice([signal.SIGKILL, signal.SIGTERM])))
            ended = start(*words).end(*kills[-1])
            if ended.code not in (0, -signal.SIGKILL, -signal.SIGTERM):
                outcome = "lost" if ended.outcome() == "told in one line" else "traceback"
                detail = ended.text
                break
            found = content(written)
            if found and kind != "encode parquet" and found != reference:
                outcome, detail = "silently wrong", f"neither absent nor whole: {list(differences(reference, found))}"
                break
        if outcome == "held":
            ended = start(*words).end()
            if ended.code != 0:
                outcome = "lost" if ended.outcome() == "told in one line" else "traceback"
                detail = ended.text
            elif content(written) != reference:
                outcome, detail = "silently wrong", str(list(differences(reference, content(written))))
            elif left := [p.name for p in folder.iterdir() if p.name.endswith((".draft", ".old"))]:
                outcome, detail = "lost", f"drafts of killed processes are left: {left}"
        if not tally(f"kill: {kind}", outcome, f"kills {kills}: {detail}"):
            broken.append(tally.broken[-1]["detail"])
        shutil.rmtree(folder)
    assert not broken, "\n\n".join(broken)


def test_killed_workers_leave_no_process(
    data: Path, tmp_path: Path, rounds: Iterator[random.Random], tally: Any
) -> None:
    broken = []
    for number, rng in enumerate(rounds):
        words, _ = commands(data, tmp_path / str(number))["encode npy"]
        argv = [sys.executable, "-c", "from csekit.cli import main; main()", *words[1:], "--num_workers", "2"]
        seconds = rng.uniform(1, 25)
        with subprocess.Popen(argv, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                children = psutil.Process(process.pid).children(recursive=True)
                process.kill()
                process.wait()
                tally.kills += 1
                _, alive = psutil.wait_procs(children, timeout=90)  # those that still import torch end after it
                left = [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
                if not tally(
                    "kill: encode with 2 workers", "lost" if left else "held", f"after {seconds:.1f} s: {left}"
                ):
                    broken.append(f"{seconds:.1f} s: {left}")
    assert not broken


PLAN = """
name: tortured
script: examples/run_unsup.py
seeds: [1, 2]
arguments:
  model_name_or_path: {data}/tiny-bert
  train_file: {data}/texts.txt
  dev_file: {data}/dev.tsv
  test_file: {data}/test.tsv
  per_device_train_batch_size: 8
  eval_steps: 4
  logging_steps: 2
  learning_rate: 0.001
  use_cpu: true
  report_to: none
experiments:
  simcse: {{}}
"""


def test_killed_drivers_of_trials_end_like_others(
    data: Path, start: Callable[..., Any], tmp_path: Path, rounds: Iterator[random.Random], tally: Any
) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN.format(data=data))

    def words(name: str) -> list[str]:
        places = ["--output_dir", str(tmp_path / name / "runs"), "--results_dir", str(tmp_path / name / "results")]
        return ["run_seeds", str(tmp_path / "plan.yaml"), *places]

    def scores(name: str) -> Any:
        files = sorted((tmp_path / name / "results").rglob("seed=*.json"))
        return {file.name: [json.loads(file.read_text())[part] for part in ("dev", "test", "log")] for file in files}

    straight = start(*words("straight")).end(timeout=900)
    assert straight.code == 0, straight.text[-3000:]
    reference, broken = scores("straight"), []
    assert len(reference) == 2
    for number, rng in enumerate(rounds):
        name, kills = f"killed-{number}", []
        for _ in range(rng.randint(1, 2)):
            kills.append(round(rng.uniform(0, straight.seconds), 2))
            start(*words(name)).end(kills[-1])
        ended = start(*words(name)).end(timeout=900)
        outcome, detail = ("held", "") if ended.code == 0 else ("lost", ended.text)
        if ended.code == 0 and scores(name) != reference:
            outcome, detail = "silently wrong", "other scores after the kills"
        if not tally("kill: run_seeds", outcome, f"kills {kills}: {detail}"):
            broken.append(tally.broken[-1]["detail"])
    assert not broken, "\n\n".join(broken)


def test_a_process_killed_with_the_progress_lock_stops_no_other(
    data: Path, start: Callable[..., Any], tmp_path: Path, lost_progress_lock: None
) -> None:
    words, written = commands(data, tmp_path / "out")["eval"]
    ended = start(*words).end(timeout=60)
    assert ended.code == 0, ended.text[:3000]
    assert written.is_file()
