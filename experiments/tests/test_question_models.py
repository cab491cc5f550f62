"""The writer of questions and the judge of answers train, and load where the ways of a domain read them."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
)

ROW = {"anchor": "the man plays guitar", "positive": "a woman sings in the house", "negative": "the dog runs"}


@pytest.mark.parametrize("kind", ["writer", "judge"])
def test_the_models_of_gpl(tiny_tokenizer: Any, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("sentence_transformers")
    from experiments import question_models

    start = tmp_path / "start"
    config = BertConfig(
        vocab_size=len(tiny_tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertForMaskedLM(config).half().save_pretrained(start)  # it trains in float32, whatever the checkpoint's precision
    tiny_tokenizer.save_pretrained(start)
    pairs, folder = tmp_path / "pairs.jsonl", tmp_path / kind
    pairs.write_text("".join(json.dumps({**ROW, "anchor": f"{ROW['anchor']} {i}"}) + "\n" for i in range(6)))
    options = ["--max_steps", "2", "--batch_size", "3", "--max_length", "16"]
    assert question_models.main([kind, str(pairs), "--start", str(start), "--output_dir", str(folder), *options]) == 0
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if kind == "writer":
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        ids = model.generate(**tokenizer([ROW["positive"]], return_tensors="pt"), max_new_tokens=4)
        assert ids[0, 0] == tokenizer.cls_token_id and 1 < ids.shape[1] <= 5
    else:
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        pair = tokenizer([ROW["anchor"]], [ROW["positive"]], return_tensors="pt")
        assert model(**pair).logits.shape == (1, 1)
