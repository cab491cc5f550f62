"""Parameter counts against sums by hand: no dead head, no generator, the plain encoder at inference."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from csekit.evaluation.results import read_results
from experiments.tables.render import update

HIDDEN, LAYERS, INTERMEDIATE, POSITIONS = 8, 2, 12, 40


def layer() -> int:
    """Query, key, value and output, the two of the feed-forward net, two norms."""
    attention, feed_forward = 4 * (HIDDEN * HIDDEN + HIDDEN), 2 * HIDDEN * INTERMEDIATE + HIDDEN + INTERMEDIATE
    return attention + feed_forward + 2 * 2 * HIDDEN


def test_counts_are_those_of_the_parts(
    script: Callable[[str], ModuleType], masked_lm: Path, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    path = tmp_path / "parameters" / "tiny.json"
    script("parameters").main(["--model_name_or_path", str(masked_lm), "--output", str(path)])
    results = read_results(path)
    rows = {row["name"]: row for row in results["methods"]}
    V = len(tiny_tokenizer)
    embeddings = (V + POSITIONS + 2) * HIDDEN + 2 * HIDDEN
    encoder = embeddings + LAYERS * layer()  # without a pooling layer, which nothing would train
    tanh = HIDDEN * HIDDEN + HIDDEN
    batchnorm = 2 * 2 * HIDDEN * HIDDEN + 2 * 2 * HIDDEN
    lower = embeddings + layer()  # k = 1 of two layers
    head = 2 * layer() + HIDDEN * HIDDEN + HIDDEN + 2 * HIDDEN + V * HIDDEN + V  # two layers, transform, output
    detector = encoder + 2 * HIDDEN + 2
    generator = encoder + HIDDEN * HIDDEN + HIDDEN + 2 * HIDDEN + V  # output matrix tied
    linear = pooler = HIDDEN * HIDDEN + HIDDEN
    decoder = HIDDEN + 3 * 2 * HIDDEN + (4 * HIDDEN * HIDDEN + 4 * HIDDEN) + linear  # start, norms, attention, memory
    decoder += 2 * HIDDEN + 8 * HIDDEN * HIDDEN + 5 * HIDDEN + linear + V  # feed-forward, the way out (tied)
    expected = {
        "simcse-tanh": (encoder + tanh, encoder + tanh, 0),
        "simcse-batchnorm": (encoder + batchnorm, encoder + batchnorm, 0),
        "informin": (encoder + tanh, encoder + tanh, 0),
        "infocse": (encoder + batchnorm + lower + head, encoder + batchnorm + head, 0),
        "diffcse": (encoder + batchnorm + detector, encoder + batchnorm + detector, generator),
        "joint": (
            encoder + batchnorm + lower + head + detector,
            encoder + batchnorm + head + detector,
            generator,
        ),
        "msse": (encoder + linear + decoder, encoder + linear + decoder, 0),
    }
    assert list(rows) == list(expected)
    for name, counts in expected.items():
        row = rows[name]
        assert (row["training"], row["trainable"], row["generator"]) == counts, name
        assert row["inference"] == encoder, name
        assert 4 * row["training"] <= row["training_bytes"] < 4 * row["training"] + 20_000  # fp32, and a header
        assert 4 * (encoder + pooler) <= row["export_bytes"] < 4 * (encoder + pooler) + 10_000
    assert results["run"]["backbone"] == "tiny" and results["environment"]["versions"]["torch"]

    page = update("<!-- table:parameters/tiny -->\n<!-- end table -->\n", tmp_path)
    assert "| DiffCSE | 0.00 M |" in page
    assert "generator, not saved" in page
    assert "backbone tiny" in page


def test_a_weight_too_many_in_the_checkpoint_is_an_error(
    script: Callable[[str], ModuleType], masked_lm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("parameters")
    right = module.stored
    monkeypatch.setattr(module, "stored", lambda path: (right(path)[0] + 1, right(path)[1]))
    with pytest.raises(AssertionError, match="one too many"):
        module.of_checkpoint(str(masked_lm), "simcse", {})


def test_sizes_alone_give_the_papers_numbers(script: Callable[[str], ModuleType]) -> None:
    # DiffCSE, Table 14: 110 M for SimCSE, for DiffCSE 220 M in training and 110 M at inference
    row = script("parameters").of_sizes("bert", "diffcse", {})
    assert row["training"] / 1e6 == pytest.approx(220, abs=1) and row["inference"] / 1e6 == pytest.approx(110, abs=1.5)
    assert row["training_bytes"] is None and torch.get_default_device() == torch.device("cpu")
