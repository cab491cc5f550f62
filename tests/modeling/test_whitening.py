"""Shuffled group whitening before the contrast, against loops over float64."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEModel
from csekit.modeling.whitening import group_whitened
from tests.modeling.gradients import same_gradients


def naive_whitened(h: Tensor, groups: int, order: list[int]) -> Tensor:
    """One group after the other: the mean, the covariance entry by entry, its inverse root as a constant."""
    B, H = h.shape
    D, columns = H // groups, [None] * H
    for g in range(groups):
        own = order[g * D : (g + 1) * D]
        centred = [[h[i, j] - sum(h[k, j] for k in range(B)) / B for j in own] for i in range(B)]
        C = np.array([[sum(row[a].item() * row[b].item() for row in centred) / B for b in range(D)] for a in range(D)])
        λ, U = np.linalg.eigh(C)
        W = U @ np.diag(λ**-0.5) @ U.T
        for b, j in enumerate(own):
            columns[j] = torch.stack([sum(float(W[a, b]) * row[a] for a in range(D)) for row in centred])
    return torch.stack(columns, dim=1)


@pytest.fixture
def drawn(monkeypatch) -> SimpleNamespace:
    """The orders that were drawn, in their order."""
    found, draw = SimpleNamespace(orders=[]), torch.randperm

    def randperm(*arguments, **options):
        found.orders.append(draw(*arguments, **options))
        return found.orders[-1]

    monkeypatch.setattr("csekit.modeling.whitening.torch.randperm", randperm)
    return found


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("kinds", [None, "dropout+shuffle"])
def test_the_contrast_of_whitened_states_against_the_formula(checkpoint, batch_of, naive, drawn, kinds, shuffle):
    """Each of the views and further positives has its own groups and statistics; the projector is behind."""
    fields = {"whitening_groups": 8, "whitening_shuffle": shuffle, "further_positives": kinds, "temperature": 0.2}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **fields).double()
    twin, batch = copy.deepcopy(model), batch_of(model)
    output = model(**batch)
    texts = [(batch["input_ids"][:, c], batch["attention_mask"][:, c]) for c in (0, 1)]
    if kinds:
        ids, mask = (batch[f"further_positives_{key}"] for key in ("input_ids", "attention_mask"))
        texts += zip(ids.split(5), mask.split(5), strict=True)
    orders = [order.tolist() for order in drawn.orders] if shuffle else [list(range(16))] * len(texts)
    assert len({tuple(order) for order in orders}) == (len(texts) if shuffle else 1)
    z = [
        twin.projector(naive_whitened(twin.pooled(*rows), 8, order)) for rows, order in zip(texts, orders, strict=True)
    ]
    expected = sum(naive.info_nce(z[0], keys, 0.2) for keys in z[1:])
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    same_gradients(model, twin, output.loss, expected)


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_a_group_has_mean_zero_and_covariance_one(groups):
    h, order = torch.randn(200, 16) @ torch.randn(16, 16) + 3, torch.randperm(16)
    x = group_whitened(h, groups, order)[:, order].unflatten(1, (groups, -1))
    for g in range(groups):
        assert x[:, g].mean(0).abs().max() < 1e-4
        torch.testing.assert_close(x[:, g].T @ x[:, g] / 200, torch.eye(16 // groups), rtol=0, atol=1e-2)


def test_fewer_rows_than_dimensions_and_equal_rows_give_finite_values():
    h = torch.randn(3, 16, requires_grad=True)
    for rows in (h, h[:1].expand(3, 16)):
        whitened = group_whitened(rows, 2, torch.arange(16))
        (gradient,) = torch.autograd.grad(whitened.square().sum(), h)
        assert whitened.isfinite().all()
        assert gradient.isfinite().all()


def test_inference_is_not_whitened_and_every_step_has_other_groups(checkpoint, batch_of, drawn):
    models = [CSEModel.from_backbone(checkpoint("bert", 0.0), whitening_groups=groups) for groups in (0, 8)]
    models[1].load_state_dict(models[0].state_dict())
    batch = batch_of(models[0])
    ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    assert torch.equal(*(model(ids, mask).sentence_embedding for model in models))
    assert drawn.orders == []
    for _ in range(2):
        models[1].train()(**batch)
    assert len({tuple(order.tolist()) for order in drawn.orders}) == 4  # two views in each of two steps


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"whitening_groups": 5}, "whitening_groups must divide the hidden size, 16, got 5"),
        ({"whitening_groups": -1}, "whitening_groups must be a number of at least 0, got -1"),
        ({"whitening_groups": 2.0}, "whitening_groups must be a whole number, got 2.0"),
        ({"whitening_shuffle": 1}, "whitening_shuffle must be True or False, got 1"),
        (
            {"whitening_groups": 4, "projector_at_inference": True},
            "projector_at_inference must be False with whitening_groups",
        ),
    ],
)
def test_values_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words):
        CSEModel.from_backbone(checkpoint("bert"), **fields)
