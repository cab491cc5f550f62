"""Both sides score the same sets of the same encoder, and their scores agree."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from csekit.evaluation import sts_data
from csekit.evaluation.results import read_results
from csekit.modeling import SimCSEModel
from experiments.tables.render import update

pytest.importorskip("mteb", reason="needs the extra mteb")
WORDS = "the a man woman dog cat plays sings runs red blue fast slow guitar ball house tree".split()  # noqa: SIM905


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    counts = {"STS-B": {"test": 20}, "SICK-R": {"test": 30}}
    monkeypatch.setattr(sts_data, "COUNTS", {**sts_data.COUNTS, **counts})
    rng = np.random.default_rng(0)

    def rows(count: int) -> list[tuple[str, str, float]]:
        return [(" ".join(rng.choice(WORDS, 4)), " ".join(rng.choice(WORDS, 6)), i % 11 / 2) for i in range(count)]

    (tmp_path / "STS/STSBenchmark").mkdir(parents=True)
    lines = [f"g\tf\ty\t{i}\t{score}\t{a}\t{b}\n" for i, (a, b, score) in enumerate(rows(20))]
    (tmp_path / "STS/STSBenchmark/sts-test.csv").write_text("".join(lines))
    (tmp_path / "SICK").mkdir()
    lines = [
        "id\ta\tb\tscore\tjudgement\n",
        *(f"{i}\t{a}\t{b}\t{score}\tX\n" for i, (a, b, score) in enumerate(rows(30))),
    ]
    (tmp_path / "SICK/SICK_test_annotated.txt").write_text("".join(lines))
    return tmp_path


def test_the_benchmark(
    script: Callable[[str], ModuleType], masked_lm: Path, tiny_tokenizer: Any, data: Path, capsys: Any
) -> None:
    model = SimCSEModel.from_backbone(str(masked_lm), pooling="mean")
    with torch.no_grad():  # large weights: the sentences of an untrained encoder tie up to rounding
        for parameter in model.backbone.parameters():
            parameter *= 20 if parameter.ndim == 2 else 1
    export = model.export(data / "export", tiny_tokenizer)
    output = data / "results" / "speed" / "tiny.json"
    argv = [str(export), "--data_dir", str(data), "--tasks", "STS-B,SICK-R", "--output", str(output)]
    module = script("evaluation")
    module.main([*argv, "--device", "cpu", "--threads", "1", "--repetitions", "2", "--batch_size", "8"])
    results = read_results(output)
    assert [row["name"] for row in results["sides"]] == ["csekit", "mteb", "adapter"]
    for row in results["sides"]:
        assert len(row["all_seconds"]) == 2
        assert min(row["all_seconds"]) > 0 < row["cpu_seconds"]
        assert set(row["scores"]) == {"STS-B", "SICK-R"}
    assert results["sides"][0]["time_ratio"] == 1 and results["largest_difference"] < 1e-2
    assert results["run"]["sentences"] == 100 and results["run"]["encoder"] == "export"
    assert "`mteb.evaluate`, SentenceTransformer" in capsys.readouterr().out
    page = update("<!-- table:speed/tiny -->\n<!-- end table -->\n", data / "results")
    assert "| `evaluate_sts` |" in page and "2 STS sets, 100 sentences" in page


def test_bad_arguments(script: Callable[[str], ModuleType], masked_lm: Path, capsys: Any) -> None:
    module = script("evaluation")
    with pytest.raises(SystemExit):
        module.main([str(masked_lm), "--data_dir", "x", "--output", "y.json"])
    assert "must be a SentenceTransformer folder (with modules.json)" in capsys.readouterr().err
    assert sys.modules["evaluation"] is module
