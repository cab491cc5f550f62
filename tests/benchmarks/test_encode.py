"""Both sides compute the same embeddings; they take turns; ratios are taken within a turn."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from csekit.evaluation.results import read_results
from experiments.tables.costs import encoding_table
from experiments.tables.render import update

TEXTS = ["the man plays guitar", "a woman sings", "the dog runs in the house", "a cat is on the tree", "a cat is red"]


def test_sides_take_turns_and_ratios_are_within_a_turn(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, calls, clock = script("encode"), [], [0.0]

    def side(name: str, seconds: float) -> Any:
        def encode(texts: list[str]) -> np.ndarray:
            calls.append(name)
            clock[0] += seconds * 3.0 ** (len(calls) // 2)
            return np.eye(2)[: len(texts)]

        return encode

    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(module.time, "process_time", lambda: 2 * clock[0])
    sides = {("sentence-transformers", "fp32"): side("a", 3.0), ("csekit", "fp32"): side("b", 1.0)}
    first, second = module.in_turn(sides, ["x", "y"], 3, "cpu")
    assert calls == ["a", "b"] * 4
    assert first["speedup"] == 1 and second["speedup"] == pytest.approx(1.0)  # 3 · 3ⁿ against 1 · 3ⁿ⁺¹
    assert second["cpu_speedup"] == pytest.approx(1.0) and second["least_cosine"] == 1


def test_the_script(script: Callable[[str], ModuleType], masked_lm: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    (tmp_path / "texts.txt").write_text("\n".join([TEXTS[0], *TEXTS, ""]))
    (tmp_path / "pairs.tsv").write_text("s\tt\n" + "\n".join(f"{text}\tx" for text in TEXTS))
    output = tmp_path / "benchmarks" / "encode-tiny.json"
    module = script("encode")
    argv = ["--model_name_or_path", str(masked_lm), "--texts", str(tmp_path / "texts.txt")]
    argv += [f"{tmp_path / 'pairs.tsv'}:s", "--output", str(output), "--sentences", "4", "--repetitions", "2"]
    module.main([*argv, "--max_length", "20", "--device", "cpu", "--threads", "1"])
    results = read_results(output)
    pytest.importorskip("onnxscript")
    assert len(results["rows"]) == 2 * 2 * 7 and str(tmp_path) not in output.read_text()
    for row in results["rows"]:
        least = {"fp32": 0.99999, "bf16": 0.99, "int8": 0.9}[row["precision"]]
        assert row["sentences"] == 4 and row["least_cosine"] > least, row
        assert (row["speedup"] == 1) == (row["side"] == "sentence-transformers")
        assert (row["speedup_over_onnxruntime"] == 1) == (row["side"] == "onnxruntime")
        assert (row["speedup_over_onnxruntime"] is None) == (row["precision"] == "bf16")
    page = update("<!-- table:benchmarks/encode-tiny -->\n<!-- end table -->\n", tmp_path)
    assert (
        "| csekit | texts.txt (4) | cls | int8 |" in page and "| onnxruntime | texts.txt (4) | mean | int8 |" in page
    )
    assert "backbone tiny" in page
    assert "STS-B" not in page
    results["stsb_dev"] = [{"precision": "fp32", "spearman": 73.0}, {"precision": "int8", "spearman": 72.5}]
    assert encoding_table(results)[0].endswith("Spearman × 100: fp32 73.00, int8 72.50.")
    with pytest.raises(SystemExit, match="no such file"):
        module.main([*argv[:2], "--texts", "nowhere.txt", *argv[5:]])
