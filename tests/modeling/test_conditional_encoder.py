"""The discriminator: any encoder of the vocabulary, first as the sentence encoder, saved with it."""

import json

import pytest
import torch
from transformers import AutoModel

from csekit.modeling import DiffCSEModel


def test_discriminator_starts_as_the_encoder(family, checkpoint):
    model = DiffCSEModel.from_backbone(checkpoint(family))
    ours, theirs = model.objectives["rtd"].discriminator.model.state_dict(), model.backbone.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert not {id(p) for p in model.backbone.parameters()} & {id(p) for p in model.objectives.parameters()}
    assert model.config.discriminator_config is None


@pytest.mark.parametrize("kind", ["distilbert", "electra", "wide"])
def test_discriminator_of_another_size_and_family(checkpoint, batch_of, encoder_config, tokenizer_of, kind, tmp_path):
    folder = tmp_path / "wide"
    if kind == "wide":
        AutoModel.from_config(encoder_config("bert", hidden_size=24, num_hidden_layers=1)).save_pretrained(folder)
        tokenizer_of("bert").save_pretrained(folder)
    source = folder if kind == "wide" else checkpoint(kind)
    model = DiffCSEModel.from_backbone(checkpoint("bert"), discriminator=str(source))
    discriminator = model.objectives["rtd"].discriminator
    theirs = AutoModel.from_pretrained(source).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in discriminator.model.state_dict().items())
    width = {"distilbert": None, "electra": (8, 16), "wide": (24, 16)}[kind]
    assert width == (None if kind == "distilbert" else tuple(discriminator.condition.weight.shape))
    assert model.objectives["rtd"].head.in_features == (24 if kind == "wide" else 16)
    batch = batch_of(model)
    torch.manual_seed(1)
    loss = model(**batch).loss
    model.save_pretrained(tmp_path / "saved")
    again = DiffCSEModel.from_pretrained(tmp_path / "saved", training=True)
    torch.manual_seed(1)
    assert torch.equal(again(**batch).loss, loss)
    stored = json.loads((tmp_path / "saved" / "config.json").read_text())["objectives"][0]["discriminator_config"]
    assert stored["model_type"] == ("bert" if kind == "wide" else kind) and "_name_or_path" not in stored
