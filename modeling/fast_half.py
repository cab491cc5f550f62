"""With autocast on CPU, the states between the layers have autocast's 16 bits instead of float32.

Autocast computes linear maps in 16 bits. The embeddings stay in float32 there, and a residual connection gives the
wider type of its two sides. So each norm of a layer keeps a state in float32 for the backward pass, and each linear
map keeps a 16-bit copy of its input. From 16-bit embeddings on, norms keep half as much, and linear maps share inputs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from .backbone import layer_list
from .fast_switch import fast


@contextmanager
def half_states(model: PreTrainedModel) -> Iterator[None]:
    """Inside the context, round the input of an encoder's first layer to autocast's type.

    Nothing happens without autocast on CPU, if the fast paths are off, in a family without a plain
    list of layers, with compiled layers, and with gradient checkpointing, whose second pass comes later. Norms take
    16-bit states and float32 weights, and compute in float32. ``widened`` makes float32 of what the encoder returns.
    """
    first = _first_layer(model) if torch.is_autocast_enabled("cpu") and fast() else None
    if first is None:
        yield
        return
    dtype = torch.get_autocast_dtype("cpu")

    def halve(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        states = [
            each.to(dtype) for each in arguments[:1] if each.dtype == torch.float32 and each.device.type == "cpu"
        ]
        return (*states, *arguments[1:]) if states else arguments

    handle = first.register_forward_pre_hook(halve)
    try:
        yield
    finally:
        handle.remove()


def widened(output: Any) -> Any:
    """Return an encoder's output with its states in float32, as autocast alone gives them."""
    if torch.is_autocast_enabled("cpu") and output.last_hidden_state.device.type == "cpu":
        output.last_hidden_state = output.last_hidden_state.float()
        if output.get("hidden_states") is not None:
            output.hidden_states = tuple(states.float() for states in output.hidden_states)
    return output


def _first_layer(model: PreTrainedModel) -> nn.Module | None:
    try:
        first: nn.Module = layer_list(model)[0]
    except ValueError:
        return None
    again = model.training and getattr(first, "gradient_checkpointing", False)
    return first if first._compiled_call_impl is None and not again else None
