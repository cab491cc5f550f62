"""Training with nested sizes: the command line, the log, the folder and the card."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csekit.encoding import load_encoder
from csekit.trainers import parse_run_arguments

WORDS = ["--model_name_or_path", "x", "--train_file", "x.txt", "--output_dir", "runs/x"]


def test_sizes_and_weights_come_from_words_and_from_a_preset(tmp_path: Path) -> None:
    preset = tmp_path / "preset.yaml"
    preset.write_text("matryoshka_dims: [64, 128]\nmatryoshka_weights: [1, 0.5]\ntruncate_dim: 64\n")
    expected = {"matryoshka_dims": [64, 128], "matryoshka_weights": [1.0, 0.5], "truncate_dim": 64}
    words = [f"--{name}" for name in expected]
    by_words = [*words[:1], "64", "128", *words[1:2], "1", "0.5", *words[2:], "64"]
    for more in (["--config", str(preset)], by_words):
        assert parse_run_arguments([*WORDS, *more])[2] == expected


def test_a_size_that_is_no_number_is_refused_in_one_line(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        parse_run_arguments([*WORDS, "--matryoshka_dims", "64", "half"])
    assert capsys.readouterr().err.strip().endswith("argument --matryoshka_dims: invalid int value: 'half'")


def test_a_run_logs_each_size_and_leaves_the_cut_encoder(small_run: Callable[..., Any], tmp_path: Path) -> None:
    fields = {"matryoshka_dims": [8, 16], "matryoshka_weights": [1.0, 0.5], "truncate_dim": 8}
    trainer = small_run(tmp_path / "run", fields=fields, max_steps=2, cache_chunk_size=5)
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] > entry["metrics/contrastive_8"] + 0.5 * entry["metrics/contrastive_16"] > 0
    folder = trainer.save_run()
    config = json.loads((folder / "results.json").read_text(encoding="utf-8"))["config"]
    assert {name: config[name] for name in fields} == fields
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "truncate_dim" in card
    texts = ["the dog sings .", "a man"]
    found = load_encoder(folder, device="cpu").encode(texts)
    np.testing.assert_allclose(found, trainer.embed(texts)[:, :8], atol=1e-5)
