"""Dropout whose random numbers are cheap on CPU.

PyTorch draws one number for every element there, one after the other, which takes a sixth of a small encoder's
training step. Here one 64-bit number serves four elements.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
    return states * draw_factors(states.shape, p, states.dtype)


def draw_factors(shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
    """Draw dropout's factors from torch's global CPU generator: 0 with probability ``p``, else 1 / (1 − p)."""
    dropped, count = round(p * _LANES), math.prod(shape)
    numbers = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    factors = torch.empty(shape, dtype=dtype)
    torch.ge(numbers.view(torch.int16)[:count].view(shape), dropped - _LANES // 2, out=factors)
    return factors.mul_(_LANES / (_LANES - dropped))


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
