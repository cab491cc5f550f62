"""Attention of packed tokens: the values and gradients of padded attention, with the same dropout."""

import pytest
import torch

from csekit.modeling.fast_attention import PackedAttention, Rows
from csekit.modeling.fast_dropout import draw_ones, scale_of

A, D, SCALING = 3, 4, 0.7


def rows_of(mask_NL):
    return Rows(mask_NL, mask_NL.flatten().nonzero().squeeze(1))


def naive(query_TAD, key_TAD, value_TAD, mask_NL, factors=1.0, near_LL=None):
    """Attention over padded rows, as the textbook has it."""
    q, k, v = (torch.zeros(*mask_NL.shape, A, D, dtype=x.dtype) for x in (query_TAD, key_TAD, value_TAD))
    for padded, packed in ((q, query_TAD), (k, key_TAD), (v, value_TAD)):
        padded[mask_NL] = packed
    allowed = mask_NL[:, None, None] if near_LL is None else mask_NL[:, None, None] & near_LL
    scores = torch.einsum("nqad,nkad->naqk", SCALING * q, k).masked_fill(~allowed, -torch.inf)
    weights = scores.softmax(-1).nan_to_num() * factors
    return torch.einsum("naqk,nkad->nqad", weights, v)[mask_NL]


def states(T, dtype=torch.float64):
    return [torch.randn(T, A, D, dtype=dtype, requires_grad=True) for _ in range(3)]


MASKS = {
    "right": torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]),
    "left": torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]]),
    "holes": torch.tensor([[1, 0, 1, 1], [0, 1, 0, 1]]),
    "full": torch.ones(2, 3, dtype=torch.int64),
    "one": torch.ones(1, 1, dtype=torch.int64),
}


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("name", MASKS)
def test_values_and_gradients(name, p):
    mask_NL = MASKS[name].bool()
    N, L = mask_NL.shape
    own, weights = states(int(mask_NL.sum())), torch.randn(int(mask_NL.sum()), A, D, dtype=torch.float64)
    twins = [x.detach().clone().requires_grad_() for x in own]
    torch.manual_seed(3)
    factors = draw_ones((N * A, L, L), p, torch.float64).view(N, A, L, L) * scale_of(p) if p else 1.0
    torch.manual_seed(3)
    ours = PackedAttention.apply(*own, rows_of(mask_NL), False, p, SCALING, None)
    theirs = naive(*twins, mask_NL, factors)
    torch.testing.assert_close(ours, theirs)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    for one, other in zip(own, twins, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_copies_of_the_last_token(p):
    """They get its result, and a gradient of them changes nothing."""
    mask_NL, copies = MASKS["right"].bool(), 5
    T = int(mask_NL.sum())
    own, weights = states(T), torch.randn(T, A, D, dtype=torch.float64)
    twins = [torch.cat([x, torch.randn(copies, A, D).double()]).detach().requires_grad_() for x in own]
    filled = Rows(mask_NL, mask_NL.flatten().nonzero().squeeze(1), copies)
    results = []
    for each, rows in ((own, rows_of(mask_NL)), (twins, filled)):
        torch.manual_seed(3)
        results.append(PackedAttention.apply(*each, rows, False, p, SCALING, None))
    assert torch.equal(results[1], torch.cat([results[0], results[0][-1:].expand(copies, -1, -1)]))
    (results[0] * weights).sum().backward()
    (results[1] * torch.cat([weights, torch.ones(copies, A, D)])).sum().backward()
    for one, other in zip(own, twins, strict=True):
        assert torch.equal(other.grad, torch.cat([one.grad, torch.zeros(copies, A, D)]))


def test_tokens_far_apart_do_not_meet():
    mask_NL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    place_L = torch.arange(5)
    near_LL = (place_L[:, None] - place_L).abs() < 2
    own = states(8)
    ours = PackedAttention.apply(*own, rows_of(mask_NL), False, 0.0, SCALING, mask_NL[:, None, None] & near_LL)
    torch.testing.assert_close(ours, naive(*own, mask_NL, near_LL=near_LL))


def test_one_asking_token_of_each_row():
    mask_NL = MASKS["right"].bool()
    own, asking_N = states(8), torch.tensor([1, 3, 7])  # the second, the first and the last token of the three rows
    twins = [x.detach().clone().requires_grad_() for x in own]
    query, key, value = own
    ours = PackedAttention.apply(query[asking_N], key, value, rows_of(mask_NL), True, 0.0, SCALING, None)
    theirs = naive(*twins, mask_NL)[asking_N]
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn(3, A, D, dtype=torch.float64)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    for one, other in zip(own, twins, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_gradients_are_those_of_finite_differences():
    rows = rows_of(MASKS["holes"].bool())
    assert torch.autograd.gradcheck(lambda *x: PackedAttention.apply(*x, rows, False, 0.0, SCALING, None), states(5))


def test_half_precision_keeps_its_type_under_autocast():
    mask_NL = MASKS["right"].bool()
    own = states(8, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        ours = PackedAttention.apply(*own, rows_of(mask_NL), False, 0.0, SCALING, None)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), naive(*(x.float() for x in own), mask_NL), rtol=0.05, atol=0.02)
    ours.sum().backward()
    assert all(x.grad.dtype == torch.bfloat16 for x in own)
