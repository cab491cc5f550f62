"""The last layer of an encoder, computed only where its states are read: at [CLS], or at masked positions.

After its attention, no position of a layer reads another one. The output projection, the feed-forward network and the
norms (three quarters of the layer's parameters) are therefore computed at the wanted positions only. Where one state
of each row is wanted, only these states ask in the attention (on CPU).

Shape suffixes: N rows, L tokens, T real tokens of all rows, M wanted positions, H hidden size.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .backbone import layer_list
from .fast_rows import fill_places
from .fast_switch import fast

#: The methods by which a family lengthens the rows of a batch to whole blocks (Longformer, BigBird): the places of a
#: batch are then other ones inside.
_LENGTHENING = ("_pad_to_window_size", "_pad_to_block_size")
#: Types of models whose layers cut their result to the length of a row, words before entities.
_CUTTING = ("luke",)


def attention_output(model: PreTrainedModel) -> nn.Module | None:
    """Return the last layer's module between attention and feed-forward network (``attention.output`` in BERT).

    It takes attention's result and the layer's input. None in a family that is built differently, lengthens or cuts
    the rows, while layers are recomputed in the backward pass, and if the fast paths are off.
    """
    if not fast() or model.config.model_type in _CUTTING:
        return None
    if any(hasattr(type(model), name) for name in _LENGTHENING):
        return None
    try:
        last: Any = layer_list(model)[-1]
    except ValueError:
        return None
    if model.training and getattr(last, "gradient_checkpointing", False):
        return None
    module = getattr(getattr(last, "attention", None), "output", None)
    if not isinstance(module, nn.Module):
        return None
    kind: Any = type(module)
    return module if [*arguments_of(kind)] == ["self", "hidden_states", "input_tensor"] else None


@cache
def arguments_of(kind: Any) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of the ``forward`` of a class of modules, ``self`` included. Reading a signature takes as
    long as starting several kernels."""
    return inspect.signature(kind.forward).parameters


class TakeRows(torch.autograd.Function):
    """``states.index_select(0, index)`` for an index without repetition: its gradient is a copy, not a sum.

    Arguments:
        count: only the first ``count`` entries of the index have a gradient; those after them may repeat.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, index_T: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(index_T[:count])
        ctx.rows = len(states)
        return states.index_select(0, index_T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (index_T,) = ctx.saved_tensors
        found = gradient.new_zeros((ctx.rows, *gradient.shape[1:]))
        return found.index_copy_(0, index_T, gradient[: len(index_T)]), None, None


def take_places(states: Tensor, places_M: Tensor, count: int | None = None) -> Tensor:
    """Select positions of the flattened (N·L), none twice among the first ``count``: (N, L, H) → (1, M, H)."""
    flat = states.flatten(0, 1)
    count = len(places_M) if count is None else count
    rows: Tensor = TakeRows.apply(flat, places_M, count) if fast() else flat.index_select(0, places_M)
    return rows.unsqueeze(0)


@contextmanager
def only_at(module: nn.Module, places_M: Tensor) -> Iterator[None]:
    """Restrict the output of ``attention_output``'s module to these positions of its flattened input inside the
    context: (1, M or more, H), states that nobody needs behind them (``fast_rows.py``)."""

    def select(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        filled = fill_places(places_M)
        return tuple(take_places(states, filled, len(places_M)) for states in arguments)

    handle = module.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()


def self_attention(model: PreTrainedModel) -> nn.Module | None:
    """Return the last layer's module that maps to queries, keys and values (``attention.self`` in BERT).

    None where ``attention_output`` is None, and in a family whose queries come from no linear map of their own.
    """
    if attention_output(model) is None:
        return None
    last: Any = layer_list(model)[-1]
    module = getattr(last.attention, "self", None)
    return module if isinstance(module, nn.Module) and type(getattr(module, "query", None)) is nn.Linear else None


@contextmanager
def ask_at(asking: Any, output: nn.Module, places_N: Tensor) -> Iterator[None]:
    """Compute the last layer's queries, and all that follows its attention, at one place of each row.

    The queries keep their shape (1, T, H), since the family's code reshapes them; those of the places are the first N.
    Without gradient the places are filled up by copies of the last one (``fast_rows.py``), and the last states of the
    copies follow those of the places. Training has the same number of rows in every step.

    Arguments:
        asking: ``self_attention`` of the encoder.
        output: its ``attention_output``.
        places_N: the places among its T tokens.
    """
    places, T = places_N, 0

    def select(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        nonlocal places, T
        T = arguments[0].shape[1]
        filled = places_N if torch.is_grad_enabled() else fill_places(places_N)
        places = filled if len(filled) <= T else places_N
        return (take_places(arguments[0], places),)

    def widen(_: nn.Module, __: Any, queries: Tensor) -> Tensor:
        return nn.functional.pad(queries, (0, 0, 0, T - len(places)))

    def first(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        attended, before = arguments
        return attended[:, : len(places)], take_places(before, places)

    handles = [
        asking.query.register_forward_pre_hook(select),
        asking.query.register_forward_hook(widen),
        output.register_forward_pre_hook(first),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
