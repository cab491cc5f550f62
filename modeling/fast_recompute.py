"""The output of GELU is computed again in the backward pass instead of being kept.

A linear layer keeps its input for the gradient of its weight. Where that input is the output of a GELU, autograd keeps
the input of the GELU as well, for its own gradient. One of the two is enough: the output takes one element-wise pass.
They are the widest tensors of a layer.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.activations import GELUActivation

from .fast_switch import fast

#: Modules whose output is a cheap function of one tensor, which they keep.
CHEAP = (GELUActivation, nn.GELU)


class _Output(NamedTuple):
    """The output of a cheap module: itself, its version when it was made, and how to compute it again."""

    itself: "weakref.ref[Tensor]"
    version: int
    again: Callable[[], Tensor]


class _Again(NamedTuple):
    """Stands for a tensor among those that are kept."""

    compute: Callable[[], Tensor]
    shape: torch.Size


@contextmanager
def recomputed(network: nn.Module) -> Iterator[None]:
    """Inside the context, let the backward pass compute outputs of ``CHEAP`` modules again, whatever operation keeps
    them. Values are bitwise the same.

    Only on CPU: elsewhere a call of Python for every tensor that is kept would cost more. Nothing happens without
    gradient, if the fast paths are off, and where somebody else decides what is kept: cached gradients
    (``fast_cache.py``) and gradient checkpointing compute all of it again, and a compiled layer has a plan of its own,
    which a hook would break into another graph at every batch.
    """
    wanted = fast() and torch.is_grad_enabled() and _on_cpu(network) and _nobody_else_decides()
    modules = list(network.modules()) if wanted else []
    found = [module for module in modules if type(module) in CHEAP]
    if not found or any(module._compiled_call_impl is not None for module in modules):
        yield
        return
    outputs: dict[int, _Output] = {}

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if len(inputs) != 1 or output.device.type != "cpu" or not output.requires_grad or output is inputs[0]:
            return
        place, states = output.data_ptr(), inputs[0].detach()
        kept = weakref.ref(output, lambda _: outputs.pop(place, None))  # later tensors may lie at the same place
        outputs[place] = _Output(kept, output._version, lambda: type(module).forward(module, states))

    def pack(tensor: Tensor) -> Any:
        output = outputs.get(tensor.data_ptr())
        whole = None if output is None else output.itself()
        if output is None or whole is None or not tensor.is_contiguous() or tensor.numel() != whole.numel():
            return tensor
        same = tensor.dtype == whole.dtype and tensor._version == output.version
        return _Again(output.again, tensor.shape) if same else tensor

    with ExitStack() as stack:
        for module in found:
            stack.callback(module.register_forward_hook(note).remove)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, _unpack))
        yield


def _on_cpu(network: nn.Module) -> bool:
    first = next(network.parameters(), None)
    return first is None or first.device.type == "cpu"


def _nobody_else_decides() -> bool:
    """Return True if no saved-tensor hooks are set: autograd would call the last ones only."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is None


def _unpack(kept: Any) -> Tensor:
    if not isinstance(kept, _Again):
        return kept  # type: ignore[no-any-return]
    with torch.no_grad():
        return kept.compute().view(kept.shape)
