"""Dropout from 16-bit lanes."""

import pytest
import torch
from torch import nn

from csekit.modeling.fast_dropout import LanesDropout, draw_kept, draw_ones, dropout, scale_of, speed_up_dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_rate_and_scale(p, dtype):
    torch.manual_seed(1)
    count = 400_003  # no multiple of four
    result = dropout(torch.ones(count, dtype=dtype), p)
    kept = (result != 0).double()
    assert abs(kept.mean() - (1 - p)) < 5 * (p * (1 - p) / count) ** 0.5 + 2**-16
    assert result.unique().numel() == 2
    torch.testing.assert_close(result.max().float().item(), 1 / (1 - p), rtol=5e-3, atol=0)


def test_elements_are_independent():
    """Also the four that one number serves, and those of the next one."""
    torch.manual_seed(2)
    dropped = (dropout(torch.ones(200_000, 8), 0.3) == 0).double()
    correlation = torch.corrcoef(dropped.T)
    assert (correlation - torch.eye(8)).abs().max() < 5 / 200_000**0.5


def test_gradient_and_seed():
    states = torch.randn(7, 9, requires_grad=True)
    torch.manual_seed(3)
    result = dropout(states, 0.4)
    result.sum().backward()
    assert torch.equal(states.grad * states, result)
    torch.manual_seed(3)
    assert torch.equal(dropout(states, 0.4), result)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_byte_per_element_is_kept_and_the_product_is_the_naive_one(dtype):
    states = torch.randn(33, 9, dtype=dtype, requires_grad=True)
    twin, weights, kept = states.detach().clone(), torch.randn(33, 9, dtype=dtype), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        torch.manual_seed(4)
        result = dropout(states, 0.3)
    torch.manual_seed(4)
    factors = draw_ones(states.shape, 0.3, torch.float32) * scale_of(0.3)
    (result * weights).sum().backward()
    assert torch.equal(result, (twin.float() * factors).to(dtype))  # rounded once
    assert torch.equal(states.grad, (weights.float() * factors).to(dtype))
    assert sum(t.nbytes for t in kept) == states.numel()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_ones_are_what_is_kept(dtype):
    torch.manual_seed(5)
    kept = draw_kept((17, 3), 0.4)
    torch.manual_seed(5)
    ones = draw_ones((17, 3), 0.4, dtype)
    assert ones.dtype == dtype and torch.equal(ones, kept.to(dtype)) and 0 < kept.sum() < kept.numel()


def test_draws_follow_one_another():
    """torch's generator gives each draw another seed, and its state brings the draws back."""
    state = torch.get_rng_state()
    first, second = draw_kept((1000,), 0.5), draw_kept((1000,), 0.5)
    assert abs(float((first == second).double().mean()) - 0.5) < 0.1
    torch.set_rng_state(state)
    assert torch.equal(draw_kept((1000,), 0.5), first) and torch.equal(draw_kept((1000,), 0.5), second)


def test_second_derivatives():
    states = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)

    def seeded(x):
        torch.manual_seed(5)
        return dropout(x, 0.3) ** 3

    assert torch.autograd.gradgradcheck(seeded, states)


@pytest.mark.parametrize("p", [0.0, 1e-7, 1.0])
def test_the_ends_are_pytorch_s(p):
    states = torch.randn(5, 5)
    assert torch.equal(LanesDropout(p).train()(states), nn.functional.dropout(states, p, training=True))


def test_takes_the_place_of_every_dropout():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.2), nn.Sequential(nn.Dropout(0.3), nn.AlphaDropout(0.1)))
    model[2].eval()
    names = list(model.state_dict())
    speed_up_dropout(model)
    assert list(model.state_dict()) == names
    assert [type(m) for m in (model[1], *model[2])] == [LanesDropout, LanesDropout, nn.AlphaDropout]
    assert model[1].p == 0.2
    assert model[1].training
    assert not model[2][0].training
    states = torch.randn(4, 3)
    assert torch.equal(model[2][0](states), states)
