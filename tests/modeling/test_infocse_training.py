"""InfoCSE's second stage: what is frozen, what trains, what is saved, and which checkpoints it starts from."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM, BertConfig

from csekit.modeling import METHODS, CSEModel, InfoCSEModel, InforMinModel
from csekit.modeling.auxiliary_head import AuxiliaryHead, lower_layers
from csekit.modeling.masked_lm_head import MaskedLMHead

B, L, H, V = 4, 9, 16, 97
DEEP = {"num_hidden_layers": 4}  # k = 2


# What is frozen, what trains


@pytest.mark.parametrize("detach", [True, False])
def test_frozen_layers_stay_and_all_else_moves(stage1, make_batch, add_copies, detach):
    model = InfoCSEModel.from_backbone(stage1("bert", 0.1, **DEEP), detach=detach).eval().train()
    assert not any(module.training for module in model.objectives["aux_mlm"].lower.modules())
    assert model.objectives["aux_mlm"].head.training
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.AdamW(
        [{"params": group["params"]} for group in model.parameter_groups()], lr=1e-2, weight_decay=0.1
    )
    for step in range(3):
        model.train()
        optimiser.zero_grad()
        model(**add_copies(make_batch(B, 1, L, seed=step), seed=step, name="aux_mlm")).loss.backward()
        optimiser.step()
    for name, parameter in model.named_parameters():
        frozen = name.startswith("objectives.aux_mlm.lower.") and detach
        assert torch.equal(parameter, before[name]) is frozen and parameter.requires_grad is not frozen, name
        assert frozen is (parameter.grad is None), name


def test_the_lower_copy_has_no_dropout_and_the_head_has(stage1, make_batch):
    for fresh in (False, True):
        model = InfoCSEModel.from_backbone(stage1("bert", 0.3, **DEEP))
        objective = (InfoCSEModel(model.config) if fresh else model.train()).objectives["aux_mlm"]
        batch = make_batch(B, 0, L)
        first, second = (objective.lower(batch["input_ids"], batch["attention_mask"]) for _ in range(2))
        assert torch.equal(first, second)
        assert not torch.equal(*(objective.head(first, batch["attention_mask"]) for _ in range(2)))


def test_the_lower_copy_has_dropout_in_training_on_request(stage1, make_batch, tmp_path):
    model = InfoCSEModel.from_backbone(stage1("bert", 0.3, **DEEP), lower_dropout=True)
    model.save_pretrained(tmp_path)
    batch = make_batch(B, 0, L)
    for each in (model, InfoCSEModel.from_pretrained(tmp_path)):
        lower = each.objectives["aux_mlm"].lower
        states = [lower(batch["input_ids"], batch["attention_mask"]) for _ in range(2)]
        assert torch.equal(*states)
        each.train()
        states = [lower(batch["input_ids"], batch["attention_mask"]) for _ in range(2)]
        assert not torch.equal(*states)
        assert not any(parameter.requires_grad for parameter in lower.parameters())


def test_groups_that_are_clipped_apart(infocse):
    for fields, groups in (({}, ["encoder", "aux_mlm"]), ({"gradient": "plain"}, ["encoder"])):
        model = infocse(**fields)
        found = model.parameter_groups()
        assert [group["clip_group"] for group in found] == groups
        listed = [id(p) for group in found for p in group["params"]]
        assert len(listed) == len(set(listed))
        assert set(listed) == {id(p) for p in model.parameters() if p.requires_grad}
    model = infocse(detach=False)
    own = {id(p) for p in model.objectives["aux_mlm"].parameters()}
    assert {id(p) for p in model.parameter_groups()[1]["params"]} == own


def test_no_masked_token_gives_zero(infocse, batch_with):
    model = infocse()
    output = model(**batch_with(share=0.0))
    output.loss.backward()
    assert output.loss_dict["aux_mlm"] == 0 and output.metrics["aux_mlm_accuracy"] == 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


# Without the contrast (Table 5)


def test_the_contrast_can_be_left_out_or_weighted(infocse, batch_with, tmp_path):
    model = infocse(contrastive_weight=0.0)
    output = model(**batch_with())
    assert list(output.loss_dict) == ["aux_mlm"] and output.loss == output.loss_dict["aux_mlm"]
    assert output.metrics["positive_cosine"].isfinite()
    output.loss.backward()
    assert not any(p.requires_grad for p in model.projector.parameters())
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    model.save_pretrained(tmp_path)
    assert not any(p.requires_grad for p in InfoCSEModel.from_pretrained(tmp_path).projector.parameters())
    full, half = infocse(), infocse(contrastive_weight=0.5)
    half.projector.load_state_dict(full.projector.state_dict())
    left, right = (each(**batch_with()).loss_dict["contrastive"] for each in (full, half))
    assert torch.equal(right, left / 2)


def test_a_projector_that_an_objective_reads_trains_without_the_contrast(infocse, make_batch, stage1):
    model = InforMinModel.from_backbone(stage1("bert", **DEEP), contrastive_weight=0.0).train()
    output = model(**make_batch(B, 1, L))
    output.loss.backward()
    assert list(output.loss_dict) == ["reconstruction"]
    assert all(p.grad is not None for p in model.parameters())


# Saving


def names(model: nn.Module, trained_only: bool = False) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad or not trained_only}


@pytest.mark.parametrize("kind", [InfoCSEModel, AutoModel])
@pytest.mark.parametrize("detach", [True, False])
def test_save_and_reload_exactly(infocse, make_batch, batch_with, tmp_path, kind, detach):
    model = infocse(detach=detach)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(**batch_with()).loss.backward()
    optimiser.step()
    model.eval().save_pretrained(tmp_path / "one")
    again = kind.from_pretrained(tmp_path / "one")
    assert type(again) is InfoCSEModel and again.config.objectives == model.config.objectives
    left, right = model.state_dict(), again.state_dict()
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    assert set(load_file(tmp_path / "one" / "model.safetensors")) == set(left)
    assert names(again, trained_only=True) == names(model, trained_only=True)  # loading makes everything trainable
    assert not any(module.training for module in again.train().objectives["aux_mlm"].lower.modules())
    assert torch.equal(again.eval()(**batch_with()).loss, model(**batch_with()).loss)
    again.save_pretrained(tmp_path / "two")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_export_holds_the_encoder_alone(infocse, tokenizer_of, tmp_path):
    model = infocse().eval()
    model.export(tmp_path, tokenizer_of("bert"))
    exported = {name for name in load_file(tmp_path / "model.safetensors") if not name.startswith("pooler.")}
    assert exported == set(model.backbone.state_dict())
    assert not (tmp_path / "auxiliary_head").exists() and "aux_mlm" not in (tmp_path / "config.json").read_text()


def test_parameter_counts(infocse):
    """At inference the encoder alone; in training the projector, two layers, the LM head with its own matrix and, not
    trained, embeddings and k layers."""

    def count(*modules: nn.Module, trained: bool = False) -> int:
        return sum(p.numel() for m in modules for p in m.parameters() if p.requires_grad or not trained)

    model = infocse()
    encoder, objective = model.backbone, model.objectives["aux_mlm"]
    layer = count(encoder.encoder.layer[0])
    lm_head = H * H + H + 2 * H + V * H + V  # transform, its norm, the vocabulary matrix, the bias
    assert count(objective.lower) == count(encoder.embeddings) + 2 * layer
    assert count(objective, trained=True) == count(objective.head, objective.lm_head) == 2 * layer + lm_head
    projector = 2 * H * H + 2 * 2 * H + 2 * H * H
    assert count(model, trained=True) == count(encoder) + projector + 2 * layer + lm_head
    assert count(model) == count(model, trained=True) + count(objective.lower)


# From which checkpoints


@pytest.mark.parametrize("method", METHODS)
def test_every_method_starts_from_a_stage_1_checkpoint(stage1, batch_of, method):
    model = METHODS[method].from_backbone(stage1("bert", **DEEP)).train()
    plain = AutoModel.from_pretrained(stage1("bert", **DEEP))
    assert all(torch.equal(plain.get_parameter(name), p) for name, p in model.backbone.named_parameters())
    assert model(**batch_of(model)).loss.isfinite()
    assert all(p.isfinite().all() for p in model.parameters())


def test_what_each_head_init_takes(stage1):
    folder = stage1("bert", **DEEP)
    mlm = AutoModelForMaskedLM.from_pretrained(folder)
    saved = load_file(folder / "auxiliary_head" / "model.safetensors")
    models = {
        init: InfoCSEModel.from_backbone(folder, head_init=init)
        for init in ("pretrained", "top_layers", "new_layers", "random")
    }
    heads = {init: model.objectives["aux_mlm"] for init, model in models.items()}
    for name, value in heads["pretrained"].head.model.state_dict().items():
        assert torch.equal(value, saved[name])
    for own, layer in zip(heads["top_layers"].head.layers, mlm.bert.encoder.layer[-2:], strict=True):
        for name, value in own.state_dict().items():
            assert torch.equal(value, layer.state_dict()[name])
    for name, value in heads["new_layers"].head.named_parameters():
        if value.dim() == 2:
            assert not torch.equal(value, heads["top_layers"].head.get_parameter(name)), name
            assert 0.15 < value.std() < 0.25, name  # initializer_range is 0.2
    for init in ("pretrained", "top_layers", "new_layers"):
        assert torch.equal(heads[init].lm_head.decoder.weight, mlm.get_output_embeddings().weight)
        assert heads[init].lm_head.decoder.weight is not models[init].backbone.get_input_embeddings().weight
        assert torch.equal(heads[init].lm_head.bias, mlm.get_output_embeddings().bias)
    for name, value in heads["random"].named_parameters():
        assert torch.equal(value, heads["pretrained"].get_parameter(name)) is name.startswith("lower."), name
        if value.dim() == 2 and not name.startswith("lower."):
            assert 0.15 < value.std() < 0.25, name  # initializer_range is 0.2


def test_a_random_head_needs_no_masked_lm(encoder_config, tmp_path, batch_with):
    AutoModel.from_config(encoder_config("bert")).save_pretrained(tmp_path)
    model = InfoCSEModel.from_backbone(tmp_path, head_init="random").train()
    assert model(**batch_with()).loss.isfinite()


def test_a_checkpoint_without_a_head_names_stage_1(checkpoint):
    command = "'csekit pretrain --objective condenser --model_name_or_path .*bert"
    others = "'top_layers', 'new_layers' or 'random'"
    with pytest.raises(ValueError, match=f"has no auxiliary head.*{command}.*{others}"):
        InfoCSEModel.from_backbone(checkpoint("bert"))


@pytest.mark.parametrize("init", ["pretrained", "top_layers", "new_layers"])
def test_a_checkpoint_without_a_masked_lm_head_is_refused(encoder_config, tmp_path, init):
    config = encoder_config("bert", **DEEP)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    AuxiliaryHead(config).save(tmp_path, 2)
    with pytest.raises(
        ValueError, match=f"aux_mlm_head_init='{init}' needs a checkpoint with a masked-LM head, .*cls"
    ):
        InfoCSEModel.from_backbone(tmp_path, head_init=init)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_layers": 1}, r"aux_mlm_head_layers must be 2 for the head of .*, got 1"),
        ({"layer": 1}, r"aux_mlm_layer must be 2 for the head of .*, got 1"),
        ({"layer": 5}, r"aux_mlm_layer must be at most 4, the encoder's layers, got 5"),
        ({"head_init": "top_layers", "head_layers": 5}, r"head of 5 layers cannot start from the 4 of the encoder"),
    ],
)
def test_settings_that_do_not_fit_the_checkpoint(stage1, fields, message):
    with pytest.raises(ValueError, match=message):
        InfoCSEModel.from_backbone(stage1("bert", **DEEP), **fields)


@pytest.mark.parametrize(("layers", "k"), [(1, 1), (2, 1), (4, 2), (6, 3), (11, 5), (12, 6), (24, 6)])
def test_the_layer_of_the_copy(layers, k):
    assert lower_layers(BertConfig(num_hidden_layers=layers)) == k
    assert lower_layers(BertConfig(num_hidden_layers=layers), 1) == 1


def test_an_untied_head_keeps_the_checkpoint_s_output_matrix(encoder_config, tmp_path):
    AutoModelForMaskedLM.from_config(encoder_config("bert", tie_word_embeddings=False)).save_pretrained(tmp_path)
    mlm, head = AutoModelForMaskedLM.from_pretrained(tmp_path), MaskedLMHead(encoder_config("bert"), tied=False)
    assert not head.load_from(str(tmp_path))
    assert torch.equal(head.decoder.weight, mlm.get_output_embeddings().weight)
    assert not torch.equal(head.decoder.weight, mlm.get_input_embeddings().weight)


def test_any_objective_list(stage1, batch_with):
    """The joint model with this and others, each with settings of its own."""
    fields: dict[str, Any] = {"aux_mlm_weight": 1e-4, "mlm_weight": 0.1, "reconstruction_weight": 0.4}
    model = CSEModel.from_backbone(stage1("bert", **DEEP), **fields, aux_mlm_probability=0.4, mlm_probability=0.15)
    assert {name: spec.probability for name, spec in model.batch_specs.items()} == {"aux_mlm": 0.4, "mlm": 0.15}
    assert [group["clip_group"] for group in model.parameter_groups()] == ["encoder", "aux_mlm"]
    batch = batch_with()
    output = model(**batch, **{name.removeprefix("aux_"): value for name, value in batch.items() if "aux_" in name})
    assert list(output.loss_dict) == ["contrastive", *(name.removesuffix("_weight") for name in fields)]
