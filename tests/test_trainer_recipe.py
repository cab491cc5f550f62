"""The recipe for Transformers' own Trainer in docs/train.md runs as it stands, on a tiny encoder."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csekit import load_encoder

PAGE = Path(__file__).parents[1] / "docs" / "train.md"
WORDS = ("man", "woman", "dog", "cat", "ball", "house", "tree", "guitar")


def test_the_recipe_trains_and_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_bert: Any, tiny_tokenizer: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tiny_bert.save_pretrained("bert-base-uncased")
    tiny_tokenizer.save_pretrained("bert-base-uncased")
    lines = [f"the {a} is in the {b} ." for a in WORDS for b in WORDS]
    Path("sentences.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    section = PAGE.read_text(encoding="utf-8").split("## With Transformers' own Trainer")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/train.md", "exec"), names)
    # (B, 1, L) is a training batch: a loss of two views; (N, L) is inference
    batch = names["collate"](lines[:4])
    assert batch["input_ids"].shape[:2] == (4, 1)
    model = names["model"].cpu().train()
    assert model(**batch).loss.shape == ()
    flat = {name: value[:, 0] for name, value in batch.items()}
    assert model.eval()(**flat).sentence_embedding.shape == (4, 32)
    assert names["trainer"].state.global_step == 1
    trained = load_encoder("runs/plain/encoder", device="cpu").encode(lines)
    untrained = load_encoder("bert-base-uncased", pooling="cls", device="cpu").encode(lines)
    assert trained.shape == untrained.shape
    assert np.abs(trained - untrained).max() > 1e-5
