"""benchmarks/gpu.sh: the parts fit into ten minutes, one that fails does not end the others, each makes a table."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from csekit.evaluation.results import read_results
from experiments.tables.render import _BENCHMARKS, update

ROOT = Path(__file__).parents[2]
WORDS = "the a man woman dog cat plays sings runs red blue fast slow guitar ball house tree".split()  # noqa: SIM905
#: In place of Python: notes its arguments; one benchmark fails, another one sleeps.
STUB = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$STUB_CALLS"
case "$1" in
benchmarks/encode.py) echo "no such encoder" >&2 && exit 3 ;;
benchmarks/roofline.py) exec sleep "$STUB_SLEEP" ;;
esac
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """STS-B as SentEval has it, of random words, and sentences."""
    rng = random.Random(0)
    folder = tmp_path / "data" / "senteval" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    for name, count in (("dev", 1500), ("test", 1379)):
        pairs = ((" ".join(rng.choices(WORDS, k=4)), " ".join(rng.choices(WORDS, k=6))) for _ in range(count))
        lines = [f"g\tf\ty\t{i}\t{i % 11 / 2}\t{a}\t{b}\n" for i, (a, b) in enumerate(pairs)]
        (folder / f"sts-{name}.csv").write_text("".join(lines))
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) + "\n" for _ in range(200)]
    (tmp_path / "wiki.txt").write_text("".join(lines))
    return tmp_path / "data"


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("BACKBONE", "WIKI", "CSEKIT_DATA")}
    command = ["bash", str(ROOT / "benchmarks" / "gpu.sh"), *words]
    given = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, capture_output=True, text=True, env={**kept, **given})


@pytest.fixture
def stubbed(tmp_path: Path, data: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    (tmp_path / "python").write_text(STUB)
    (tmp_path / "python").chmod(0o755)
    calls = tmp_path / "calls.txt"

    def start(*words: str, sleep: str = "0") -> subprocess.CompletedProcess[str]:
        variables = {"PYTHON": str(tmp_path / "python"), "STUB_CALLS": str(calls), "STUB_SLEEP": sleep}
        variables |= {"WIKI": str(tmp_path / "wiki.txt"), "CSEKIT_DATA": str(data), "TMPDIR": str(tmp_path)}
        return run(*words, "--results", str(tmp_path / "results"), **variables)

    return start


def states(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    lines = [line[3:] for line in done.stdout.splitlines() if line.startswith("== ")]
    return {line.split(": ")[0]: line.split(": ")[1].rsplit(", ", 1)[0] for line in lines}


def test_parts_fit_into_ten_minutes_and_have_tables() -> None:
    parts = {name: int(seconds) for name, seconds in map(str.split, run("--list").stdout.splitlines())}
    assert sum(parts.values()) < 590 and next(iter(parts)) == "tests"
    assert {f"gpu/{name}" for name in parts if name != "tests"} == {n for n in _BENCHMARKS if n.startswith("gpu/")}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = run()
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: no CUDA device; --device cpu --quick tries the script without one\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--device"], "--device needs a value"),
        (["--device", "tpu"], "--device must be cuda or cpu, got tpu"),
        (["--only", "everything"], "--only must be one of tests peers compile .*, got everything"),
        (["--only", "encode:0"], "--only PART:SECONDS must be at least 1, got encode:0"),
        (["--seconds", "0"], "--seconds must be at least 1, got 0"),
        (["--fast"], "no such option: --fast"),
        (["--device", "cpu"], "WIKI must be a file of sentences, got ''"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], told: str) -> None:
    done = run(*words)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert re.search(told, done.stderr)


def test_a_part_that_fails_is_told_and_the_others_go_on(
    stubbed: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = stubbed("--device", "cuda")  # the stub says that there is a GPU
    found = states(done)
    assert done.returncode == 1 and "no such encoder" in done.stdout
    assert found.pop("encode") == "failed" and set(found.values()) == {"done"} and len(found) == 10
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert sum("--device cuda" in call for call in calls) == 10
    assert all("--precision bf16" in call for call in calls if "--train_file" in call)
    assert any(f"--output {tmp_path}/results/peers-bert-base-uncased.json" in call for call in calls)
    assert sum("-m pytest" in call and "-m gpu tests/" in call for call in calls) == 1


def test_a_part_that_runs_out_of_time_is_told(stubbed: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = stubbed("--device", "cpu", "--only", "roofline", "--only", "costs", "--seconds", "2", sleep="60")
    assert done.returncode == 1
    assert states(done) == {"roofline": "out of time", "costs": "not started, no time left"}
    done = stubbed("--device", "cuda", "--only", "roofline:1", "--only", "costs", sleep="60")
    assert states(done) == {"roofline": "out of time", "costs": "done"}


def test_the_peak_of_a_program(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    program, peak = tmp_path / "program.py", tmp_path / "peak.txt"
    program.write_text("import sys\nfrom beside import code\nprint(sys.argv[1:], __name__)\nsys.exit(code)\n")
    (tmp_path / "beside.py").write_text("code = 7\n")
    command = [sys.executable, str(ROOT / "benchmarks" / "peak_memory.py"), str(peak)]
    done = subprocess.run([*command, str(program), "--a", "b"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "['--a', 'b'] __main__\n")
    assert int(peak.read_text()) == 0 or torch.cuda.is_available()
    done = subprocess.run([*command, "-m", "csekit", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip()


@pytest.mark.slow
def test_all_parts_on_the_cpu(masked_lm: Path, data: Path, tmp_path: Path) -> None:
    for package in ("sentence_transformers", "mteb"):
        pytest.importorskip(package)
    variables = {"BACKBONE": str(masked_lm), "WIKI": str(tmp_path / "wiki.txt"), "CSEKIT_DATA": str(data)}
    results = tmp_path / "gpu"
    done = run("--device", "cpu", "--quick", "--results", str(results), TMPDIR=str(tmp_path), **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(states(done).values()) == {"done"}
    files = sorted(results.glob("*.json"))
    assert len(files) == 10 and not any(str(tmp_path) in path.read_text() for path in files)
    for path in files:
        assert read_results(path)["run"]["device"] == "cpu"
        table = update(f"<!-- table:gpu/{path.stem} -->\n<!-- end table -->\n", tmp_path)
        assert table.count("\n| ") >= 1, path.stem
