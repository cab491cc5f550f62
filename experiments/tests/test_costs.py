"""Tables of parameters, of training steps and of pre-training curves, made of results files."""

import json
from pathlib import Path
from typing import Any

import pytest

from csekit.evaluation.results import write_results
from experiments.tables.costs import collator_table, corpus_table, costs_table, memory_table, parameters_table
from experiments.tables.render import TableError, update


def parameters(**more: Any) -> dict[str, Any]:
    row = {"title": "A", "training": 11_040_258, "trainable": 9_000_000, "generator": 0, "inference": 5_388_288}
    return {**row, "training_bytes": 44_186_480, "export_bytes": 21_560_736, **more}


def test_parameters() -> None:
    rows = [parameters(), parameters(title="B", generator=5_462_784)]
    caption, head, body = parameters_table({"run": {"backbone": "mini"}, "methods": rows})
    assert "backbone mini" in caption and "fp32" in caption
    assert head[1:] == [
        "in training", "of these trained", "generator, not saved", "at inference", "training checkpoint", "export"
    ]  # fmt: skip
    assert body[0] == ["A", "11.04 M", "9.00 M", "0", "5.39 M", "44.2 MB", "21.6 MB"]
    assert body[1][3] == "5.46 M"


def test_parameters_of_sizes_have_no_bytes() -> None:
    rows = [parameters(training_bytes=None, export_bytes=None, generator=None)]
    caption, head, body = parameters_table({"run": {"backbone": "bert"}, "methods": rows})
    assert caption.endswith("its default sizes.")
    assert head[-1] == "at inference"
    assert len(body[0]) == len(head) == 4


def costs(**more: Any) -> dict[str, Any]:
    run = {"backbone": "mini", "corpus": "wiki.txt", "batch_size": 64, "max_seq_length": 32, "repetitions": 20}
    run |= {"device": "cpu", "precision": "bf16", "threads": 2, **more}
    rows = [
        {"name": "simcse", "title": "SimCSE", "seconds": 0.25, "time_ratio": 1.0, "memory": 100 * 2**20},
        {"name": "diffcse", "title": "DiffCSE", "seconds": 0.5, "time_ratio": 2.125, "memory": 250 * 2**20},
    ]
    return {"run": run, "methods": rows, "environment": {"device": "NVIDIA X"}}


def test_costs() -> None:
    caption, head, body = costs_table(costs())
    for words in ("64 sentences of at most 32 tokens of wiki.txt", "CPU threads: 2", "bf16", "20 steps", "to SimCSE"):
        assert words in caption
    assert body == [
        ["SimCSE", "250", "1.00 ×", "100", "1.00 ×"],
        ["DiffCSE", "500", "2.12 ×", "250", "2.50 ×"],
    ]
    assert len(head) == 5 and "NVIDIA X" in costs_table(costs(device="cuda"))[0]
    assert "parameters" not in caption


def test_costs_with_parameters() -> None:
    counts = [parameters(name="diffcse"), parameters(name="simcse", training=5_454_080)]  # in an order of their own
    caption, head, body = costs_table(costs(), {"methods": counts})
    assert [row[5:] for row in body] == [["5.45 M", "1.00 ×"], ["11.04 M", "2.02 ×"]]
    assert len(head) == 7 and "without a generator" in caption
    _, _, body = costs_table(costs(), {"methods": counts[:1]})  # of the first row nothing is known
    assert [row[5:] for row in body] == [["–", "–"], ["11.04 M", "–"]]
    _, _, body = costs_table(costs(), {"methods": counts[1:]})
    assert [row[5:] for row in body] == [["5.45 M", "1.00 ×"], ["–", "–"]]


def test_memory() -> None:
    def row(size: int, chunk: int, seconds: float | None, memory: int | None) -> dict[str, Any]:
        return {
            "method": "simcse",
            "title": "SimCSE",
            "batch_size": size,
            "chunk_size": chunk,
            "seconds": seconds,
            "memory": memory,
        }

    run = {"backbone": "mini", "corpus": "wiki.txt", "max_seq_length": 32, "steps": 2, "device": "cpu", "threads": 1}
    run["precision"] = "fp32"
    rows = [row(512, 0, 8.0, 2**30), row(512, 64, 10.0, 2**28), row(1024, 0, None, None), row(1024, 64, 20.0, 2**28)]
    caption, head, body = memory_table({"run": run, "rows": rows, "environment": {"device": "x"}})
    assert "CPU time" in caption
    assert "fp32" in caption
    assert len(head) == 7
    assert body == [
        ["SimCSE", "512", "whole batch", "1,024", "1.00 ×", "8.0", "1.00 ×"],
        ["SimCSE", "512", "64", "256", "0.25 ×", "10.0", "1.25 ×"],
        ["SimCSE", "1024", "whole batch", "does not fit", "–", "–", "–"],
        ["SimCSE", "1024", "64", "256", "–", "20.0", "–"],
    ]


def test_corpus_and_collator() -> None:
    run = {"backbone": "mini", "corpus": "wiki.txt", "batches": 51, "batch_size": 64, "steps": 3}
    run |= {"max_seq_length": 32, "precision": "bf16"}
    used = {"private": 2**20, "mapped": 2**21, "cpu_seconds": 1.25}
    row = {"lines": 1_000_000, "bytes": 5_000_000, "first_start": used, "later_start": used, "batches": used}
    caption, head, body = corpus_table({"run": run, "rows": [row]})
    assert body == [["1,000,000", "5 MB", "1", "1.2", "1", "1.2", "1", "2"]]
    assert len(head) == 8
    assert "51" in caption
    row = {"title": "A", "read": 0.001, "tokenise": 0.002, "collate": 0.004, "step": 0.5}
    caption, head, body = collator_table({"run": run, "rows": [row]})
    assert body == [["A", "1.00", "2.00", "2.00", "500", "1.0 %"]]
    assert len(head) == 6
    assert "50 batches" in caption


def test_the_markers(tmp_path: Path) -> None:
    page = "<!-- table:costs/mini-cpu -->\n<!-- end table -->\n"
    with pytest.raises(TableError, match=r"run benchmarks/train_step.py first"):
        update(page, tmp_path)
    write_results(tmp_path / "costs" / "mini-cpu.json", costs())
    assert "| DiffCSE | 500 | 2.12 × | 250 | 2.50 × |\n" in update(page, tmp_path)
    counts = [parameters(name="simcse"), parameters(name="diffcse", training=22_080_516)]
    write_results(tmp_path / "parameters" / "other.json", {"run": {"backbone": "other"}, "methods": counts})
    assert "| 2.50 × |\n" in update(page, tmp_path)  # another backbone's
    write_results(tmp_path / "parameters" / "mini.json", {"run": {"backbone": "mini"}, "methods": counts})
    assert "| DiffCSE | 500 | 2.12 × | 250 | 2.50 × | 22.08 M | 2.00 × |\n" in update(page, tmp_path)


def record(shift: float) -> dict[str, Any]:
    log = [{"step": 25 * n, "loss/mlm": 9.0 - n / 4 - shift, "loss": 99.0} for n in range(1, 9)]
    history = [{"step": step, "mlm_accuracy": step / 1e4 + shift / 100} for step in (100, 200)]
    heldout = {"before": {"mlm_accuracy": 0.001}, "history": history}
    return {"log": log, "heldout": heldout, "corpus": {"name": "wiki.txt"}, "tokens": 3_000_000}


def test_curves(tmp_path: Path) -> None:
    spec = {"title": "From nothing", "curves": [{"label": "A", "trial": "a/run"}, {"label": "B", "trial": "b/run"}]}
    folder = tmp_path / "start"
    for name, value in (("a", record(0.0)), ("b", record(0.5))):
        (folder / name).mkdir(parents=True)
        (folder / name / "run.json").write_text(json.dumps(value))
    (folder / "summary.json").write_text(json.dumps({"plan": "start", "tables": {"curves": spec}}))
    page = update("<!-- table:start/curves -->\n<!-- end table -->\n", tmp_path)
    assert "wiki.txt (3.0 M tokens)" in page and "From nothing" in page
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert lines[0] == ("| step | A: training loss | held-out accuracy | B: training loss | held-out accuracy |")
    assert lines[2:] == [
        "| 0 | – | 0.1 % | – | 0.1 % |",
        "| 100 | 8.00 | 1.0 % | 7.50 | 1.5 % |",
        "| 200 | 7.00 | 2.0 % | 6.50 | 2.5 % |",
    ]
    (folder / "b" / "run.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"b/run\.json"):
        update("<!-- table:start/curves -->\n<!-- end table -->\n", tmp_path)
