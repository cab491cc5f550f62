"""Dropout whose random numbers are cheap on CPU.

PyTorch draws one number for every element there, one after the other, which takes a sixth of a small encoder's
training step. Here one 64-bit number serves four elements.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .fast_switch import fast

_LANES = 1 << 16


def dropout(states: Tensor, p: float) -> Tensor:
    """Set each element to zero with probability ``p`` (rounded to a multiple of 2⁻¹⁶) and divide the others by 1 − p.

    The random numbers come from torch's global CPU generator. A compiled graph uses torch's own dropout, since it
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
        return factors_of(kept, p, states.dtype).mul_(states)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return factors_of(ctx.saved_tensors[0], ctx.p, gradient.dtype).mul_(gradient), None


def draw_kept(shape: Sequence[int], p: float) -> Tensor:
    """Draw from torch's global CPU generator what dropout keeps: int8, 0 with probability ``p``, else 1."""
    count = math.prod(shape)
    numbers = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return torch.ge(numbers.view(torch.int16)[:count].view(shape), _dropped(p) - _LANES // 2).view(torch.int8)


def factors_of(kept: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    """Return dropout's factors, 0 or 1 / (1 − p)."""
    factors = torch.empty(kept.shape, dtype=dtype)
    torch.ne(kept, 0, out=factors)  # a comparison writes any type at the speed of a copy
    return factors.mul_(_LANES / (_LANES - _dropped(p)))


def _dropped(p: float) -> int:
    return round(p * _LANES)


def draw_factors(shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
    """Draw dropout's factors from torch's global CPU generator: 0 with probability ``p``, else 1 / (1 − p)."""
    return factors_of(draw_kept(shape, p), p, dtype)


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
