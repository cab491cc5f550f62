"""Encoders with a prompt template: the exported folder holds it, and gives the vectors of training everywhere."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from csekit.encoding import load_encoder
from csekit.encoding.encoder import encode
from csekit.modeling import MSSEModel, SimCSEModel
from csekit.modeling.pooling import at_offset
from csekit.modeling.template_pooling import TemplatePooling

TEXTS = ["w1 w2 w3", " ".join(f"w{i % 80}" for i in range(60)), "w10", "unknown words", "w4 [MASK] w5"]
PAPER, TAIL, FIRST = '"{sentence}" means {mask}.', '"{sentence}" means {mask}', '{mask} . "{sentence}"'


def exported(checkpoint, tokenizer_of, folder, family="bert", **fields):
    """The model, its embeddings of ``TEXTS``, and the folder of its export."""
    model = MSSEModel.from_backbone(checkpoint(family), **fields)
    model.projector.requires_grad_(False)
    for parameter in model.projector.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    if fields.get("projector") == "batchnorm":
        model.projector.train()(torch.randn(32, 16) * 2 + 1)
        model.eval()
    model.export(folder, tokenizer_of(family))
    return model, encode(model, tokenizer_of(family), TEXTS, prompt_template=model.config.prompt_template)


def sentence_transformer(folder, **options):
    module = pytest.importorskip("sentence_transformers", reason="needs the extra 'st'")
    return module.SentenceTransformer(str(folder), device="cpu", **options)


@pytest.mark.parametrize("encoder", ["bert", "roberta", "distilbert", "modernbert"])
@pytest.mark.parametrize("template", [PAPER, TAIL, FIRST])
def test_the_same_vectors_everywhere(checkpoint, tokenizer_of, tmp_path, encoder, template):
    """sentence-transformers, plain Transformers and csekit; one text is longer than the encoder can read."""
    model, ours = exported(checkpoint, tokenizer_of, tmp_path, encoder, prompt_template=template)
    code = {} if template == TAIL else {"trust_remote_code": True}
    theirs = sentence_transformer(tmp_path, **code)
    np.testing.assert_allclose(theirs.encode(TEXTS), ours, rtol=0, atol=1e-5)
    loaded = load_encoder(tmp_path, device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS), ours, rtol=0, atol=1e-6)
    assert loaded.truncated == 1 and loaded.describe()["prompt_template"] == template
    assert loaded.pooling == ("lasttoken" if template == TAIL else "mask")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    states = AutoModel.from_pretrained(tmp_path)(**batch).last_hidden_state.detach()
    pooled = at_offset(states, batch["attention_mask"], model.config.prompt_mask_offset)
    np.testing.assert_allclose(pooled.numpy(), ours, rtol=0, atol=1e-5)
    assert (tmp_path / "template_pooling.py").exists() == bool(code)


@pytest.mark.parametrize("template", [PAPER, TAIL])
@pytest.mark.parametrize("projector", ["linear", "tanh", "batchnorm"])
def test_a_projector_kept_at_test(checkpoint, tokenizer_of, tmp_path, projector, template):
    fields = {"projector": projector, "projector_at_inference": True, "prompt_template": template}
    _, ours = exported(checkpoint, tokenizer_of, tmp_path, **fields)
    theirs = sentence_transformer(tmp_path, trust_remote_code=True)
    assert len(theirs) == {"linear": 3, "tanh": 3, "batchnorm": 4}[projector]
    np.testing.assert_allclose(theirs.encode(TEXTS), ours, rtol=0, atol=1e-5)
    np.testing.assert_allclose(load_encoder(tmp_path, device="cpu").encode(TEXTS), ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_template_with_another_pooling(checkpoint, tokenizer_of, tmp_path, pooling):
    """The tokenizer holds it, the pooling is sentence-transformers' own."""
    model = SimCSEModel.from_backbone(checkpoint("bert"), pooling=pooling, prompt_template=PAPER)
    model.export(tmp_path, tokenizer_of("bert"))
    ours = encode(model, tokenizer_of("bert"), TEXTS, prompt_template=PAPER)
    np.testing.assert_allclose(sentence_transformer(tmp_path).encode(TEXTS), ours, rtol=0, atol=1e-5)
    assert not np.allclose(encode(model, tokenizer_of("bert"), TEXTS), ours, atol=1e-3)
    loaded = load_encoder(tmp_path, device="cpu")
    assert loaded.pooling == pooling
    np.testing.assert_allclose(loaded.encode(TEXTS), ours, rtol=0, atol=1e-5)


def test_contents_and_warning(checkpoint, tokenizer_of, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    exported(checkpoint, tokenizer_of, tmp_path, prompt_template=PAPER)
    (record,) = [each for each in caplog.records if each.name == "csekit.modeling.export"]
    for part in (repr(PAPER), "template_pooling.py", "trust_remote_code=True", "ends in '{mask}'"):
        assert part in record.getMessage()
    assert json.loads((tmp_path / "modules.json").read_text())[1]["type"] == "template_pooling.TemplatePooling"
    pooling = tmp_path / "1_Pooling" / "config.json"
    assert json.loads(pooling.read_text()) == {"embedding_dimension": 16, "mask_offset": -3}

    caplog.clear()
    exported(checkpoint, tokenizer_of, tmp_path, prompt_template=TAIL)  # into the same folder
    assert not [each for each in caplog.records if each.name == "csekit.modeling.export"]
    assert not (tmp_path / "template_pooling.py").exists()
    assert json.loads(pooling.read_text()) == {
        "word_embedding_dimension": 16,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_lasttoken": True,
    }
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (settings["tokenizer_class"], settings["prompt_template"]) == ("PreTrainedTokenizerFast", TAIL)


def test_without_leave_to_run_code_the_folder_is_refused_and_never_pooled_otherwise(
    checkpoint, tokenizer_of, tmp_path
):
    exported(checkpoint, tokenizer_of, tmp_path, prompt_template=PAPER)
    module = pytest.importorskip("sentence_transformers", reason="needs the extra 'st'")
    if int(module.__version__.split(".")[0]) < 6:
        pytest.skip("before version 6 a local folder's code was run unasked")
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        sentence_transformer(tmp_path)


@pytest.mark.parametrize("template", [PAPER, TAIL])
def test_what_sentence_transformers_saves_again(checkpoint, tokenizer_of, tmp_path, template):
    _, ours = exported(checkpoint, tokenizer_of, tmp_path / "one", prompt_template=template)
    sentence_transformer(tmp_path / "one", trust_remote_code=True).save(str(tmp_path / "two"))
    again = sentence_transformer(tmp_path / "two", trust_remote_code=True)
    np.testing.assert_allclose(again.encode(TEXTS), ours, rtol=0, atol=1e-5)


def test_a_run_s_folder_puts_the_template_around_a_text_once(checkpoint, tokenizer_of, tmp_path):
    """``training/`` may take the tokenizer of the export beside it, which holds the template."""
    model, ours = exported(checkpoint, tokenizer_of, tmp_path)
    model.save_pretrained(tmp_path / "training")
    np.testing.assert_allclose(load_encoder(tmp_path / "training", device="cpu").encode(TEXTS), ours, atol=1e-5)
    tokenizer_of("bert").save_pretrained(tmp_path / "training")
    np.testing.assert_allclose(load_encoder(tmp_path / "training", device="cpu").encode(TEXTS), ours, atol=1e-5)
    for name in ("modules.json", "template_pooling.py"):
        (tmp_path / name).unlink()
    shutil.rmtree(tmp_path / "training")
    plain = load_encoder(tmp_path, pooling="mask", prompt_template=PAPER, device="cpu")
    np.testing.assert_allclose(plain.encode(TEXTS), ours, atol=1e-5)


def test_training_goes_on_from_an_export(checkpoint, tokenizer_of, tmp_path):
    model, ours = exported(checkpoint, tokenizer_of, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    again = MSSEModel.from_backbone(tmp_path)
    assert again.config.prompt_mask_offset == model.config.prompt_mask_offset == -3
    np.testing.assert_allclose(encode(again, tokenizer, TEXTS, prompt_template=PAPER), ours, atol=1e-6)
    with pytest.raises(ValueError, match="which the tokenizer itself holds"):
        MSSEModel.from_backbone(tmp_path, prompt_template=TAIL)


@pytest.mark.parametrize("offset", [0, 2, -1, -3])
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_module_pools_as_training_does(tmp_path: Path, offset: int, side: str) -> None:
    states, lengths = torch.randn(3, 7, 4), torch.tensor([7, 4, 3])
    mask = (torch.arange(7) < lengths[:, None]).long()
    mask = mask if side == "right" else mask.flip(1)
    (tmp_path / "1_Pooling").mkdir()
    TemplatePooling(4, offset).save(str(tmp_path / "1_Pooling"))
    module = TemplatePooling.load(str(tmp_path / "1_Pooling"))
    found = module({"token_embeddings": states, "attention_mask": mask})["sentence_embedding"]
    assert torch.equal(found, at_offset(states, mask, offset))
    with pytest.raises(ValueError, match=r"padded to \(3, 7\), got \(1, 14\)"):
        module({"token_embeddings": torch.randn(1, 14, 4), "attention_mask": mask})
