"""Benchmark of scaling: every part measures what its rows say, sides take turns, the table is made of the file."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from csekit.evaluation.results import read_results
from experiments.tables.render import update

ROOT = Path(__file__).parents[2]
TEXTS = [f"the {animal} {verb} in the house" for animal in ("dog", "cat") for verb in ("runs", "sings", "plays")]
PARTS = ["corpus", "batch", "cached", "length"]


@pytest.fixture
def argv(masked_lm: Path, tmp_path: Path) -> list[str]:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    argv = ["--model_name_or_path", str(masked_lm), "--train_file", str(path), "--batch_size", "4", "--threads", "1"]
    argv += ["--output", str(tmp_path / "benchmarks" / "scaling-tiny.json"), "--repetitions", "2"]
    argv += ["--cached_batch_sizes", "4", "6", "--cache_chunk_size", "4"]
    return [*argv, "--lines", "16", "40", "--batch_sizes", "2", "4", "--lengths", "6", "12"]


@pytest.fixture
def scaling(script: Callable[[str], ModuleType]) -> ModuleType:
    for name in ("train_step", "corpus"):
        script(name)
    return script("scaling")


def test_parts_and_table(
    scaling: ModuleType, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    build = scaling.csekit_step

    def remember(setting: Any, *rest: Any, **more: Any) -> Any:
        step = build(setting, *rest, **more)
        return lambda rows: (seen.append((setting.max_seq_length, rows)), step(rows))

    monkeypatch.setattr(scaling, "csekit_step", remember)
    monkeypatch.setattr(scaling, "in_own_process", lambda function, *arguments: function(*arguments))
    scaling.main([*argv, "--parts", *PARTS])
    written = read_results(tmp_path / "benchmarks" / "scaling-tiny.json")
    found = written["rows"]
    titles = ["corpus of 16 lines", "corpus of 40 lines", "batch of 2", "batch of 4"]
    titles += ["batch of 4 in chunks of 4 texts", "batch of 6 in chunks of 4 texts"]
    assert [row["title"] for row in found] == [*titles, "6 tokens a text", "12 tokens a text"]
    assert [row["sentences"] for row in found] == [4, 4, 2, 4, 4, 6, 4, 4]
    assert all(row["seconds"] > 0 for row in found) and [found[i]["ratio"] for i in (0, 2, 4, 6)] == [1, 1, 1, 1]
    assert all(min(row["first_start"], row["later_start"]) > 0 for row in found[:2])
    assert set(written["exponents"]) == {*PARTS, "corpus, first_start", "corpus, later_start"}
    indices = [[row["index"] for row in rows] for _, rows in seen[:16]]
    assert indices[:4] == indices[4:8] and max(map(max, indices[8:])) > 15  # shuffled, of the whole corpus
    assert [len(rows) for _, rows in seen[16:22]] == [2, 4] * 3
    assert [len(rows) for _, rows in seen[22:28]] == [4, 6] * 3
    assert [length for length, _ in seen[28:]] == [6, 12] * 3
    assert all(length <= len(row["texts"][0].split()) < length + 6 for length, rows in seen[28:] for row in rows)
    table = update("<!-- table:benchmarks/scaling-tiny -->\n<!-- end table -->\n", tmp_path)
    assert "| batch of 4 |" in table
    assert "first start, s" in table
    assert "median of 2 steps" in table and "size and time: lines of the corpus " in table


def test_the_exponent_is_that_of_the_power(scaling: ModuleType) -> None:
    rows = [{"part": "length", "size": n, "seconds": 0.2 * n**1.5, "first_start": 3.0 * n} for n in (16, 32, 512)]
    found = scaling.exponents([*rows, {"part": "processes", "seconds": 1.0}])
    assert found == pytest.approx({"length": 1.5, "length, first_start": 1.0})


def test_a_side_that_slows_down_takes_the_others_along(scaling: ModuleType) -> None:
    calls: list[str] = []

    def side(name: str, factor: float) -> Callable[[Any], float]:
        def take(rows: Any) -> float:
            calls.append(f"{name}{rows[0]}")
            return factor * 3.0 ** rows[0]

        return take

    batches = [[0, 0], [1, 1], [2, 2]]
    found = scaling.in_turn({"a": (side("a", 1.0), batches), "b": (side("b", 2.5), batches)}, "part", 1)
    assert calls == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert [(row["title"], row["seconds"], row["ratio"]) for row in found] == [("a", 6.0, 1.0), ("b", 15.0, 2.5)]


@pytest.mark.parametrize(
    "bad", [["--lines", "15"], ["--batch_sizes", "1"], ["--lengths", "2"], ["--processes", "3"], ["--parts", "steps"]]
)
def test_bad_arguments(scaling: ModuleType, argv: list[str], bad: list[str]) -> None:
    with pytest.raises(SystemExit):
        scaling.read_arguments([*argv, *bad])


@pytest.mark.slow
def test_two_processes(argv: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "scaling.py"), *argv, "--parts", "processes"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = read_results(tmp_path / "benchmarks" / "scaling-tiny.json")["rows"]
    assert [row["title"] for row in found] == ["1 process, 1 threads", "2 processes, 1 threads each"]


def test_processes_share_no_gpu(scaling: ModuleType, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling.read_arguments([*argv, "--device", "cuda"]).parts == PARTS
    assert scaling.read_arguments([*argv, "--device", "cpu"]).parts == [*PARTS, "processes"]
    with pytest.raises(SystemExit):
        scaling.read_arguments([*argv, "--device", "cuda", "--parts", "processes"])
    assert (
        "--parts must be among corpus, batch, cached, length with --device cuda, got processes"
        in capsys.readouterr().err
    )
