"""Benchmark of what selection costs: the scores that are timed are the trainer's; the table has their shares."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from csekit.evaluation.pairs import Pairs
from csekit.evaluation.results import read_results
from experiments.tables.costs import selection_cost_table
from experiments.tables.render import update

TEXTS = [f"the {animal} {verb} in the house" for animal in ("dog", "cat") for verb in ("runs", "sings", "plays")]


def test_the_script(
    script: Callable[[str], ModuleType], masked_lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train_step", "memory"):
        script(name)
    module, texts = script("selection"), tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    dev = Pairs("stsb", tuple(TEXTS[:3]), tuple(TEXTS[3:]), np.arange(3.0))
    monkeypatch.setattr(module, "load_stsb_dev", lambda folder: dev)
    seen: list[set[str]] = []
    build = module.scoring

    def remember(*args: Any, **more: Any) -> Callable[[], Any]:
        score = build(*args, **more)
        return lambda: seen.append(set(score()))

    monkeypatch.setattr(module, "scoring", remember)
    argv = ["--model_name_or_path", str(masked_lm), "--train_file", str(texts), "--data_dir", "nowhere"]
    argv += ["--batch_size", "2", "--max_seq_length", "16", "--repetitions", "2", "--samples", "4", "--threads", "1"]
    module.main([*argv, "--output", str(tmp_path / "benchmarks" / "selection-tiny.json")])
    assert seen == [{"stsb_spearman"}, {"stsb_spearman"}, {"alignment", "uniformity", "effective_rank"}] * 3
    found = read_results(tmp_path / "benchmarks" / "selection-tiny.json")
    assert (
        all(found["rows"][side]["steps"] > 0 for side in ("dev", "dev_bf16", "label_free"))
        and found["run"]["pairs"] == 3
    )
    table = update("<!-- table:benchmarks/selection-tiny -->\n<!-- end table -->\n", tmp_path)
    assert "| STS-B dev, 3 pairs |" in table and "| label-free criteria, 4 sentences |" in table


def test_shares() -> None:
    run = {"backbone": "mini", "corpus": "wiki.txt", "batch_size": 64, "max_seq_length": 32, "repetitions": 5}
    run |= {"device": "cpu", "precision": "bf16", "threads": 1, "pairs": 1500, "samples": 256, "eval_steps": 125}
    rows = {"step": {"seconds": 0.4}, "dev": {"seconds": 2.5, "steps": 6.25}, "label_free": {"seconds": 1, "steps": 2}}
    rows["dev_bf16"] = {"seconds": 1.5, "steps": 4.0}
    caption, head, body = selection_cost_table({"run": run, "rows": rows, "environment": {}})
    assert "every 125 steps" in caption
    assert "seconds of CPU time" in caption
    assert len(head) == 4
    assert body[0] == ["STS-B dev, 1,500 pairs", "2.5", "6.2", "4.8 %"]
    assert body[1] == ["STS-B dev, 1,500 pairs, bf16", "1.5", "4.0", "3.1 %"]
    assert body[2] == ["label-free criteria, 256 sentences", "1.0", "2.0", "1.6 %"]
