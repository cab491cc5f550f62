"""``torch.compile`` of an encoder's layers, one graph for batches of every length.

Packed batches have another number of tokens at every step. A graph with a fixed number would be compiled again each
time, so sizes are symbols. Only the Transformer layer is compiled: it is most of the work, and all layers share its
code and its graph.

The modes of ``GRAPH_MODES`` record CUDA graphs, one for each size. There, batches are filled up to a multiple of a
bucket (``fast_buckets.py``), so that there are few.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.generic import is_flash_attention_requested

from .fast_buckets import use_buckets
from .fast_layers import attention_output
from .fast_packing import PACKED_ATTENTION, PACKING
from .fast_switch import fast
from .fast_weights import forget_linears

#: Modes of ``torch.compile`` that record CUDA graphs.
GRAPH_MODES = ("reduce-overhead", "max-autotune")


def compile_layers(model: nn.Module, backend: str = "inductor", mode: str | None = None, bucket: int = 0) -> int:
    """Compile the layers of every encoder in ``model`` in place. Classes and names of the state dict stay the same.

    The last layer is not compiled if it can be restricted to the pooled states (``fast_layers.py``). Nothing is
    compiled if the fast paths are off.

    Arguments:
        backend, mode: as for ``torch.compile``.
        bucket: packed batches are filled up to a multiple of so many tokens; 0: they are not filled.

    Returns:
        the number of compiled layers.

    Raises:
        ValueError: no encoder has a list of layers; the backend does not know the mode; there is a bucket, and an
            encoder's batches stay padded.
    """
    if not fast():
        return 0
    options: dict[str, Any] = {"backend": backend, "mode": mode, "dynamic": True}
    encoders: list[Any] = [encoder for encoder in model.modules() if _layers(encoder)]
    found = [layer for encoder in encoders for layer in _layers(encoder)]
    if not found:
        raise ValueError(f"torch_compile must be off: {type(model).__name__} has no list of layers to compile")
    for encoder in encoders if bucket else ():
        if not (
            encoder.config._attn_implementation == PACKED_ATTENTION or is_flash_attention_requested(encoder.config)
        ):
            raise ValueError(f"compile_bucket must be 0, got {bucket}: {type(encoder).__name__}'s batches stay padded")
        use_buckets(encoder, bucket)
    forget_linears(model)
    for layer in found:
        try:
            layer.compile(**options)
        except RuntimeError as error:  # inductor knows its modes
            reason = " ".join(str(error).split())
            raise ValueError(f"torch_compile_mode must be one of the backend's, got {mode!r}: {reason}") from None
    return len(found)


def begin_step(mode: str | None) -> None:
    """Let the CUDA graphs of ``mode`` reuse the memory of the step before, whose gradients must be gone."""
    if mode in GRAPH_MODES:
        torch.compiler.cudagraph_mark_step_begin()


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Compute plain layers over batches without blanks inside the context."""
    filled = {encoder: vars(encoder).pop(PACKING) for encoder in model.modules() if PACKING in vars(encoder)}
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for encoder, packing in filled.items():
            setattr(encoder, PACKING, packing)


def _layers(encoder: nn.Module) -> list[nn.Module]:
    """Return the layers of an encoder that are computed at all positions."""
    if not isinstance(encoder, PreTrainedModel) or encoder.base_model is not encoder:  # a model around an encoder
        return []
    count = encoder.config.num_hidden_layers
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    return list(lists[0])[: -1 if attention_output(encoder) is not None else None] if lists else []
