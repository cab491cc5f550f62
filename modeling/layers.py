"""A family's Transformer layers; the last one where few of its states are read: [CLS] pooling, masked positions.

Behind its attention no place of a row reads another: the output projection, the feed-forward network and the norms are
computed for the wanted states alone, three quarters of the layer's parameters.

Shape suffixes: N rows, L tokens, T real tokens of all rows, M wanted ones, H hidden size.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def layer_list(model: PreTrainedModel) -> nn.ModuleList:
    """The list of Transformer layers of an encoder, found as the one ``ModuleList`` with a module per layer.

    Raises:
        ValueError: there is none, or something follows it that is not a layer.
    """
    count = model.config.num_hidden_layers
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    norms = [name for name, module in model.named_children() if "final" in name and isinstance(module, nn.LayerNorm)]
    if not lists or norms or getattr(model.config, "num_hidden_groups", count) != count:
        raise ValueError(f"{type(model).__name__} has no plain list of layers: an auxiliary head is not possible")
    return lists[0]


def attention_output(model: PreTrainedModel) -> nn.Module | None:
    """The module of the last layer that takes what attention gives and the layer's input (BERT and its like call it
    ``attention.output``); None in a family that is built otherwise, or while layers are recomputed in backward."""
    try:
        last: Any = layer_list(model)[-1]
    except ValueError:
        return None
    if model.training and getattr(last, "gradient_checkpointing", False):
        return None
    module = getattr(getattr(last, "attention", None), "output", None)
    if not isinstance(module, nn.Module):
        return None
    return module if list(inspect.signature(module.forward).parameters) == ["hidden_states", "input_tensor"] else None


class TakeRows(torch.autograd.Function):
    """``states.index_select(0, index)`` for an index without repetition: its gradient is a copy, not a sum."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, index_T: Tensor) -> Tensor:
        ctx.save_for_backward(index_T)
        ctx.rows = len(states)
        return states.index_select(0, index_T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (index_T,) = ctx.saved_tensors
        return gradient.new_zeros((ctx.rows, *gradient.shape[1:])).index_copy_(0, index_T, gradient), None


def take_places(states: Tensor, places_M: Tensor) -> Tensor:
    """(N, L, H) and places in the flattened (N·L), none twice → (1, M, H)."""
    rows: Tensor = TakeRows.apply(states.flatten(0, 1), places_M)
    return rows.unsqueeze(0)


@contextmanager
def only_at(module: nn.Module, places_M: Tensor) -> Iterator[None]:
    """Inside, the module from ``attention_output`` computes, and hands on, the states at ``places_M`` of its flattened
    input alone, (1, M, H)."""

    def select(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(take_places(states, places_M) for states in arguments)

    handle = module.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()
