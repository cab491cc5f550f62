"""The exported folder, read by Transformers and by the real sentence-transformers."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

from csekit.encoding import load_encoder
from csekit.modeling import SimCSEModel
from csekit.modeling.export import fold, length_limit

TEXTS = ["w1 w2 w3", "w4 w5 w6 w7 w8 w9 w1 w2", "w10", "unknown words"]


def model_of(checkpoint, family="bert", **fields):
    model = SimCSEModel.from_backbone(checkpoint(family), **fields)
    for parameter in model.projector.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    if fields.get("projector") == "batchnorm":
        for _ in range(3):
            model.projector.train()(torch.randn(32, 16) * 2 + 1)
    return model.eval()


def embed(model, tokenizer):
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**batch).sentence_embedding


def read(path):
    return json.loads(path.read_text())


def test_contents_of_the_folder(checkpoint, tokenizer_of, tmp_path):
    path = model_of(checkpoint).export(tmp_path / "out", tokenizer_of("bert"))
    assert path == tmp_path / "out"
    assert {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()} == {
        "1_Pooling/config.json",
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    kinds = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]
    assert read(path / "modules.json") == [
        {"idx": i, "name": str(i), "path": folder, "type": kind} for i, (folder, kind) in enumerate(kinds)
    ]
    assert read(path / "1_Pooling" / "config.json") == {
        "word_embedding_dimension": 16,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    assert read(path / "sentence_bert_config.json") == {"max_seq_length": 40, "do_lower_case": False}
    assert read(path / "config_sentence_transformers.json")["similarity_fn_name"] == "cosine"
    assert read(path / "tokenizer_config.json")["model_max_length"] == 40
    config = read(path / "config.json")
    assert config["model_type"] == "bert" and "auto_map" not in config
    assert not [name for name in load_file(path / "model.safetensors") if "projector" in name or "backbone" in name]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("projector", [None, "tanh", "linear", "batchnorm", "none"])
def test_sentence_transformers_transformers_and_csekit_agree(checkpoint, tokenizer_of, tmp_path, pooling, projector):
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra 'st'")
    fields = {} if projector is None else {"projector": projector, "projector_at_inference": True}
    model = model_of(checkpoint, pooling=pooling, **fields)
    model.export(tmp_path, tokenizer_of("bert"))
    ours = embed(model, tokenizer_of("bert"))
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), ours.numpy(), rtol=0, atol=1e-5)
    assert len(theirs) == {None: 2, "none": 2, "tanh": 3, "linear": 3, "batchnorm": 4}[projector]
    assert theirs.max_seq_length == 40 and theirs.similarity_fn_name == "cosine"

    batch = AutoTokenizer.from_pretrained(tmp_path)(TEXTS, padding=True, return_tensors="pt")
    states = AutoModel.from_pretrained(tmp_path)(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    pooled = states[:, 0] if pooling == "cls" else (states * mask).sum(1) / mask.sum(1)
    torch.testing.assert_close(model.projector(pooled) if projector else pooled, ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_fold(affine, bias):
    linear, norm = torch.nn.Linear(3, 5, bias=bias), torch.nn.BatchNorm1d(5, affine=affine)
    for _ in range(3):
        norm(torch.randn(16, 5) * 3 + 1)
    for parameter in norm.parameters():
        parameter.data.normal_()
    before = {name: value.clone() for name, value in linear.state_dict().items()}
    x = torch.randn(4, 3)
    torch.testing.assert_close(fold(linear, norm)(x), norm.eval()(linear(x)))
    assert all(torch.equal(value, before[name]) for name, value in linear.state_dict().items())


@pytest.mark.parametrize("pooling", ["first_last_mean", "top2_mean"])
def test_poolings_without_a_native_form_are_refused(checkpoint, tokenizer_of, tmp_path, pooling):
    model = model_of(checkpoint, pooling=pooling)
    with pytest.raises(ValueError, match=rf"pooling '{pooling}' cannot be exported: .* has no such pooling .*'cls'"):
        model.export(tmp_path / "out", tokenizer_of("bert"))
    assert not (tmp_path / "out").exists()


def test_length_limit_of_the_tokenizer(checkpoint, tokenizer_of):
    backbone, tokenizer = SimCSEModel.from_backbone(checkpoint("roberta")).backbone, tokenizer_of("roberta")
    assert backbone.config.max_position_embeddings == 42 and length_limit(backbone, tokenizer) == 40
    tokenizer.model_max_length = 12
    assert length_limit(backbone, tokenizer) == 12


def test_length_limit_of_an_encoder_without_one(tokenizer_of, tmp_path):
    """XLNet's configuration names -1 positions: that was the limit of the export, which nothing could load."""
    config = AutoConfig.for_model("xlnet", vocab_size=97, d_model=16, n_layer=1, n_head=2, d_inner=24)
    AutoModel.from_config(config).save_pretrained(tmp_path / "xlnet")
    tokenizer_of("bert").save_pretrained(tmp_path / "xlnet")
    model = SimCSEModel.from_backbone(tmp_path / "xlnet", pooling="mean")
    model.export(tmp_path / "run", tokenizer_of("bert"))
    encoder = load_encoder(tmp_path / "run", device="cpu")
    assert encoder.max_length == 512
    assert load_encoder(tmp_path / "xlnet", pooling="mean", max_length=9).max_length == 9
    np.testing.assert_allclose(encoder.encode(TEXTS), embed(model, tokenizer_of("bert")).numpy(), rtol=0, atol=1e-5)


def test_length_limit_is_not_read_off_the_word_embedding(encoder_config, tokenizer_of):
    """A vocabulary as large as the number of positions was taken for a position table."""
    config = encoder_config("bert", max_position_embeddings=97)
    assert length_limit(AutoModel.from_config(config), tokenizer_of("bert")) == 97


def test_the_caller_s_tokenizer_is_not_changed(checkpoint, tokenizer_of, tmp_path):
    tokenizer = tokenizer_of("bert")
    tokenizer(TEXTS, truncation=True, max_length=5)
    before = (tokenizer.model_max_length, tokenizer.backend_tokenizer.to_str(), dict(tokenizer.init_kwargs))
    model_of(checkpoint).export(tmp_path, tokenizer)
    assert (tokenizer.model_max_length, tokenizer.backend_tokenizer.to_str(), tokenizer.init_kwargs) == before
    assert tokenizer.model_max_length > 1e9


def test_the_length_of_training_is_not_in_the_tokenizer(checkpoint, tokenizer_of, tmp_path):
    """A tokenizer that has just cut its texts keeps that length, and the padding, in what it saves."""
    tokenizer = tokenizer_of("bert")
    tokenizer(TEXTS, truncation=True, max_length=5, padding="max_length")
    model_of(checkpoint).export(tmp_path, tokenizer)
    saved = read(tmp_path / "tokenizer.json")
    assert saved["truncation"] is None and saved["padding"] is None
    assert len(AutoTokenizer.from_pretrained(tmp_path)(TEXTS[1])["input_ids"]) == 10


@pytest.mark.parametrize("side", ["padding_side", "truncation_side"])
def test_the_export_pads_and_truncates_as_csekit_does(checkpoint, tokenizer_of, tmp_path, side):
    """With a tokenizer that does it on the left, sentence-transformers gave other vectors than csekit."""
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra 'st'")
    tokenizer_of("bert").save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, **{side: "left"})
    assert getattr(tokenizer, side) == "left"
    model_of(checkpoint, pooling="mean").export(tmp_path, tokenizer)
    texts = [*TEXTS, " ".join(f"w{i}" for i in range(60))]
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu").encode(texts)
    np.testing.assert_allclose(theirs, load_encoder(tmp_path, device="cpu").encode(texts), rtol=0, atol=1e-5)


def test_exporting_twice_leaves_nothing_stale(checkpoint, tokenizer_of, tmp_path):
    tokenizer = tokenizer_of("bert")
    model_of(checkpoint, projector="batchnorm", projector_at_inference=True).export(tmp_path, tokenizer)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"1_Pooling", "2_Dense", "3_Dense"}
    (tmp_path / "README.md").write_text("card")
    model = model_of(checkpoint, pooling="mean")
    for _ in range(2):
        model.export(tmp_path, tokenizer)
        assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"1_Pooling"}
    assert (tmp_path / "README.md").read_text() == "card"
    assert read(tmp_path / "1_Pooling" / "config.json")["pooling_mode_mean_tokens"]
    assert len(read(tmp_path / "modules.json")) == 2


def test_export_of_a_reloaded_model_is_the_same(checkpoint, tokenizer_of, tmp_path):
    model = model_of(checkpoint, projector="batchnorm", projector_at_inference=True)
    model.save_pretrained(tmp_path / "training")
    model.export(tmp_path / "one", tokenizer_of("bert"))
    SimCSEModel.from_pretrained(tmp_path / "training").export(tmp_path / "two", tokenizer_of("bert"))
    files = [file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*") if file.is_file()]
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_dense_modules_are_the_projector(checkpoint, tokenizer_of, tmp_path):
    model = model_of(checkpoint, projector="tanh", projector_at_inference=True)
    model.export(tmp_path, tokenizer_of("bert"))
    saved = load_file(tmp_path / "2_Dense" / "model.safetensors")
    assert torch.equal(saved["linear.weight"], model.projector[0].weight)
    assert read(tmp_path / "2_Dense" / "config.json") == {
        "in_features": 16,
        "out_features": 16,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }


def test_nothing_is_missing_when_it_is_loaded(checkpoint, tokenizer_of, tmp_path, family):
    """Not even the pooler that no embedding reads: its weights would be random, with a warning to train them."""
    path = model_of(checkpoint, family).export(tmp_path / "out", tokenizer_of(family))
    loaded, info = AutoModel.from_pretrained(path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    again = AutoModel.from_pretrained(path)
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


LOADS = """
from csekit import load_encoder
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, pipeline
path = {!r}
AutoModel.from_pretrained(path), SentenceTransformer(path), pipeline("feature-extraction", path), load_encoder(path)
"""


@pytest.mark.slow
def test_loading_says_nothing_of_weights(checkpoint, tokenizer_of, tmp_path):
    path = model_of(checkpoint).export(tmp_path / "out", tokenizer_of("bert"))
    done = subprocess.run([sys.executable, "-c", LOADS.format(str(path))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert not re.search("MISSING|UNEXPECTED|newly initialized|TRAIN this model", said), said
