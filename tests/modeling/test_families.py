"""Every family of encoders: forward, backward, save, reload, export."""

import json

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from csekit.modeling import InforMinModel, SimCSEModel
from csekit.modeling.export import length_limit

TEXTS = ["w1 w2 w3", "w4 w5 w6 w7 w8 w9 w1 w2", "w10", "w11 w12"]


@pytest.fixture
def built(family, checkpoint):
    return InforMinModel.from_backbone(checkpoint(family), mlm_weight=0.1)


@pytest.fixture
def batch(family, make_batch, add_copies, encoder_config):
    return add_copies(make_batch(4, 1, 9, pad=encoder_config(family).pad_token_id))


def test_forward_and_backward(family, built, batch):
    built.train()
    output = built(**batch, return_loss=True)
    output.loss.backward()
    assert output.loss.isfinite() and output.metrics["positive_cosine"] < 0.9999  # dropout is on
    lacking = [name for name, p in built.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not lacking
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert built(**batch).loss.isfinite()


def test_gradient_checkpointing(family, built, batch):
    if family in ("mpnet", "albert"):  # not theirs in Transformers
        with pytest.raises(ValueError, match="not compatible with gradient checkpointing"):
            built.gradient_checkpointing_enable()
        return
    built.train().gradient_checkpointing_enable()
    built(**batch).loss.backward()
    assert all(parameter.grad is not None for parameter in built.parameters())


def test_save_and_reload_bitwise(family, built, batch, tmp_path):
    built.save_pretrained(tmp_path / "one")
    again = InforMinModel.from_pretrained(tmp_path / "one")
    left, right = built.state_dict(), again.state_dict()
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    again.save_pretrained(tmp_path / "two")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    buffers = dict(again.named_buffers())
    assert all(torch.equal(value, buffers[name]) for name, value in built.named_buffers())
    assert torch.equal(built(**batch).loss, again(**batch).loss)


def test_a_momentum_copy(family, checkpoint, batch):
    fields = {"queue_weight": 1.0, "queue_size": 6, "pooling": "first_last_mean"}
    model = SimCSEModel.from_backbone(checkpoint(family), **fields).train()
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(**batch)
        output.loss.backward()
    queue = model.objectives["queue"]
    torch.testing.assert_close(dict(queue.encoder.named_parameters()), dict(model.backbone.named_parameters()))
    assert queue.keys_MH.norm(dim=-1).min() > 0
    assert queue.encoder.config._attn_implementation == model.backbone.config._attn_implementation
    assert 0 < output.metrics["queue_cosine"] <= 1


def test_padding_does_not_matter(family, built, make_batch, encoder_config):
    pad = encoder_config(family).pad_token_id
    batch = make_batch(4, 0, 9, pad=pad)
    wide = {name: torch.nn.functional.pad(v, (0, 4), value=pad * (name == "input_ids")) for name, v in batch.items()}
    short, long = built(**batch).sentence_embedding, built(**wide).sentence_embedding
    torch.testing.assert_close(short, long, rtol=1e-4, atol=1e-5)
    alone = torch.cat(
        [
            built(input_ids=ids[None, : mask.sum()]).sentence_embedding
            for ids, mask in zip(*batch.values(), strict=True)
        ]
    )
    torch.testing.assert_close(short, alone, rtol=1e-4, atol=1e-5)


def test_export_is_the_plain_encoder(family, checkpoint, tokenizer_of, tmp_path):
    model = SimCSEModel.from_backbone(checkpoint(family))
    model.export(tmp_path, tokenizer_of(family))
    tokenizer, plain = AutoTokenizer.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert batch["input_ids"].shape == (4, 10) and batch["input_ids"][2, 3] == model.config.encoder_config.pad_token_id
    ours = model(**{name: batch[name] for name in ("input_ids", "attention_mask")}).sentence_embedding
    torch.testing.assert_close(plain(**batch).last_hidden_state[:, 0], ours, rtol=0, atol=1e-5)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == family and config["architectures"] == [type(model.backbone).__name__]


def test_length_limit_is_what_the_encoder_can_read(family, built, tokenizer_of, encoder_config):
    limit = length_limit(built.backbone, tokenizer_of(family))
    assert limit == 40
    ids = torch.full((1, limit), 20)
    assert built(ids).sentence_embedding.isfinite().all()


def test_eager_attention_reaches_the_backbone(family, checkpoint, tmp_path):
    model = SimCSEModel.from_backbone(checkpoint(family), attn_implementation="eager")
    assert model.backbone.config._attn_implementation == "eager"
    model.save_pretrained(tmp_path)
    again = SimCSEModel.from_pretrained(tmp_path, attn_implementation="eager")
    assert again.backbone.config._attn_implementation == "eager"
