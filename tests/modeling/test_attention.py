"""miCSE's attention mutual information against loops over float64, and the attention that the encoder hands out."""

import copy
import logging

import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEModel, fast_packing
from csekit.modeling.objective_attention import AttentionInformation, correlation
from tests.modeling.gradients import same_gradients

LAYERS = {"attention_first_layer": 0, "attention_last_layer": 1}


def model_of(checkpoint, dropout=0.0, **fields) -> CSEModel:
    fields = {"objectives": ["attention"], "attention_weight": 70.0, **LAYERS} | fields
    return CSEModel.from_backbone(checkpoint("bert", dropout), **fields).double().train()


def test_layers_that_are_computed_again_are_refused(checkpoint, batch_of):
    """In the backward pass they would have another kind of attention, and other dropout."""
    model = model_of(checkpoint)
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="gradient_checkpointing must be off with an objective that reads"):
        model(**batch_of(model))
    model.gradient_checkpointing_disable()
    assert model(**batch_of(model)).loss.isfinite()


def naive_term(attentions: dict[int, Tensor], groups: int, samples: int, draws: list[list[float]]) -> Tensor:
    """Row after row: a head of a sentence in a group of layers. ``draws`` order the positions of a row."""
    layers = sorted(attentions)
    _, B, A, L, _ = attentions[layers[0]].shape
    pairs = []
    for b in range(B):
        for head in range(A):
            for group in range(groups):
                own = layers[group::groups]
                places = [(layer, i, j) for layer in own for i in range(L) for j in range(L)]
                values = [
                    (attentions[layer][0, b, head, i, j], attentions[layer][1, b, head, i, j])
                    for layer, i, j in places
                ]
                pairs.append(values)
    common = [[place for place, (x, y) in enumerate(row) if x > 0 and y > 0] for row in pairs]
    count = samples
    if samples and not any(len(row) >= samples for row in common):
        count = min(len(row) for row in common)
    found, shares = [], []
    for number, (row, places) in enumerate(zip(pairs, common, strict=True)):
        if len(places) < max(count, 2):
            continue
        chosen = places
        if samples:
            chosen = sorted(places, key=lambda place: -draws[number][place])[:count]
        x, y = ([row[place][side].log() for place in chosen] for side in (0, 1))
        x, y = ([value - sum(each) / len(each) for value in each] for each in (x, y))
        rho = sum(a * b for a, b in zip(x, y, strict=True)) / (sum(a * a for a in x) * sum(b * b for b in y)).sqrt()
        found.append(-0.5 * (1 - rho**2).clamp_min(1e-6).log())
        shares.append(len(places) / len(row))
    share = sum(shares) / len(shares)
    return -(share**2 + 1e-6) * sum(found) / len(found)


@pytest.mark.parametrize("samples", [0, 7, 25, 5000])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_term_against_the_formula(checkpoint, make_batch, drawn, groups, samples):
    """With dropout, so that some probabilities are 0. Seven positions are in every row, 25 in some, 5,000 in none."""
    model = model_of(checkpoint, 0.3, attention_groups=groups, attention_samples=samples, contrastive_weight=0.0)
    twin, batch = copy.deepcopy(model), make_batch(4, 2)
    batch["attention_mask"][:, :, :6] = 1  # texts of six to nine tokens
    torch.manual_seed(5)
    output = model(**batch)
    draws = [list(row) for row in drawn[0].tolist()] if samples else []
    torch.manual_seed(5)
    attentions = twin.encode_views(batch["input_ids"], batch["attention_mask"]).attentions
    expected = 70 * naive_term(attentions, groups, samples, draws)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-4, atol=1e-6)
    same_gradients(model, twin, output.loss, expected, rtol=1e-3, unread=True)


def test_the_views_attention_is_the_encoder_s_in_every_family(checkpoint, batch_of, family):
    fields = {"objectives": [{"name": "attention", "first_layer": 0, "last_layer": 1}]}
    model = CSEModel.from_backbone(checkpoint(family, 0.0), **fields).train()
    batch = batch_of(model, family)
    before = model.backbone.config._attn_implementation
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    assert model.backbone.config._attn_implementation == before
    plain = CSEModel.from_backbone(checkpoint(family, 0.0)).train()
    expected = plain.encode_views(batch["input_ids"], batch["attention_mask"])
    torch.testing.assert_close(views.h, expected.h, rtol=1e-4, atol=1e-5)
    plain.backbone.set_attn_implementation("eager")
    ids, mask = batch["input_ids"][:, 1], batch["attention_mask"][:, 1]
    found = plain.backbone(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    real = (mask[:, None, :, None] * mask[:, None, None, :]).bool().expand_as(found[0])
    assert not real.all()
    for layer in (0, 1):
        ours = views.attentions[layer][1]
        torch.testing.assert_close(ours[real], found[layer][real], rtol=1e-4, atol=1e-5)
        assert not ours[~real].any()


@pytest.mark.parametrize("pooling", ["mean", "first_last_mean"])
def test_other_poolings_read_the_same_states(checkpoint, batch_of, pooling):
    models = [model_of(checkpoint, pooling=pooling), CSEModel.from_backbone(checkpoint("bert", 0.0), pooling=pooling)]
    batch = batch_of(models[0])
    found = [model.double().encode_views(batch["input_ids"], batch["attention_mask"]).h for model in models]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_it_is_said_once_and_inference_stays_packed(checkpoint, batch_of, caplog):
    fast_packing.tell_of_attention.cache_clear()
    model = model_of(checkpoint)
    batch = batch_of(model)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model(**batch)
    assert [record.message for record in caplog.records if "attention of the views" in record.message] == [
        "BertModel hands out the attention of the views: they stay padded, with plain attention"
    ]
    assert model.backbone.config._attn_implementation == fast_packing.PACKED_ATTENTION


def test_equal_attention_has_a_finite_value_and_no_gradient_and_few_positions_none(checkpoint, make_batch):
    model = model_of(checkpoint, attention_samples=0)
    batch = make_batch(4, 1)
    output = model(**batch)  # no dropout: both views are one text
    assert output.metrics["attention_information"].item() == pytest.approx(6.9078, abs=1e-3)
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    objective = AttentionInformation(model.config.objectives[0], model.config.encoder_config)
    common = torch.tensor([[True, False, False], [True, True, True]])
    assert objective.drawn(common)[1].tolist() == [False, True]
    objective.config.samples = 3
    assert objective.drawn(common)[1].tolist() == [False, True]
    objective.config.samples = 4
    assert objective.drawn(common)[1].tolist() == [False, False]  # all draw one position: no correlation


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attention_last_layer": 2}, "must be layers of the encoder, which has 2, in their order, got 0 and 2"),
        ({"attention_first_layer": 1, "attention_last_layer": 0}, "in their order, got 1 and 0"),
        ({"attention_groups": 3}, "attention_groups must divide the number of layers, 2, got 3"),
        ({"attention_groups": 0}, "attention_groups must be a number of at least 1, got 0"),
        ({"attention_samples": -1}, "attention_samples must be a number of at least 0, got -1"),
        ({"attention_samples": 2}, "attention_samples must be 0 or at least 3, got 2"),
    ],
)
def test_values_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words):
        model_of(checkpoint, **fields)


def test_values_that_differ_by_rounding_alone_do_not_correlate():
    x, y = (torch.tensor([[-1.0, -1.0000001, -1.0], [-1.0, -2.0, -4.0]], requires_grad=True) for _ in range(2))
    found = correlation(x, y, torch.ones(2, 3, dtype=torch.bool))
    assert found.tolist() == [0, pytest.approx(1)]
    for gradient in torch.autograd.grad(found.sum(), (x, y)):
        assert gradient.isfinite().all() and not gradient[0].any()
