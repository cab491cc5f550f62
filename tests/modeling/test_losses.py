"""Each loss against the paper's formula in naive float64 loops, in value and gradient."""

import pytest
import torch
from torch import Tensor

from csekit.modeling.losses import (
    contrast_diagnostics,
    cosine_logits,
    info_nce,
    mse_reconstruction,
    squared_norm_reconstruction,
    token_cross_entropy_sum,
)

B, H, TAU = 5, 6, 0.05


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_equal(ours: Tensor, theirs: Tensor, *leaves: Tensor) -> None:
    """Same value and same gradient at the leaves."""
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(loss, leaves, retain_graph=True) for loss in (ours, theirs))
    for mine, naive in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, naive, rtol=1e-8, atol=1e-10)


def test_logits(naive):
    q, k = random(B, H), random(3, H, seed=1)
    expected = torch.stack([torch.stack([naive.cosine(a, b) / TAU for b in k]) for a in q])
    assert_equal(cosine_logits(q, k, TAU).sum(), expected.sum(), q, k)
    torch.testing.assert_close(cosine_logits(q, k, TAU), expected)


@pytest.mark.parametrize("temperature", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("rows", [1, B])
def test_info_nce_of_pairs(naive, rows, temperature):
    z1, z2 = random(rows, H), random(rows, H, seed=1)
    ours = info_nce(cosine_logits(z1, z2, temperature), torch.arange(rows))
    assert_equal(ours, naive.info_nce(z1, z2, temperature), z1, z2)


def test_info_nce_of_one_row_is_zero():
    z1, z2 = random(1, H), random(1, H, seed=1)
    loss = info_nce(cosine_logits(z1, z2, TAU), torch.arange(1))
    loss.backward()
    assert loss == 0 and z1.grad.abs().max() == 0


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_info_nce_of_triplets(naive, weight):
    z1, keys = random(B, H), random(2 * B, H, seed=1)
    own = torch.zeros(B, 2 * B, dtype=torch.float64)
    own[torch.arange(B), torch.arange(B) + B] = weight
    ours = info_nce(cosine_logits(z1, keys, TAU) + own, torch.arange(B))
    expected = naive.info_nce(z1, keys, TAU, bonus={(i, B + i): weight for i in range(B)})
    assert_equal(ours, expected, z1, keys)


def test_info_nce_leaves_out_columns_but_never_the_positive(naive):
    z1, z2 = random(B, H), random(B, H, seed=1)
    pairs = {(0, 0), (0, 3), (1, 2), (4, 0), (4, 1), (4, 2), (4, 3)}
    excluded = torch.zeros(B, B, dtype=torch.bool)
    for pair in pairs:
        excluded[pair] = True
    ours = info_nce(cosine_logits(z1, z2, TAU), torch.arange(B), excluded)
    assert_equal(ours, naive.info_nce(z1, z2, TAU, excluded=pairs), z1, z2)


def test_info_nce_with_every_other_column_left_out_is_zero():
    z1, z2 = random(B, H), random(B, H, seed=1)
    loss = info_nce(cosine_logits(z1, z2, TAU), torch.arange(B), torch.ones(B, B, dtype=torch.bool))
    loss.backward()
    assert loss == 0 and z1.grad.isfinite().all()


def test_info_nce_of_aligned_orthogonal_rows():
    z = torch.eye(B, H, dtype=torch.float64)
    expected = -torch.log(torch.exp(torch.tensor(1 / TAU)) / (torch.exp(torch.tensor(1 / TAU)) + B - 1))
    assert info_nce(cosine_logits(z, z, TAU), torch.arange(B)).item() == pytest.approx(expected.item(), abs=1e-7)
    assert squared_norm_reconstruction(z, z) == 0 == mse_reconstruction(z, z)


def test_squared_norm_reconstruction(naive):
    z1, z2 = random(B, H), random(B, H, seed=1)
    assert_equal(squared_norm_reconstruction(z1, z2), naive.squared_norm(z1, z2), z1, z2)
    assert squared_norm_reconstruction(z1, -z1).item() == pytest.approx(4.0)


def test_mse_reconstruction_is_the_released_form(naive):
    z1, z2 = random(B, H), random(B, H, seed=1)
    assert_equal(mse_reconstruction(z1, z2), naive.squared_norm(z1, z2) * 2 / H, z1, z2)
    by_cosine = sum(4 / H * (1 - naive.cosine(a, b)) for a, b in zip(z1, z2, strict=True)) / B
    assert_equal(mse_reconstruction(z1, z2), by_cosine, z1, z2)


@pytest.mark.parametrize("loss", [squared_norm_reconstruction, mse_reconstruction])
def test_reconstruction_invariances(loss):
    z1, z2 = random(B, H).detach(), random(B, H, seed=1).detach()
    order = torch.randperm(B)
    torch.testing.assert_close(loss(z1, z2), loss(3 * z1, 0.2 * z2))
    torch.testing.assert_close(loss(z1, z2), loss(z2, z1))
    torch.testing.assert_close(loss(z1, z2), loss(z1[order], z2[order]))


def test_info_nce_invariances():
    z1, z2 = random(B, H).detach(), random(B, H, seed=1).detach()
    order = torch.randperm(B)
    loss = info_nce(cosine_logits(z1, z2, TAU), torch.arange(B))
    torch.testing.assert_close(loss, info_nce(cosine_logits(3 * z1, 0.2 * z2, TAU), torch.arange(B)))
    torch.testing.assert_close(loss, info_nce(cosine_logits(z1[order], z2[order], TAU), torch.arange(B)))


def test_token_cross_entropy(naive):
    logits, labels = random(7, 11).float(), torch.randint(11, (7,))
    ours, theirs = logits.detach().requires_grad_(), logits.detach().double().requires_grad_()
    loss, expected = token_cross_entropy_sum(ours, labels), naive.token_loss(theirs, labels)
    torch.testing.assert_close(loss.double(), expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-6)


def test_token_cross_entropy_of_no_token_is_zero_with_gradient():
    logits = torch.zeros(0, 11, requires_grad=True)
    loss = token_cross_entropy_sum(logits, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss == 0 and logits.grad.shape == (0, 11)


def test_diagnostics(naive):
    z1, z2 = random(B, H), random(B, H, seed=1)
    found = contrast_diagnostics(cosine_logits(z1, z2, TAU), torch.arange(B), TAU)
    unit1, unit2 = (z / (z * z).sum(1, keepdim=True).sqrt() for z in (z1.detach(), z2.detach()))
    others = [(i, j) for i in range(B) for j in range(B) if i != j]
    squared = {(i, j): ((unit1[i] - unit2[j]) ** 2).sum() for i in range(B) for j in range(B)}
    expected = {
        "positive_cosine": sum(naive.cosine(z1[i], z2[i]) for i in range(B)) / B,
        "negative_cosine": sum(naive.cosine(z1[i], z2[j]) for i, j in others) / len(others),
        "alignment": sum(squared[i, i] for i in range(B)) / B,
        "uniformity": (sum(torch.exp(-2 * squared[pair]) for pair in others) / len(others)).log(),
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.detach(), msg=name)
        assert not found[name].requires_grad


def test_diagnostics_of_one_row_are_finite():
    found = contrast_diagnostics(cosine_logits(random(1, H), random(1, H, seed=1), TAU), torch.arange(1), TAU)
    assert all(value.isfinite() for value in found.values())
