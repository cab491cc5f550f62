"""Scores by length are those of the naive formula, and the table is made of the files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr

from csekit.evaluation.pairs import Pairs
from csekit.evaluation.results import FORMAT
from csekit.evaluation.sts_data import STSTask
from experiments import score_uses
from experiments.score_uses import by_length, main
from experiments.tables.render import update


def test_thirds_are_those_of_the_naive_formula() -> None:
    rng = np.random.default_rng(0)
    tasks, similarities, expected = [], {}, []
    for name in ("a", "b"):
        lengths = rng.permutation(np.arange(2, 62)).reshape(30, 2)
        texts = [["w " * n for n in side] for side in lengths.T]
        gold, cosines = rng.normal(size=30), rng.normal(size=30)
        halves = [slice(0, 12), slice(12, 30)]
        subsets = [Pairs("s", tuple(texts[0][h]), tuple(texts[1][h]), gold[h]) for h in halves]
        tasks.append(STSTask(name, tuple(subsets)))
        similarities[name] = (cosines, gold)
        longest = sorted(range(30), key=lambda i: lengths[i].sum())[20:]
        unequal = sorted(range(30), key=lambda i: abs(lengths[i, 0] - lengths[i, 1]))[20:]
        expected.append([100 * spearmanr(cosines[part], gold[part]).statistic for part in (longest, unequal)])
    found = by_length(tasks, similarities)
    assert [len(row) for row in found.values()] == [3, 3]
    assert [found["length"][-1], found["difference"][-1]] == pytest.approx(np.mean(expected, axis=0).tolist())


def record(avg: float, seed: int | None) -> dict[str, Any]:
    run = None if seed is None else {"seed": seed}
    scores = {
        "sts": {"avg": avg},
        "lengths": {"length": [70.0, 71.0, 72.5], "difference": [1.0, 2.0, 60.25]},
        "geometry": {"alignment": 0.2, "uniformity": -2.0},
        "transfer": {"avg": 80.5},
        "scifact": {"metrics": {"ndcg@10": 20.25}},
        "banking77": {"accuracy": 66.0},
    }
    return {"run": {"encoder": {"precision": "bf16"}, "run": run}, "scores": scores}


def test_the_table_is_sorted_and_names_what_was_trained(tmp_path: Path) -> None:
    files = {
        "uses/simcse": record(72.0, 44),
        "uses/untrained": record(69.0, None),
        "field/summary": {"experiments": {"simcse": {"title": "SimCSE"}}},
        "costs/field-minilm-wiki-cpu-bf16": {"methods": [{"name": "simcse", "time_ratio": 1.0}]},
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.json").write_text(json.dumps({"format": FORMAT, **content}))
    page = update("<!-- table:uses -->\n<!-- end table -->\n", tmp_path).splitlines()
    assert "seed 44, encoded in bf16" in page[2]
    numbers = "70.00 | 72.50 | 60.25 | 80.50 | 20.25 | 66.00 | 0.20 | -2.00"
    rows = [line for line in page if line.startswith(("| SimCSE", "| untrained"))]
    assert rows == [f"| SimCSE | 72.00 | {numbers} | 1.0 × |", f"| untrained, [CLS] | 69.00 | {numbers} |  |"]


def test_a_file_of_another_encoder_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_bert: Any,
    tiny_tokenizer: Any,
) -> None:
    """An encoder whose name had a file was left out without a word, whatever encoder the file was of."""
    monkeypatch.setattr(score_uses, "read_data", lambda folder: None)
    monkeypatch.setattr(score_uses, "score", lambda encoder, data: {"sts": {"avg": 1.0}, "seconds": {}})
    for name in ("first", "second"):
        tiny_bert.save_pretrained(tmp_path / name)
        tiny_tokenizer.save_pretrained(tmp_path / name)
    weights = load_file(tmp_path / "second/model.safetensors")
    weights["embeddings.word_embeddings.weight"] += 1
    save_file(weights, tmp_path / "second/model.safetensors", metadata={"format": "pt"})
    common = ["--data_dir", "data", "--results_dir", str(tmp_path / "results"), "--max_length", "32", "--pooling"]
    first = f"one={tmp_path / 'first'}"
    assert main([first, *common, "cls"]) == 0
    before = (tmp_path / "results/one.json").read_bytes()
    assert main([first, *common, "cls"]) == 0
    assert f"one: left out, {tmp_path / 'results/one.json'} is there" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"one.json is of another encoder \(other weights\): move it away"):
        main([f"one={tmp_path / 'second'}", *common, "cls"])
    with pytest.raises(SystemExit, match=r"another encoder \(pooling: 'cls' there, 'mean' now\)"):
        main([first, *common, "mean"])
    assert (tmp_path / "results/one.json").read_bytes() == before


def test_bad_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--data_dir", str(tmp_path), "--results_dir", str(tmp_path)]
    with pytest.raises(SystemExit):
        main(["folder", *common])
    assert "encoders must be different NAME=PATH, got folder" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="error: "):
        main(["a=folder", *common])
