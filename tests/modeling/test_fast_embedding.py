"""Sparse gradients of word embeddings: the steps, bit for bit, that AdamW takes with those of ``nn.Embedding``."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from csekit.modeling import fast_adamw, fast_embedding
from csekit.modeling.fast_adamw import RowSteps, untouched_zeros
from csekit.modeling.fast_embedding import RowEmbedding, clip_gradients, use_plain_gradients, use_row_gradients

V, H = 50, 16  # widths that fill the processor's lanes: only these have equal bits


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count small matrices as large, and take a step in chunks of seven rows."""
    monkeypatch.setattr(fast_embedding, "_ELEMENTS", 1)
    monkeypatch.setattr(fast_adamw, "_CHUNK", 7 * H)


class Pair:
    """Two equal embeddings, one of them with sparse gradients, that take the same steps."""

    def __init__(self, padding: int | None = 0, width: int = H, kind: Any = torch.optim.AdamW, **options: Any) -> None:
        torch.manual_seed(1)
        self.width = width
        self.fast: Any
        self.plain: Any
        self.fast, self.plain = (nn.Sequential(nn.Embedding(V, width, padding_idx=padding)) for _ in range(2))
        self.plain.load_state_dict(self.fast.state_dict())
        assert use_row_gradients(self.fast)
        self.optimizers = [kind(each.parameters(), **{"lr": 0.1, "weight_decay": 0.0} | options) for each in self.both]
        self.steps = RowSteps(self.optimizers[0])

    @property
    def both(self) -> tuple[Any, Any]:
        return self.fast, self.plain

    @property
    def gradient(self) -> Tensor:
        found = self.fast[0].weight.grad
        assert isinstance(found, Tensor)
        return found

    def backward(self, function: Callable[[nn.Module, Tensor], Tensor] | None = None, words: int = 12) -> None:
        ids, factors = torch.randint(0, words, (4, 6)), torch.randn(4, 6, self.width)
        for each in self.both:
            output = each(ids) if function is None else function(each, ids)
            (output * factors).sum().backward()

    def same(self) -> bool:
        return torch.equal(self.gradient.to_dense(), self.plain[0].weight.grad)

    def step(self, limit: float = 1e6) -> None:
        """Clip and step. The weights and averages are equal bit for bit unless the gradients were scaled, by a norm
        that is summed in another order."""
        norms = (
            clip_gradients(self.fast.parameters(), limit),
            nn.utils.clip_grad_norm_(self.plain.parameters(), limit),
        )
        torch.testing.assert_close(*norms)
        for optimizer in self.optimizers:
            optimizer.step()
        assert self.gradient is not None  # as after any other step
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        weights = [each[0].weight for each in self.both]
        states = [optimizer.state[weight] for optimizer, weight in zip(self.optimizers, weights, strict=True)]
        assert states[0].keys() == states[1].keys()
        exact = {} if norms[0] > limit or self.width % 16 else {"rtol": 0.0, "atol": 0.0}
        torch.testing.assert_close(*weights, **exact)
        for name, value in states[0].items():
            torch.testing.assert_close(value, states[1][name], **exact)


@pytest.fixture
def pair() -> Pair:
    return Pair()


@pytest.mark.parametrize("padding", [None, 0, 3])
@pytest.mark.parametrize("limit", [0.5, 1e6])
@pytest.mark.parametrize("scattered", [1, 8, 10**6], ids=["copies", "either", "blocks"])
def test_steps_are_those_of_an_embedding(
    monkeypatch: pytest.MonkeyPatch, padding: int | None, limit: float, scattered: int
) -> None:
    monkeypatch.setattr(fast_adamw, "_SCATTERED", scattered)
    pair = Pair(padding)
    for words in (12, 12, 2, V, 30):
        pair.backward(words=words)
        assert pair.gradient.is_sparse and pair.same()
        pair.step(limit)


@pytest.mark.parametrize("width", [1, 5, 32, 33])
@pytest.mark.parametrize(
    "options", [{"fused": True}, {"foreach": False}, {"foreach": True}, {"betas": (0.5, 0.6)}], ids=str
)
def test_steps_of_each_form_of_adamw(width: int, options: dict[str, Any]) -> None:
    pair = Pair(width=width, **options)
    for _ in range(4):
        pair.backward()
        pair.step()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.AdamW, {"maximize": True}),
        (torch.optim.Adam, {}),
        (torch.optim.SGD, {}),
    ],
)
def test_other_optimisers_get_a_matrix(kind: Any, options: dict[str, Any]) -> None:
    pair = Pair(kind=kind, **options)
    for _ in range(3):
        pair.backward()
        pair.step()
        assert pair.steps._alive == {}


def test_only_rows_that_were_read_take_part(pair: Pair) -> None:
    """The pages of the others' averages stay untouched, and their weights unchanged."""
    weight = pair.fast[0].weight
    before = weight.detach().clone()
    for words in (3, 12):
        pair.backward(words=words)
        pair.step()
        assert 1 < pair.steps._alive[weight].sum() <= words
    assert torch.equal(weight[12:], before[12:])
    assert not torch.equal(weight[1:3], before[1:3])


def test_a_run_goes_on_from_a_checkpoint(pair: Pair) -> None:
    """Of either optimiser, in the other: rows that were read before take part again."""
    for _ in range(2):
        pair.backward()
        pair.step()
    saved = [copy.deepcopy(optimizer.state_dict()) for optimizer in pair.optimizers]
    pair.steps.remove()
    pair.optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1, weight_decay=0.0) for each in pair.both]
    pair.steps = RowSteps(pair.optimizers[0])
    for optimizer, state in zip(pair.optimizers, reversed(saved), strict=True):
        optimizer.load_state_dict(state)
    pair.backward(words=2)
    pair.step()
    assert pair.steps._alive[pair.fast[0].weight].sum() > 2


def test_dense_gradients_between(pair: Pair) -> None:
    """As of a step with a tied masked-LM head: afterwards every row has averages."""
    for function in (None, lambda each, ids: each(ids) * each[0].weight.sum(), None):
        pair.backward(function)
        assert pair.gradient.is_sparse == (function is None)
        pair.step()
    assert pair.steps._alive[pair.fast[0].weight].all()


def test_a_step_without_a_gradient(pair: Pair) -> None:
    pair.backward()
    pair.step()
    for optimizer in pair.optimizers:
        optimizer.step()
    pair.backward()
    pair.step()


def test_gradients_below_the_limit_are_not_written(pair: Pair) -> None:
    further = nn.Linear(3, 3)
    for limit, writes in ((1e6, False), (1e-3, True)):
        pair.backward()
        further(torch.ones(3)).sum().backward()
        parameters = [*pair.fast.parameters(), *further.parameters()]
        before = [p.grad.to_dense().clone() for p in parameters if p.grad is not None]
        norm = clip_gradients(parameters, limit)
        assert (norm > limit) == writes
        after = [p.grad.to_dense() for p in parameters if p.grad is not None]
        assert [not torch.equal(*both) for both in zip(before, after, strict=True)] == [writes] * 3
        for each in (*pair.both, further):
            each.zero_grad()


def test_gradients_that_are_not_finite_are_told(pair: Pair) -> None:
    pair.backward()
    pair.gradient._values()[1, 1] = float("nan")
    assert clip_gradients(pair.fast.parameters(), 1.0).isnan()


def test_accumulated_gradients(pair: Pair) -> None:
    for count in (2, 3, 1):
        for _ in range(count):
            pair.backward()
        torch.testing.assert_close(pair.gradient.to_dense(), pair.plain[0].weight.grad)
        pair.plain[0].weight.grad = pair.gradient.to_dense()  # sums of three have another order
        pair.step()


def test_several_lookups_in_one_graph(pair: Pair) -> None:
    pair.backward(lambda each, ids: each(ids) + each(ids.flip(0)))
    torch.testing.assert_close(pair.gradient.to_dense(), pair.plain[0].weight.grad)
    assert pair.gradient.is_sparse


def test_gradients_that_are_returned(pair: Pair) -> None:
    """Of ``torch.autograd.grad``, also those that are differentiated again."""
    ids = torch.randint(0, 12, (4, 6))
    found = [torch.autograd.grad(each(ids).pow(2).sum(), each[0].weight)[0] for each in pair.both]
    assert torch.equal(found[0].to_dense(), found[1])
    seconds = []
    for each in pair.both:
        (first,) = torch.autograd.grad(each(ids).pow(3).sum(), each[0].weight, create_graph=True)
        seconds.append(torch.autograd.grad(first.pow(2).sum(), each[0].weight)[0])
    assert torch.equal(seconds[0].to_dense(), seconds[1]) and seconds[1].abs().sum() > 0


def test_it_ends(pair: Pair) -> None:
    copied = copy.deepcopy(pair.fast)
    assert type(pair.fast[0]) is RowEmbedding
    for each in (pair.fast, copied):
        use_plain_gradients(each)
        assert type(each[0]) is nn.Embedding
    pair.steps.remove()
    pair.backward()
    assert not pair.gradient.is_sparse and pair.same()
    pair.step()


def test_other_embeddings_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, sparse, hooked, half = (
        nn.Embedding(V, H),
        nn.Embedding(V, H, sparse=True),
        nn.Embedding(V, H),
        nn.Embedding(V, H),
    )
    frozen.requires_grad_(False)
    hooked.weight.register_hook(lambda gradient: gradient * 2)
    half.to(torch.bfloat16)
    assert use_row_gradients(nn.Sequential(frozen, sparse))
    assert not frozen(torch.tensor([1])).requires_grad
    sparse(torch.tensor([1])).sum().backward()
    assert sparse.weight.grad is not None and sparse.weight.grad.is_sparse
    assert not use_row_gradients(nn.Sequential(hooked, half, nn.Linear(H, H)))
    monkeypatch.setenv("CSEKIT_FAST", "0")
    assert not use_row_gradients(nn.Sequential(nn.Embedding(V, H)))
    monkeypatch.delenv("CSEKIT_FAST")
    monkeypatch.setattr(fast_embedding, "_ELEMENTS", V * H + 1)
    assert not use_row_gradients(nn.Sequential(nn.Embedding(V, H)))


@pytest.mark.parametrize("shape", [(3, 4), (5000, 8), (0, 4)])
def test_untouched_zeros_are_zeros(shape: tuple[int, int]) -> None:
    like = torch.ones(shape)
    found = untouched_zeros(like)
    assert torch.equal(found, torch.zeros(shape)) and found.dtype == like.dtype
    found += 1
    assert torch.equal(found, like)
    assert torch.equal(copy.deepcopy(found), like)
