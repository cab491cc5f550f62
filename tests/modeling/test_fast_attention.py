"""Attention of packed tokens: the values and gradients of padded attention, with the same dropout."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from csekit.modeling.fast_attention import PackedAttention, Rows, fill_keys
from csekit.modeling.fast_dropout import draw_ones, scale_of
from csekit.modeling.fast_packing import Packing, packed_attention

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


@pytest.mark.parametrize("capability", ["AVX512", "AVX2"])
@pytest.mark.parametrize("masked", [False, True])
def test_filled_keys_change_nothing(monkeypatch: pytest.MonkeyPatch, masked: bool, capability: str) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    module, filled = nn.Module(), []
    module.is_causal = False
    lanes = 16 if capability == "AVX512" else 8
    for L in range(1, 50):
        q, k, v = torch.randn(3, 2, 3, L, 8)
        mask = (torch.rand(2, 1, L, L) > 0.3) | torch.eye(L, dtype=torch.bool) if masked else None
        expected = sdpa_attention_forward(module, q, k, v, mask)[0]
        with torch.no_grad():
            torch.testing.assert_close(packed_attention(module, q, k, v, mask)[0], expected, rtol=1e-5, atol=1e-6)
            keys, _, wider = fill_keys(k, v, mask)
        assert keys.shape[2] == L or keys.shape[2] % lanes == 0
        assert wider is None or wider.shape[-1] == keys.shape[2]
        filled.append(keys.shape[2] - L)
    assert 0 in filled and max(filled) > lanes // 2


def test_causal_attention_keeps_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mask, torch takes the first keys for those before a query; a gradient needs the keys as they are."""
    q, k, v = torch.randn(3, 2, 3, 15, 8)
    module = nn.Module()
    module.is_causal = True
    monkeypatch.setattr("csekit.modeling.fast_packing.fill_keys", None)  # a call fails
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    with torch.no_grad():
        torch.testing.assert_close(packed_attention(module, q, k, v, None)[0], expected)
        bias = torch.zeros(1, 3, 15, 15)
        packed_attention(module, q, k, v, None, position_bias=bias, is_causal=False)
    module.is_causal = False
    packed_attention(module, q, k, v, None)


def test_training_in_16_bits_without_dropout_leaves_torchs_slow_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    mask_NL, module = MASKS["right"].bool(), nn.Module()
    module.is_causal = False
    own = [x.transpose(0, 1)[None].detach().requires_grad_() for x in states(8, torch.bfloat16)]  # (1, A, T, D)
    twins = [x.detach().float().squeeze(0).transpose(0, 1).requires_grad_() for x in own]
    weights = torch.randn(8, A, D)
    theirs = naive(*twins, mask_NL)
    (theirs * weights).sum().backward()
    monkeypatch.setattr("csekit.modeling.fast_packing.sdpa_attention_forward", None)  # a call fails
    ours = packed_attention(module, *own, None, packing=Packing.of(mask_NL.long()), scaling=SCALING)[0][0]
    torch.testing.assert_close(ours.float(), theirs, rtol=0.05, atol=0.02)
    (ours * weights.bfloat16()).sum().backward()
    for one, other in zip(own, twins, strict=True):
        torch.testing.assert_close(one.grad.squeeze(0).transpose(0, 1).float(), other.grad, rtol=0.05, atol=0.05)
    with pytest.raises(TypeError), torch.no_grad():  # in use the kernel of all queries stays
        packed_attention(module, *own, None, packing=Packing.of(mask_NL.long()), scaling=SCALING)
