"""With autocast on CPU, the states between the layers have autocast's 16 bits instead of float32.

Autocast computes linear maps in 16 bits. The embeddings stay in float32 there, and a residual connection gives the
wider type of its two sides. So each norm of a layer keeps a state in float32 for the backward pass, and each linear
map keeps a 16-bit copy of its input. From 16-bit embeddings on, norms keep half as much, and linear maps share inputs.

On a processor without bfloat16 products, torch multiplies such matrices by loops of its own that take many times as
long as a float32 product. There float32 takes bfloat16's place.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from .backbone import layer_list
from .fast_switch import fast

logger = logging.getLogger(__name__)


def computes_bf16(device: torch.device | str) -> bool:
    """Return False if the device is a CPU whose libraries do not multiply bfloat16 matrices: one without AVX-512, or
    without bfloat16 instructions on Arm. Returns True if the fast paths are off: torch computes as told."""
    if torch.device(device).type != "cpu" or not fast():
        return True
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return torch.backends.mkldnn.is_available() and supported is not None and bool(supported())


@cache
def tell_float32(setting: str) -> None:
    """Warn, once a process and setting, that float32 takes the place of bfloat16."""
    kind = torch.backends.cpu.get_cpu_capability()
    logger.warning("%s: this processor (%s) has no bfloat16 products, so float32 takes their place", setting, kind)


def has_tiles() -> bool:
    """Return True if the CPU has matrix units for bfloat16 and int8 (AMX)."""
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


def products_speedup(size: int = 512, turns: int = 20) -> float:
    """Return how many times as fast bfloat16's matrix products are as float32's on this CPU.

    Both multiply matrices of ``size`` x ``size`` in ``turns`` turns; the fastest of each counts. Draws no random
    numbers."""
    seconds = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    matrices = {dtype: torch.ones(size, size, dtype=dtype) for dtype in seconds}
    with torch.inference_mode():
        for _ in range(turns):
            for dtype, matrix in matrices.items():
                start = time.perf_counter()
                nn.functional.linear(matrix, matrix)
                seconds[dtype] = min(seconds[dtype], time.perf_counter() - start)
    return seconds[torch.float32] / seconds[torch.bfloat16]


@cache
def tell_no_tiles(setting: str) -> None:
    """Warn, once a process and setting, on a processor whose bfloat16 products are hardly faster than float32's.

    AVX-512 with bfloat16 instructions and no matrix units is such a processor, or has products twice as fast (AMD's),
    so there the speed is measured, in about a tenth of a second."""
    if torch.backends.cpu.get_cpu_capability() == "AVX512" and not has_tiles() and products_speedup() < 1.5:
        logger.warning(
            "%s: this processor (AVX512) has no matrix units for bfloat16 (AMX), and conversions cost time, so "
            "float32 may be faster: try both",
            setting,
        )


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
