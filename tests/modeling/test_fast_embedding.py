"""The kept gradient of word embeddings: bit for bit that of ``nn.Embedding``, whatever else reads or changes it."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from csekit.modeling import fast_embedding
from csekit.modeling.fast_embedding import KeptEmbedding, clip_gradients, forget_gradients, keep_gradients

V, H = 50, 8


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_embedding, "_ELEMENTS", 1)


class Pair:
    """Two equal embeddings, one of them with a kept gradient, that take the same steps."""

    def __init__(self, padding: int | None = 0) -> None:
        torch.manual_seed(1)
        self.fast: Any
        self.plain: Any
        self.fast, self.plain = (nn.Sequential(nn.Embedding(V, H, padding_idx=padding)) for _ in range(2))
        self.plain.load_state_dict(self.fast.state_dict())
        self.kept = keep_gradients(self.fast)
        self.optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1, fused=True) for each in self.both]

    @property
    def both(self) -> tuple[Any, Any]:
        return self.fast, self.plain

    @property
    def gradient(self) -> Tensor:
        found = self.fast[0].weight.grad
        assert isinstance(found, Tensor)
        return found

    def backward(self, function: Callable[[nn.Module, Tensor], Tensor] | None = None) -> None:
        ids, factors = torch.randint(0, 12, (4, 6)), torch.randn(4, 6, H)
        for each in self.both:
            output = each(ids) if function is None else function(each, ids)
            (output * factors).sum().backward()

    def same(self) -> bool:
        return torch.equal(self.gradient, self.plain[0].weight.grad)

    def step(self, limit: float = 1.0) -> None:
        norms = (
            clip_gradients(self.fast.parameters(), limit, self.kept),
            nn.utils.clip_grad_norm_(self.plain.parameters(), limit),
        )
        torch.testing.assert_close(*norms)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(self.fast[0].weight, self.plain[0].weight)


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair()
    yield found
    forget_gradients(found.fast)


@pytest.mark.parametrize("padding", [None, 0, 3])
@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_steps_are_those_of_an_embedding(padding: int | None, limit: float) -> None:
    pair, places = Pair(padding), set()
    for _ in range(5):
        pair.backward()
        assert pair.same()
        assert pair.kept[pair.fast[0].weight].holds(pair.gradient)
        places.add(pair.gradient.data_ptr())
        pair.step(limit)
    assert len(places) == 1  # one matrix for all steps


def test_gradients_below_the_limit_are_not_written(pair: Pair) -> None:
    further = nn.Linear(3, 3)
    for limit, writes in ((1e6, False), (1e-3, True)):
        pair.backward()
        further(torch.ones(3)).sum().backward()
        parameters = [*pair.fast.parameters(), *further.parameters()]
        before = [int(p.grad._version) for p in parameters if p.grad is not None]
        norm = clip_gradients(parameters, limit, pair.kept)
        assert (norm > limit) == writes
        changed = [int(p.grad._version) > old for p, old in zip(parameters, before, strict=True) if p.grad is not None]
        assert changed == [writes] * 3
        for each in (*pair.both, further):
            each.zero_grad()


def test_gradients_that_are_not_finite_are_told(pair: Pair) -> None:
    pair.backward()
    with torch.no_grad():
        pair.gradient[1, 1] = float("nan")
    assert clip_gradients(pair.fast.parameters(), 1.0, pair.kept).isnan()
    assert pair.gradient[pair.kept[pair.fast[0].weight].rows_R].isnan().all()


def test_accumulated_gradients(pair: Pair) -> None:
    """The next step does not start from what was added to the matrix."""
    for _ in range(3):
        pair.backward()
        pair.backward()
        assert pair.same()
        pair.step()
        pair.backward()
        assert pair.same()
        pair.step()


def test_a_gradient_that_somebody_holds_stays_as_it_is(pair: Pair) -> None:
    pair.backward()
    held = pair.gradient.detach()
    pair.step()
    value = held.clone()  # clipped in place, as always
    pair.backward()
    assert pair.same() and torch.equal(held, value)
    pair.step()
    del held
    pair.backward()
    assert pair.same()
    pair.step()


def test_a_gradient_that_another_function_changes(pair: Pair) -> None:
    """Clipping by torch, and noise on every row: the rows are no longer those of the step."""
    for change in (lambda g: g.mul_(0.5), lambda g: g.add_(1.0)):
        pair.backward()
        for each in pair.both:
            change(each[0].weight.grad)
        assert not pair.kept[pair.fast[0].weight].holds(pair.gradient)
        pair.step()
        pair.backward()
        assert pair.same()
        pair.step()


def test_several_lookups_in_one_graph(pair: Pair) -> None:
    for _ in range(3):
        pair.backward(lambda each, ids: each(ids) + each(ids.flip(0)) * each[0].weight.sum())
        torch.testing.assert_close(pair.gradient, pair.plain[0].weight.grad)
        pair.step()


def test_gradients_that_are_returned(pair: Pair) -> None:
    """Of ``torch.autograd.grad``, also those that are differentiated again."""
    ids = torch.randint(0, 12, (4, 6))
    found = [torch.autograd.grad(each(ids).pow(2).sum(), each[0].weight)[0] for each in pair.both]
    other = torch.autograd.grad(pair.fast(ids).pow(3).sum(), pair.fast[0].weight)[0]
    assert torch.equal(*found)
    assert not torch.equal(other, found[0])
    seconds = []
    for each in pair.both:
        (first,) = torch.autograd.grad(each(ids).pow(3).sum(), each[0].weight, create_graph=True)
        seconds.append(torch.autograd.grad(first.pow(2).sum(), each[0].weight)[0])
    assert torch.equal(*seconds) and seconds[0].abs().sum() > 0


def test_it_ends(pair: Pair) -> None:
    copied = copy.deepcopy(pair.fast)
    assert type(pair.fast[0]) is KeptEmbedding
    forget_gradients(pair.fast)
    forget_gradients(copied)
    for each in (pair.fast, copied):
        assert type(each[0]) is nn.Embedding
        assert not hasattr(each[0], "kept")
    pair.backward()
    assert pair.same()


def test_frozen_embeddings_and_other_kinds_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = nn.Sequential(
        nn.Embedding(V, H).requires_grad_(False), nn.Embedding(V, H, sparse=True), nn.Linear(H, H)
    )
    keep_gradients(model)
    assert not model[0](torch.tensor([1])).requires_grad
    model[1](torch.tensor([1])).sum().backward()
    assert model[1].weight.grad.is_sparse
    monkeypatch.setenv("CSEKIT_FAST", "0")
    assert keep_gradients(nn.Sequential(nn.Embedding(V, H))) == {}
    monkeypatch.delenv("CSEKIT_FAST")
    monkeypatch.setattr(fast_embedding, "_ELEMENTS", V * H + 1)
    assert keep_gradients(nn.Sequential(nn.Embedding(V, H))) == {}
