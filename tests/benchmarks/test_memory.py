"""Benchmarks of memory: what they measure is measured, and in the order that the tables want."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from csekit.evaluation.results import read_results
from experiments.tables.render import update

ROOT = Path(__file__).parents[2]
TEXTS = [f"the {animal} {verb} in the house" for animal in ("dog", "cat") for verb in ("runs", "sings", "plays")]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def test_a_step_with_cache_is_measured(script: Callable[[str], ModuleType], masked_lm: Path, texts: Path) -> None:
    setting = script("train_step").Setting(str(masked_lm), "cpu", "fp32", 16, 1)
    module, sent = script("memory"), []
    _, wanted = module.chosen("simcse-tanh")
    rows = [{"texts": [text], "index": i, "epoch": 0} for i, text in enumerate(TEXTS)]
    module.serve(SimpleNamespace(send=sent.append), setting, wanted, [rows], 4)
    assert sent[0]["seconds"] > 0 and sent[0]["memory"] >= 0
    with pytest.raises(ValueError, match="methods must be among simcse-tanh"):
        module.chosen("simcse")
    for bad in (["--batch_sizes", "0"], ["--chunk_sizes", "-1"]):
        argv = ["--model_name_or_path", "a", "--train_file", "b", "--output", "c", *bad]
        with pytest.raises(SystemExit):
            module.read_arguments(argv)


@pytest.mark.slow
def test_the_script(masked_lm: Path, texts: Path, tmp_path: Path) -> None:
    output = tmp_path / "memory" / "tiny.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "memory.py"), "--model_name_or_path", str(masked_lm)]
    command += ["--train_file", str(texts), "--output", str(output), "--batch_sizes", "4", "--chunk_sizes", "0", "2"]
    done = subprocess.run([*command, "--steps", "1", "--threads", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [row["chunk_size"] for row in read_results(output)["rows"]] == [0, 2]
    assert "| whole batch |" in update("<!-- table:memory/tiny -->\n<!-- end table -->\n", tmp_path)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_a_corpus_is_read_twice_and_made_into_batches(
    script: Callable[[str], ModuleType],
    masked_lm: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, seen = script("corpus"), []

    def here(function: Any, stage: str, model: str, path: Path, *rest: Any) -> dict[str, Any]:
        seen[:] = path.read_text().splitlines()
        return function(stage, model, path, *rest)

    monkeypatch.setattr(module, "in_own_process", here)
    output = tmp_path / "corpus" / "tiny.json"
    argv = ["--model_name_or_path", str(masked_lm), "--train_file", str(texts), "--output", str(output)]
    argv += ["--batch_size", "2"]
    with pytest.raises(SystemExit):
        module.main([*argv, "--lines", "1999"])
    module.main([*argv, "--lines", "10", "--batches", "4"])
    assert len(set(seen)) == 10 and seen[6] == f"{TEXTS[0]} 6"
    (row,) = read_results(output)["rows"]
    assert row["lines"] == 10 and row["bytes"] == sum(len(line) + 1 for line in seen)
    assert all(row[stage]["cpu_seconds"] > 0 for stage in ("first_start", "later_start", "batches"))
    assert "| 10 |" in update("<!-- table:corpus/tiny -->\n<!-- end table -->\n", tmp_path)


def test_memory_of_a_block_is_seen(script: Callable[[str], ModuleType]) -> None:
    module = script("corpus")
    with module.Peak(module.resident()) as peak:
        held = bytearray(b"1") * (64 << 20)
        threading.Event().wait(0.2)
        del held
    assert 60 << 20 < peak.row()["private"] < 100 << 20


def test_parts_of_a_step(script: Callable[[str], ModuleType], masked_lm: Path, texts: Path, tmp_path: Path) -> None:
    script("train_step")
    module, output = script("collator"), tmp_path / "collator" / "tiny.json"
    argv = ["--model_name_or_path", str(masked_lm), "--train_file", str(texts), "--output", str(output)]
    argv += ["--batch_size", "2", "--max_seq_length", "16", "--steps", "1", "--methods", "infocse"]
    module.main([*argv, "--batches", "3"])
    (row,) = read_results(output)["rows"]
    assert row["tokenise"] > 0 and 0 < row["collate"] < row["step"]
    assert "| InfoCSE |" in update("<!-- table:collator/tiny -->\n<!-- end table -->\n", tmp_path)
    with pytest.raises(SystemExit, match="must hold 4 batches of 2, got 6 rows"):
        module.main([*argv, "--batches", "4"])
    with pytest.raises(SystemExit):
        module.main([*argv, "--batches", "1"])
