"""``torch.compile`` of an encoder's layers, one graph for batches of every length.

Packed batches have another number of tokens at every step. A graph with a fixed number would be compiled again each
time, so sizes are symbols. Only the Transformer layer is compiled: it is most of the work, and all layers share its
code and its graph.
"""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .fast_layers import attention_output
from .fast_switch import fast


def compile_layers(model: nn.Module, backend: str = "inductor", mode: str | None = None) -> int:
    """Compile the layers of every encoder in ``model`` in place. Classes and names of the state dict stay the same.

    The last layer is not compiled if it can be restricted to the pooled states (``fast_layers.py``). Nothing is
    compiled if the fast paths are off.

    Arguments:
        backend, mode: as for ``torch.compile``.

    Returns:
        the number of compiled layers.

    Raises:
        ValueError: no encoder has a list of layers; the backend does not know the mode.
    """
    if not fast():
        return 0
    options: dict[str, Any] = {"backend": backend, "mode": mode, "dynamic": True}
    found = [layer for encoder in model.modules() for layer in _layers(encoder)]
    if not found:
        raise ValueError(f"torch_compile must be off: {type(model).__name__} has no list of layers to compile")
    for layer in found:
        try:
            layer.compile(**options)
        except RuntimeError as error:  # inductor knows its modes
            reason = " ".join(str(error).split())
            raise ValueError(f"torch_compile_mode must be one of the backend's, got {mode!r}: {reason}") from None
    return len(found)


def _layers(encoder: nn.Module) -> list[nn.Module]:
    """Return the layers of an encoder that are computed at all positions."""
    if not isinstance(encoder, PreTrainedModel) or encoder.base_model is not encoder:  # a model around an encoder
        return []
    count = encoder.config.num_hidden_layers
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    return list(lists[0])[: -1 if attention_output(encoder) is not None else None] if lists else []


def compiled(encoder: nn.Module) -> bool:
    """Return True if ``compile_layers`` compiled layers of this encoder."""
    return any(getattr(layer, "_compiled_call_impl", None) is not None for layer in _layers(encoder))
