"""Weights of linear maps in autocast's type, all converted at once.

Autocast converts a weight where a step first reads it, and converts its gradient back in the backward pass: two small
operations for every weight and every bias. On a GPU the host takes longer to start such an operation than the device
to run it. Here one call converts all weights of the encoders, and one call all of their gradients.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .distributed import world_size
from .fast_switch import fast

#: Tensors in one block begin at multiples of so many elements, as kernels want them.
_ALIGNED = 64
#: The attribute of a model that holds the linear maps of its encoders. One that was put in later is left to autocast.
_LINEARS = "_csekit_linears"


@contextmanager
def weights_converted(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside the context, let linear maps of the encoders in ``model`` read weights that have autocast's type already.

    Values and gradients are autocast's, bit for bit. Parameters and the state dict stay as they are. Nothing happens
    without autocast, on CPU, if the fast paths are off, for compiled layers, to which a new tensor would be another
    program, and with several processes, which exchange gradients while the backward pass makes others.
    """
    if not (converts(device) and fast() and torch.is_autocast_enabled(device.type)) or world_size() > 1:
        yield
        return
    linears, dtype = _linears(model), torch.get_autocast_dtype(device.type)
    found = [
        (vars(linear), name, weight)
        for linear in linears
        for name, weight in linear._parameters.items()
        if weight is not None and weight.dtype == torch.float32
    ]
    trained = [place for place in found if place[2].requires_grad]
    frozen = [place for place in found if not place[2].requires_grad]
    try:
        for places in (trained, frozen) if torch.is_grad_enabled() else (found,):
            weights = [weight for _, _, weight in places]
            converted = _Converted.apply(dtype, *weights) if places is trained else _copies(weights, dtype)
            for (attributes, name, _), weight in zip(places, converted, strict=True):
                attributes[name] = weight  # found before the parameter of this name
        yield
    finally:
        for attributes, name, _ in found:
            attributes.pop(name, None)


@contextmanager
def own_weights(*networks: nn.Module) -> Iterator[None]:
    """Inside the context, let linear maps of the networks read their parameters again, which may change there."""
    places = [(vars(module), name) for each in networks for module in each.modules() for name in [*module._parameters]]
    hidden = [(attributes, name, attributes.pop(name)) for attributes, name in places if name in attributes]
    try:
        yield
    finally:
        for attributes, name, weight in hidden:
            attributes[name] = weight


def converts(device: torch.device) -> bool:
    """Return True where it pays: on a GPU. A CPU runs one copy after the other in any case."""
    return device.type != "cpu"


class _Converted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_copies(weights, dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        whole = iter(_copies([each for each in gradients if each is not None], torch.float32))
        return None, *(None if each is None else next(whole) for each in gradients)


def forget_linears(model: nn.Module) -> None:
    """Let the linear maps be looked for again."""
    vars(model).pop(_LINEARS, None)


@torch.no_grad()
def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return the tensors in another type. They lie in one block of memory, since to make many takes longer."""
    if not tensors:
        return []
    starts = [0, *accumulate(-(-each.numel() // _ALIGNED) * _ALIGNED for each in tensors)]
    block = torch.empty(starts[-1], dtype=dtype, device=tensors[0].device)
    copies = [
        block.as_strided(each.shape, each.stride(), start) if is_dense(each) else torch.empty_like(each, dtype=dtype)
        for each, start in zip(tensors, starts, strict=False)
    ]
    torch._foreach_copy_(copies, list(tensors))
    return copies


def is_dense(tensor: Tensor) -> bool:
    """Return True if the tensor, or its transpose, fills its memory without holes."""
    return tensor.is_contiguous() or (tensor.dim() == 2 and tensor.T.is_contiguous())


def _linears(model: nn.Module) -> list[nn.Module]:
    """Return the linear maps of the encoders, found once."""
    if (known := vars(model).get(_LINEARS)) is None:
        encoders = [
            each
            for each in model.modules()
            if each is not model and isinstance(each, PreTrainedModel) and each.base_model is each
        ]
        compiled = {
            id(inner)
            for module in model.modules()
            if module._compiled_call_impl is not None
            for inner in module.modules()
        }
        kept = {id(inner): inner for encoder in encoders for inner in encoder.modules() if type(inner) is nn.Linear}
        known = [linear for key, linear in kept.items() if key not in compiled]
        vars(model)[_LINEARS] = known
    return list(known)
