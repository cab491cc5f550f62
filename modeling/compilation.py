"""``torch.compile`` of an encoder's layers, once for batches of every length.

Packed batches differ in their number of tokens at every step; a graph with that number in it would be compiled anew
each time. So sizes are symbols from the start. What is compiled is the Transformer layer, most of the work and the
same code in all layers: compiled once, used in each.
"""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .layers import attention_output


def compile_layers(model: nn.Module, backend: str = "inductor", mode: str | None = None) -> int:
    """Compile the layers of every encoder in ``model``, in place: neither classes nor names of a state dict change.
    The last layer stays as it is where it can be cut short for the pooled states (``layers.py``).

    Arguments:
        backend, mode: as for ``torch.compile``.

    Returns:
        how many layers.

    Raises:
        ValueError: no encoder has a list of layers.
    """
    options: dict[str, Any] = {"backend": backend, "mode": mode, "dynamic": True}
    found = [layer for encoder in model.modules() for layer in _layers(encoder)]
    if not found:
        raise ValueError(f"torch_compile must be off: {type(model).__name__} has no list of layers to compile")
    for layer in found:
        layer.compile(**options)
    return len(found)


def _layers(encoder: nn.Module) -> list[nn.Module]:
    """The layers of an encoder that run whole."""
    if not isinstance(encoder, PreTrainedModel) or encoder.base_model is not encoder:  # a head around an encoder
        return []
    count = encoder.config.num_hidden_layers
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    return list(lists[0])[: -1 if attention_output(encoder) is not None else None] if lists else []
