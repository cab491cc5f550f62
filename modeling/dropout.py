"""Dropout whose randomness is cheap on CPU.

There PyTorch draws one number after the other for every element, a sixth of a training step of a small encoder. Here
one 64-bit number serves four elements.
"""

import torch
from torch import Tensor, nn

_LANES = 1 << 16


def dropout(states: Tensor, p: float) -> Tensor:
    """Each element zero with probability ``p``, rounded to a multiple of 2⁻¹⁶, and otherwise divided by the
    probability to stay. Drawn from torch's global generator of the CPU. In a graph that is compiled torch's own: it
    knows no drawing of integers."""
    if torch.compiler.is_compiling():
        return nn.functional.dropout(states, p)
    dropped = round(p * _LANES)
    count = states.numel()
    numbers = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    lanes = numbers.view(torch.int16)[:count].view(states.shape)
    kept = (lanes >= dropped - _LANES // 2).to(states.dtype).mul_(_LANES / (_LANES - dropped))
    return states * kept


class LanesDropout(nn.Dropout):
    """``nn.Dropout``, on CPU by :func:`dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.device.type == "cpu" and 0 < round(self.p * _LANES) < _LANES:
            return dropout(input, self.p)
        return super().forward(input)


def speed_up_dropout(model: nn.Module) -> None:
    """Put a :class:`LanesDropout` in the place of every ``nn.Dropout``. Nothing of a state dict changes."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Dropout:
                setattr(module, name, LanesDropout(child.p).train(child.training))
