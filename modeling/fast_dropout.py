"""Dropout whose random numbers are cheap on CPU.

PyTorch draws one number for every element there, one after the other, which takes a sixth of a small encoder's
training step. Here one 64-bit number serves four elements, and comes from NumPy's SFC64, which is twice as fast as
torch's Mersenne Twister. torch's generator gives its seed.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .fast_switch import fast

_LANES = 1 << 16


def dropout(states: Tensor, p: float) -> Tensor:
    """Set each element to zero with probability ``p`` (rounded to a multiple of 2⁻¹⁶) and divide the others by 1 − p.

    The random numbers are seeded by torch's global CPU generator. A compiled graph uses torch's own dropout, since it
    cannot draw integers."""
    if torch.compiler.is_compiling():
        return nn.functional.dropout(states, p)
    result: Tensor = _Dropout.apply(states, p)
    return result


class _Dropout(torch.autograd.Function):
    """The product of states and factors; a byte per element is kept for the backward pass, not the factor."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, p: float) -> Tensor:
        kept = draw_kept(states.shape, p)
        ctx.save_for_backward(kept)
        ctx.p = p
        return _product(kept, states, p)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _product(ctx.saved_tensors[0], gradient, ctx.p), None


def _draw_lanes(count: int) -> Tensor:
    """Draw 16-bit numbers, (count,) int16, from a generator that torch's global CPU generator seeds."""
    seed = np.empty(2, np.int32)
    torch.from_numpy(seed).random_()
    numbers: np.ndarray = np.random.SFC64(seed).random_raw((count + 3) // 4)
    return torch.from_numpy(numbers.view(np.int16))[:count]


def draw_kept(shape: Sequence[int], p: float) -> Tensor:
    """Draw what dropout keeps: int8, 0 with probability ``p``, else 1."""
    return torch.ge(_draw_lanes(math.prod(shape)).view(shape), _dropped(p) - _LANES // 2).view(torch.int8)


def draw_ones(shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
    """Draw 0 with probability ``p``, else 1, with the random numbers of :func:`draw_kept`."""
    ones = torch.empty(shape, dtype=dtype)  # a comparison writes any type at the speed of a copy
    return torch.ge(_draw_lanes(math.prod(shape)).view(shape), _dropped(p) - _LANES // 2, out=ones)


def scale_of(p: float) -> float:
    """Return the factor of what dropout keeps: 1 / (1 − p)."""
    return _LANES / (_LANES - _dropped(p))


def _product(kept: Tensor, states: Tensor, p: float) -> Tensor:
    """Return ``states`` times dropout's factors, rounded once in 16 bits."""
    ones = torch.empty(kept.shape, dtype=states.dtype)
    torch.ne(kept, 0, out=ones)
    if states.dtype.itemsize == 2:
        return torch.addcmul(torch.zeros((), dtype=states.dtype), ones, states, value=scale_of(p))
    return ones.mul_(scale_of(p)).mul_(states)


def _dropped(p: float) -> int:
    return round(p * _LANES)


class LanesDropout(nn.Dropout):
    """``nn.Dropout`` that calls :func:`dropout` on CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.device.type == "cpu" and 0 < round(self.p * _LANES) < _LANES:
            return dropout(input, self.p)
        return super().forward(input)


def speed_up_dropout(model: nn.Module) -> None:
    """Replace every ``nn.Dropout`` by a :class:`LanesDropout`, unless the fast paths are off. State dicts stay the
    same."""
    if not fast():
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Dropout:
                setattr(module, name, LanesDropout(child.p).train(child.training))


@contextmanager
def dropout_off(network: nn.Module) -> Iterator[None]:
    """Turn all dropout of a network off inside the context."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
