"""With autocast on CPU, the states between the layers have autocast's 16 bits instead of float32.

Autocast computes linear maps in 16 bits. The embeddings stay in float32 there, and a residual connection gives the
wider type of its two sides. So each norm of a layer keeps a state in float32 for the backward pass, and each linear map
keeps a 16-bit copy of its input. From 16-bit embeddings on, norms keep half as much, and linear maps share one input.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .backbone import layer_list
from .fast_switch import fast


@contextmanager
def half_states(model: PreTrainedModel) -> Iterator[None]:
    """Inside the context, round the input of an encoder's first layer to autocast's type.

    Nothing happens without gradient, without autocast on CPU, if the fast paths are off, in a family without a plain
    list of layers, and with compiled layers. Norms take 16-bit states and float32 weights, and compute in float32.
    ``widened`` turns what the encoder returns into float32.
    """
    first = _first_layer(model) if torch.is_grad_enabled() and torch.is_autocast_enabled("cpu") and fast() else None
    if first is None:
        yield
        return
    dtype = torch.get_autocast_dtype("cpu")

    def halve(_: nn.Module, states: tuple[Any, ...]) -> tuple[Any, ...]:
        head, *others = states
        return (head.to(dtype) if head.dtype == torch.float32 and head.device.type == "cpu" else head, *others)

    handle = first.register_forward_pre_hook(halve)
    try:
        yield
    finally:
        handle.remove()


def widened(states: Tensor) -> Tensor:
    """Return 16-bit states of autocast on CPU in float32, as autocast alone would give them, and others as they are."""
    return states.float() if states.device.type == "cpu" and torch.is_autocast_enabled("cpu") else states


def _first_layer(model: PreTrainedModel) -> nn.Module | None:
    try:
        first: nn.Module = layer_list(model)[0]
    except ValueError:
        return None
    return first if first._compiled_call_impl is None else None
