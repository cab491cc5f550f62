"""Recomputed outputs have the same bits as kept ones and take less memory."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from csekit.modeling import SimCSEModel
from csekit.modeling.fast_cache import Chunks
from csekit.modeling.fast_recompute import CHEAP, recomputed


class Block(nn.Module):
    """A transformer's feed-forward part, with the naive order of operations."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.act, self.inplace = nn.GELU(), inplace

    def forward(self, x: Tensor) -> Tensor:
        states = self.norm(x)
        wide = self.act(self.wide(states))
        if self.inplace:
            wide.mul_(2)  # no longer what the GELU gave
        return states + self.narrow(wide)


def blocks(count: int = 3, **options: Any) -> nn.Sequential:
    return nn.Sequential(*(Block(**options) for _ in range(count)))


def gradients(model: nn.Module, x: Tensor, again: bool, bf16: bool = False) -> tuple[Tensor, ...]:
    """The output and all gradients."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16), recomputed(model) if again else nullcontext():
        output = model(x)
    output.square().sum().backward()
    return tuple(each for each in (output.detach(), x.grad, *(p.grad for p in model.parameters())) if each is not None)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_values_and_gradients_are_bitwise_the_same(bf16: bool, inplace: bool) -> None:
    model, x = blocks(inplace=inplace), torch.randn(5, 7, 8)
    twin = copy.deepcopy(model)
    ours, theirs = gradients(model, x, True, bf16), gradients(twin, x, False, bf16)
    assert len(ours) == len(theirs) == 2 + 3 * 6
    assert all(map(torch.equal, ours, theirs))


class Made(TorchDispatchMode):
    """The storages of tensors that operations make."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        for each in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(each, Tensor):
                storage = each.untyped_storage()
                self.storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return output


def alive_bytes(model: nn.Module, x: Tensor, again: bool) -> int:
    """Bytes of the tensors that are alive after the forward pass."""
    with Made() as made, recomputed(model) if again else nullcontext():
        output = model(x)
    assert output.requires_grad
    alive = [(storage.cdata, size) for storage, size in made.storages.values() if not storage.expired()]
    return sum(size for place, size in alive if place != x.untyped_storage()._cdata)


def test_less_is_kept() -> None:
    """By the outputs of three GELUs of float32."""
    model, x = blocks(), torch.randn(5, 7, 8)
    saved = alive_bytes(model, x, False) - alive_bytes(model, x, True)
    assert saved == 3 * 4 * x[..., 0].numel() * 32


def test_a_later_tensor_at_the_same_place_is_kept_itself() -> None:
    """The output of a GELU that nothing kept is freed; its place belongs to the next tensor."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.linear = nn.GELU(), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(20):
                self.act(x)  # freed at once
                x = self.linear(x + 1)
            return x

    model = Two()
    twin, x = copy.deepcopy(model), torch.randn(100, 64)
    assert all(map(torch.equal, gradients(model, x, True), gradients(twin, x, False)))


def test_an_encoder_trains_to_the_same_bits(family: str, checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SimCSEModel.from_backbone(checkpoint(family), dropout=0.1).train()
    twin = copy.deepcopy(model)
    ids, mask = torch.randint(8, 90, (4, 1, 6)), torch.ones(4, 1, 6, dtype=torch.int64)
    torch.manual_seed(1)
    model(ids, mask).loss.backward()
    monkeypatch.setattr("csekit.modeling.fast_recompute.CHEAP", ())
    torch.manual_seed(1)
    twin(ids, mask).loss.backward()
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        assert one.grad is None or torch.equal(one.grad, other.grad), name


def test_cached_gradients_decide_for_themselves(checkpoint: Any) -> None:
    """Hooks inside a chunk would keep what the cache computes again."""
    seen = []
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.1).train()
    gelu = next(module for module in model.backbone.modules() if isinstance(module, CHEAP))
    gelu.register_forward_hook(lambda *_: seen.append(len(gelu._forward_hooks)))
    ids, mask = torch.randint(8, 90, (4, 1, 6)), torch.ones(4, 1, 6, dtype=torch.int64)
    model.chunks = Chunks(2)
    model(ids, mask).loss.backward()
    assert set(seen) == {1}
    model.chunks = Chunks(0)
    model(ids, mask)
    assert seen[-1] == 2


def test_off_with_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSEKIT_FAST", "0")
    model = blocks(1)
    with recomputed(model):
        assert not model[0].act._forward_hooks


def test_nothing_happens_on_another_device() -> None:
    """A call of Python for every tensor that is kept would make a GPU wait for it."""
    model = blocks(1).to("meta")
    with recomputed(model):
        assert not model[0].act._forward_hooks
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
