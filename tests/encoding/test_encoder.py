from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from csekit.encoding import chunks
from csekit.encoding.encoder import TextEncoder, embed, encode, position_limit, token_batches, truncation_length
from csekit.encoding.pooled import PooledBackbone
from csekit.modeling.tokenization import tokenize

TEXTS = [
    "the man plays guitar .",
    "a dog runs",
    "the man plays guitar .",
    "cat",
    "a red ball is in the house on the tree",
]


@pytest.fixture
def model(tiny_bert: Any) -> PooledBackbone:
    return PooledBackbone(tiny_bert, "mean")


def close(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(a, b, atol=1e-6, rtol=0)


def test_rows_are_those_of_a_plain_loop(model: PooledBackbone, tiny_tokenizer: Any) -> None:
    found = encode(model, tiny_tokenizer, TEXTS)
    assert found.shape == (5, 32) and found.dtype == np.float32
    model.eval()
    for row, text in zip(found, TEXTS, strict=True):
        batch = tiny_tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = model.backbone(**batch).last_hidden_state
        close(row, states[0].mean(0).numpy())


def test_order_duplicates_and_batch_size_change_nothing(model: PooledBackbone, tiny_tokenizer: Any) -> None:
    found = encode(model, tiny_tokenizer, TEXTS)
    close(found[::-1], encode(model, tiny_tokenizer, TEXTS[::-1]))
    close(found[[0, 1, 1]], encode(model, tiny_tokenizer, [TEXTS[0], TEXTS[1], TEXTS[1]]))
    assert np.array_equal(found[0], found[2])
    for batch_size in (1, 2, 3):
        close(found, encode(model, tiny_tokenizer, TEXTS, batch_size=batch_size))


def test_distinct_texts_reach_the_model_once(model: PooledBackbone, tiny_tokenizer: Any) -> None:
    rows: list[int] = []
    model.backbone.register_forward_pre_hook(lambda m, a, k: rows.append(len(k["input_ids"])), with_kwargs=True)
    encode(model, tiny_tokenizer, TEXTS * 3, batch_size=2)
    assert sum(rows) == 4


def test_kept_tokens_are_made_once_and_change_no_embedding(
    model: PooledBackbone, tiny_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(tokenizer: Any, texts: list[str], *args: Any) -> Any:
        calls.append(len(texts))
        return tokenize(tokenizer, texts, *args)

    monkeypatch.setattr(chunks, "tokenize", counted)
    encoder = TextEncoder(model, tiny_tokenizer)
    encoder.kept_tokens = {}
    first = encoder.encode(TEXTS)
    assert np.array_equal(first, encoder.encode(TEXTS)) and calls == [4]
    assert np.array_equal(first[3:], encode(model, tiny_tokenizer, TEXTS)[3:])
    assert np.array_equal(encoder.encode(TEXTS[3:]), encode(model, tiny_tokenizer, TEXTS[3:]))
    assert calls[1:] == [4, 2, 2]
    with torch.no_grad():
        model.backbone.embeddings.word_embeddings.weight.mul_(2)  # the tokens are kept, not the embeddings
    assert not np.allclose(first, encoder.encode(TEXTS), atol=1e-3)
    monkeypatch.setattr(chunks, "KEPT_CHUNKS", 2)
    assert np.array_equal(encoder.encode(TEXTS[:2]), encode(model, tiny_tokenizer, TEXTS[:2]))
    assert len(encoder.kept_tokens) == 2


def test_training_flags_and_random_state_survive(model: PooledBackbone, tiny_tokenizer: Any) -> None:
    model.train()
    model.backbone.embeddings.eval()  # a frozen part that stays in eval mode
    flags = [module.training for module in model.modules()]
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    first = encode(model, tiny_tokenizer, TEXTS)
    assert torch.equal(torch_state, torch.random.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])
    assert flags == [module.training for module in model.modules()]
    assert np.array_equal(first, encode(model, tiny_tokenizer, TEXTS))


def test_flags_come_back_after_an_error(model: PooledBackbone, tiny_tokenizer: Any) -> None:
    model.train()
    model.backbone.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        encode(model, tiny_tokenizer, TEXTS)
    assert model.training


def test_batches_are_bounded_by_tokens_and_rows_longest_first() -> None:
    lengths = [3, 100, 5, 7, 40, 2, 2]
    batches = list(token_batches(lengths, batch_size=3, max_tokens=50))
    assert batches[0] == [1]
    assert sorted(i for batch in batches for i in batch) == list(range(7))
    assert all(len(b) <= 3 and (len(b) == 1 or len(b) * max(lengths[i] for i in b) <= 50) for b in batches)


def test_truncated_counts_distinct_texts(model: PooledBackbone, tiny_tokenizer: Any) -> None:
    encoder = TextEncoder(model, tiny_tokenizer, max_length=6)
    encoder.encode(TEXTS)
    assert encoder.truncated == 2
    encoder.encode(["cat"])
    assert encoder.truncated == 0


def test_length_limits(model: PooledBackbone, tiny_tokenizer: Any) -> None:
    assert truncation_length(model, tiny_tokenizer) == 32
    assert truncation_length(model, tiny_tokenizer, 40) == 40
    with pytest.raises(ValueError, match="max_length must be at most 40 for this model, got 41"):
        truncation_length(model, tiny_tokenizer, 41)


def test_roberta_has_two_positions_less_than_its_table() -> None:
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    config.max_position_embeddings = 20
    model = RobertaModel(config, add_pooling_layer=False)
    assert position_limit(model) == 18
    ids = torch.full((1, 18), 5)
    model(input_ids=ids, attention_mask=torch.ones_like(ids))


@pytest.mark.parametrize(
    ("texts", "message"),
    [([], "got an empty list"), (["a", None], r"got NoneType at texts\[1\]"), ("a dog", "got one string")],
)
def test_bad_texts_are_named(model: PooledBackbone, tiny_tokenizer: Any, texts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(model, tiny_tokenizer, texts)


def test_embed_takes_functions_and_checks_their_answer() -> None:
    texts = ["a", "bb"]
    assert embed(lambda ts: [[len(t), 1.0] for t in ts], texts).tolist() == [[1, 1], [2, 1]]
    assert embed(lambda ts: torch.ones(len(ts), 3, requires_grad=True), texts).shape == (2, 3)
    with pytest.raises(ValueError, match=r"\(2, H\), got shape \(2,\)"):
        embed(lambda ts: [1.0, 2.0], texts)
    with pytest.raises(ValueError, match="not finite for 'bb'"):
        embed(lambda ts: [[1.0], [float("nan")]], texts)


def test_describe_holds_no_path(model: PooledBackbone, tiny_tokenizer: Any) -> None:
    described = TextEncoder(model, tiny_tokenizer, name="tiny", pooling="mean").describe()
    assert described == {
        "name": "tiny",
        "class": "BertModel",
        "pooling": "mean",
        "max_length": 32,
        "prompt_template": None,
        "precision": "float32",
    }
    assert not any(isinstance(value, Path) for value in described.values())


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "apart"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_a_gpu_gives_the_same(model: PooledBackbone, tiny_tokenizer: Any, precision: str, apart: float) -> None:
    expected = encode(model, tiny_tokenizer, TEXTS)
    found = encode(model.to("cuda"), tiny_tokenizer, TEXTS, precision=precision)
    assert found.dtype == np.float32
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.all(cosines > 1 - apart)
    if precision == "fp32":
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
