"""From an encoder's checkpoint, and to and from a training checkpoint."""

import pytest
import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoModel

from csekit.modeling import (
    InforMinModel,
    SimCSEModel,
)
from csekit.modeling.backbone import dropout_fields

B, L, H = 4, 9, 16


def test_from_backbone_copies_weights_bitwise(checkpoint):
    model = InforMinModel.from_backbone(checkpoint("bert"), reconstruction_weight=4.0)
    source = AutoModel.from_pretrained(checkpoint("bert"), add_pooling_layer=False).state_dict()
    assert model.backbone.state_dict().keys() == source.keys()
    assert all(torch.equal(value, source[name]) for name, value in model.backbone.state_dict().items())
    assert model.config.reconstruction_weight == 4.0
    assert all(value.device.type == "cpu" for value in (*model.parameters(), *model.buffers()))


def test_from_backbone_is_ready_for_inference_throughout(checkpoint, make_batch):
    """As Transformers' from_pretrained: the whole model is in eval mode (was: dropout off, batchnorm on)."""
    model = InforMinModel.from_backbone(checkpoint("bert"), projector="batchnorm", mlm_weight=0.1)
    assert not any(module.training for module in model.modules())
    batch = make_batch(B, 0, L)
    assert torch.equal(model(**batch).sentence_embedding, model(**batch).sentence_embedding)


def test_from_backbone_refuses_unknown_fields(checkpoint):
    with pytest.raises(ValueError, match=r"no field 'temprature'; did you mean one of \['temperature'"):
        SimCSEModel.from_backbone(checkpoint("bert"), temprature=0.1)
    with pytest.raises(ValueError, match="'mlm_probability' must be a field of exactly one objective"):
        SimCSEModel.from_backbone(checkpoint("bert"), mlm_probability=0.1)


def test_from_backbone_refuses_a_checkpoint_that_lacks_weights(encoder_config, tmp_path):
    model = AutoModel.from_config(encoder_config("bert"))
    state = {name: value for name, value in model.state_dict().items() if "layer.1.output" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ValueError, match=r"lacks 4 weights of BertModel, e.g. 'encoder.layer.1.output"):
        SimCSEModel.from_backbone(tmp_path)


def test_dropout_argument(checkpoint, family):
    model = SimCSEModel.from_backbone(checkpoint(family), dropout=0.37)
    assert dropout_fields(model.config.encoder_config) and set(
        dropout_fields(model.config.encoder_config).values()
    ) == {0.37}
    heads = {n: v for n, v in vars(model.config.encoder_config).items() if "dropout" in n and "classif" in n}
    assert all(value != 0.37 for value in heads.values())
    modules = [module for module in model.backbone.modules() if isinstance(module, nn.Dropout)]
    assert {module.p for module in modules} == {0.37}
    assert set(dropout_fields(model.backbone.config).values()) == {0.37}


def same_state(a: nn.Module, b: nn.Module) -> None:
    left, right = a.state_dict(), b.state_dict()
    assert left.keys() == right.keys()
    different = [name for name, value in left.items() if not torch.equal(value, right[name])]
    assert not different


@pytest.mark.parametrize("projector", ["tanh", "batchnorm", "linear", "none"])
def test_save_and_reload_bitwise(checkpoint, make_batch, add_copies, tmp_path, projector):
    model = InforMinModel.from_backbone(checkpoint("bert"), projector=projector, mlm_weight=0.1).train()
    model(**add_copies(make_batch(B, 1, L))).loss.backward()  # moves running statistics
    model.save_pretrained(tmp_path / "one")
    again = InforMinModel.from_pretrained(tmp_path / "one")
    by_auto = AutoModel.from_pretrained(tmp_path / "one")
    assert type(again) is type(by_auto) is InforMinModel and not again.training
    same_state(model, again)
    same_state(model, by_auto)
    again.save_pretrained(tmp_path / "two")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert str(checkpoint("bert")) not in (tmp_path / "one" / "config.json").read_text()


def test_nothing_is_stored_twice(checkpoint, tmp_path):
    model = InforMinModel.from_backbone(checkpoint("bert"), mlm_weight=0.1)
    pointers = [value.data_ptr() for value in model.state_dict().values() if value.numel()]
    assert len(set(pointers)) == len(pointers)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert saved.keys() == model.state_dict().keys()
    assert {name.split(".")[0] for name in saved} == {"backbone", "projector", "objectives"}
    matrices = [name for name, value in saved.items() if value.shape == (97, H)]
    assert matrices == ["backbone.embeddings.word_embeddings.weight"]


def test_from_backbone_refuses_a_training_checkpoint_and_from_pretrained_a_backbone(checkpoint, tmp_path):
    SimCSEModel.from_backbone(checkpoint("bert")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"training checkpoint: .*from_pretrained"):
        SimCSEModel.from_backbone(tmp_path)
    with pytest.raises(ValueError, match=r"'bert'.*from_backbone"):
        SimCSEModel.from_pretrained(checkpoint("bert"))
