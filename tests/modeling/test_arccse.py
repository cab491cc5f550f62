"""ArcCSE: the angular margin and the masked triplets, against loops over float64."""

import copy
import math

import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEModel, Encode
from csekit.modeling.losses import with_angular_margin
from tests.modeling.gradients import same_gradients

MARGIN = math.pi / 18


def arc_con(queries: Tensor, keys: Tensor, m: float, tau: float, naive) -> Tensor:
    """−(1/B) Σ_i log exp(cos(θ_ii + m)/τ) / (exp(cos(θ_ii + m)/τ) + Σ_{j≠i} exp(cos θ_ij/τ)), with θ = arccos."""
    total = queries.new_zeros(())
    for i in range(len(queries)):
        positive = ((naive.cosine(queries[i], keys[i]).acos() + m).cos() / tau).exp()
        others = sum((naive.cosine(queries[i], keys[j]) / tau).exp() for j in range(len(keys)) if j != i)
        total = total - (positive / (positive + others)).log()
    return total / len(queries)


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_margin_against_the_formula(checkpoint, batch_of, naive, symmetric):
    fields = {"angular_margin": MARGIN, "temperature": 0.2, "symmetric": symmetric}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **fields).double()
    twin, batch = copy.deepcopy(model), batch_of(model)
    output = model(**batch)
    z1, z2 = twin.encode_views(batch["input_ids"], batch["attention_mask"]).z
    expected = arc_con(z1, z2, MARGIN, 0.2, naive)
    if symmetric:
        expected = (expected + arc_con(z2, z1, MARGIN, 0.2, naive)) / 2
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    same_gradients(model, twin, output.loss, expected)


def test_diagnostics_are_those_before_the_margin(checkpoint, batch_of):
    models = [CSEModel.from_backbone(checkpoint("bert", 0.0), angular_margin=m) for m in (0.0, MARGIN)]
    models[1].load_state_dict(models[0].state_dict())
    plain, arc = (model(**batch_of(model)) for model in models)
    assert plain.metrics == arc.metrics
    assert arc.loss > plain.loss


@pytest.mark.parametrize("margin", [0.1, 0.5, 1.5])
def test_the_logit_falls_with_the_angle_up_to_the_opposite_vector(margin):
    """cos(θ + m) alone would rise again for θ > π − m: the loss would push a positive further away."""
    angles = torch.linspace(0, math.pi, 2001, dtype=torch.float64)
    logits = torch.stack([angles.cos() / 0.05, torch.zeros(2001)], dim=1)
    found = with_angular_margin(logits, torch.zeros(2001, dtype=torch.int64), margin, 0.05)
    values = found[:, 0] * 0.05
    inside = angles < math.pi - margin
    torch.testing.assert_close(values[inside], (angles[inside] + margin).cos(), rtol=0, atol=2e-3)
    steps = values.diff()
    assert steps.max() <= 1e-12
    assert steps.min() > -0.01  # no jump at π − m
    assert torch.equal(found[:, 1], logits[:, 1])


def test_the_gradient_is_finite_for_equal_and_opposite_vectors():
    """Regression: the derivative of arccos is infinite at both ends."""
    cosines = torch.tensor([[1.0, 0.3], [-1.0, 0.2]], requires_grad=True)
    with_angular_margin(cosines / 0.05, torch.zeros(2, dtype=torch.int64), MARGIN, 0.05).sum().backward()
    assert cosines.grad.isfinite().all()
    assert (cosines.grad > 0).all()


def triplet_term(model, batch) -> tuple[Tensor, dict]:
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    encode = Encode(model.backbone, model.backbone.get_input_embeddings().weight, model.project)
    terms, metrics = model.objectives["triplet"](views, batch, encode)
    return terms["triplet"], metrics


def naive_triplet(model, batch, m: float, naive) -> tuple[Tensor, float]:
    """(1/B) Σ_i max(0, cos(h_i, h''_i) − cos(h_i, h'_i) + m), one sentence after the other."""
    B, total, violations = len(batch["input_ids"]), batch["input_ids"].new_zeros((), dtype=torch.float64), 0
    for i in range(B):
        mask = batch["attention_mask"][i, :1]
        texts = (batch["input_ids"][i, 0], batch["triplet_input_ids"][i], batch["triplet_input_ids"][B + i])
        h, h1, h2 = (model.projector(model.backbone(ids[None], mask).last_hidden_state[:, 0])[0] for ids in texts)
        closer = naive.cosine(h, h2) - naive.cosine(h, h1)
        violations += int(closer > 0)
        total = total + max(closer + m, closer.new_zeros(()))
    return total / B, violations / B


@pytest.mark.parametrize("margin", [0.0, 0.025])
def test_the_triplet_against_the_formula(checkpoint, batch_of, naive, margin):
    """In training, with the encoder's dropout on: the three are encoded without it. Two rows violate the order."""
    fields = {"triplet_weight": 0.7, "triplet_margin": margin, "triplet_mask_rate": 0.3, "longer_mask_rate": 0.8}
    model = CSEModel.from_backbone(checkpoint("bert", 0.3), **fields).double().train()
    twin, batch = copy.deepcopy(model).eval(), batch_of(model)
    copies = batch["triplet_input_ids"].unflatten(0, (2, -1))
    copies[:, [0, 2]] = copies.flip(0)[:, [0, 2]].clone()
    term, metrics = triplet_term(model, batch)
    expected, violations = naive_triplet(twin, batch, margin, naive)
    torch.testing.assert_close(term.double(), 0.7 * expected, rtol=1e-4, atol=1e-6)
    assert metrics["triplet_violations"].item() == pytest.approx(violations)
    assert violations == pytest.approx(0.4)
    assert all(module.training for module in model.modules())
    same_gradients(model, twin, term, 0.7 * expected)


def test_dropout_of_the_triplet_is_drawn_on_request_and_changes_no_other(checkpoint, batch_of):
    models = [
        CSEModel.from_backbone(checkpoint("bert", 0.3), **fields).train()
        for fields in ({}, {"triplet_weight": 0.5, "margin": 1.0, "triplet_dropout": True})
    ]
    models[0].projector.load_state_dict(models[1].projector.state_dict())
    batch, found = batch_of(models[1]), []
    for model in models:
        torch.manual_seed(4)
        found.append([model(**batch).loss_dict for _ in range(2)])
    for one, other in zip(*found, strict=True):
        assert one["contrastive"] == other["contrastive"]
    assert found[1][0]["triplet"] != found[1][1]["triplet"]


def test_a_sentence_without_room_for_two_spans_adds_no_gradient(checkpoint, batch_of):
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), triplet_weight=1.0, contrastive_weight=0.0)
    batch = batch_of(model)
    batch["triplet_input_ids"] = batch["input_ids"][:, 0].repeat(2, 1)
    output = model(**batch)
    output.loss.backward()
    assert output.loss == 0
    assert all(p.grad is None or p.grad.abs().max() == 0 for p in model.parameters())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"angular_margin": -0.1}, "angular_margin must be a number of at least 0 and below 1.5708, got -0.1"),
        ({"angular_margin": math.pi / 2}, "angular_margin must be a number of at least 0 and below 1.5708, got 1.57"),
        ({"angular_margin": "10"}, "angular_margin must be a number of at least 0 and below 1.5708, got '10'"),
        ({"triplet_mask_rate": 0.4}, "triplet_longer_mask_rate must exceed triplet_mask_rate, got 0.4 and 0.4"),
        ({"triplet_mask_rate": 0.0}, "triplet_mask_rate must be a number greater than 0 and at most 1, got 0.0"),
        ({"longer_mask_rate": 1.2}, "triplet_longer_mask_rate must be a number greater than 0 and at most 1, got 1.2"),
        ({"triplet_margin": -1.0}, "triplet_margin must be a number of at least 0 and at most 2, got -1.0"),
        ({"triplet_dropout": 0.1}, "triplet_dropout must be True or False, got 0.1"),
    ],
)
def test_values_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words):
        CSEModel.from_backbone(checkpoint("bert"), objectives=["triplet"], **fields)
