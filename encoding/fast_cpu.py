"""Compute linear layers and attention faster while a model only encodes, without changing the model.

On CPU, oneDNN gets each weight in the layout of its matrix product and computes a following GELU in the same kernel,
and attention's keys fill the processor's lanes (``fast_attention.py``).
With int8, weights are rounded per output and activations per call. A layer keeps its class, parameters and hooks;
``fast_inference`` temporarily replaces its ``forward``. Layers that this does not suit, or that the processor cannot
compute this way, keep their own.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import GELUActivation

from csekit.modeling.fast_half import computes_bf16, has_tiles, tell_float32
from csekit.modeling.fast_packing import FILLED, filled_attention

PRECISIONS = ("fp32", "bf16", "int8")
#: The types of weights that a precision other than 'fp32' reads on CPU.
_WEIGHTS = {"bf16": (torch.float32, torch.bfloat16), "int8": (torch.float32,)}
#: oneDNN chooses the layout of weights for products of this many rows.
ROWS = 1024

Forward = Callable[[Tensor], Tensor]


def check_precision(precision: str, device: torch.device | None = None, model: nn.Module | None = None) -> None:
    """Raise ValueError for an unknown precision, for int8 on another device than the CPU, and on CPU for a model whose
    weights have 16 bits that this precision cannot compute with."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}")
    if precision == "int8" and device is not None and device.type != "cpu":
        raise ValueError(f"precision 'int8' is for CPU only, the model is on {device}: use 'bf16'")
    if model is None or device is None or device.type != "cpu" or precision == "fp32":
        return
    allowed = _WEIGHTS[precision]
    others = {each.dtype for each in model.parameters() if each.is_floating_point()} - set(allowed)
    if others:
        raise ValueError(
            f"precision {precision!r} needs weights in {_names(allowed)} on CPU, got {_names(others)}: use 'fp32', "
            "which computes with the weights as they are, or model.float() before"
        )


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return " or ".join(sorted(str(each).removeprefix("torch.") for each in dtypes))


@contextmanager
def fast_inference(model: nn.Module, precision: str = "fp32") -> Iterator[None]:
    """Make the model compute faster inside the context. Gradients do not work there.

    Arguments:
        precision: 'fp32' gives the model's own values up to rounding. 'bf16' computes products and attention in
            bfloat16 (autocast), norms and sums in float32; on CPU the states between the layers have 16 bits as well.
            A CPU without bfloat16 products computes as for 'fp32', with a warning.
            'int8', on CPU only, computes the product of every linear layer in 8 bits and the rest in float32.

    Raises:
        ValueError: ``check_precision`` refuses the precision, or this build of torch has no int8.
    """
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    check_precision(precision, device, model)
    if precision == "bf16" and not computes_bf16(device):
        tell_float32("precision bf16")
        precision = "fp32"
    with ExitStack() as stack:
        if device.type == "cpu":
            for module, forward in _replacements(model, precision):
                module.__dict__["forward"] = forward
                stack.callback(module.__dict__.pop, "forward")
            for encoder in [module for module in model.modules() if isinstance(module, PreTrainedModel)]:
                stack.enter_context(filled_attention(encoder))
        if precision == "bf16":
            stack.enter_context(torch.autocast(device.type, torch.bfloat16))
        yield


def _replacements(model: nn.Module, precision: str) -> list[tuple[nn.Module, Forward]]:
    """Return modules, each with the ``forward`` that replaces its own."""
    linears = [module for module in model.modules() if _is_plain(module)]
    if precision == "int8":
        activated = dict(_fusible(model))
        return [
            *((linear, _int8(linear, _algorithm(activated.get(linear)))) for linear in linears),
            *((activation, _identity) for activation in activated.values()),
        ]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if not _has_packed_products(dtype):
        return []
    fused = dict(_fusible(model))
    found: list[tuple[nn.Module, Forward]] = []
    for linear in linears:
        approximate = _algorithm(fused.get(linear))
        forward = _packed(linear, dtype, approximate)
        if _agrees(forward, linear, approximate, tolerance=1e-5 if dtype == torch.float32 else 3e-2):
            found.append((linear, _for_many_rows(forward, linear, approximate)))
            found += [(fused[linear], _identity)] if linear in fused else []
    return found


def _is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Tell whether a module is a float32 linear layer whose ``forward`` is its own (accelerate's hooks replace it)."""
    return type(module) is nn.Linear and module.weight.dtype == torch.float32 and "forward" not in module.__dict__


def _has_packed_products(dtype: torch.dtype) -> bool:
    names = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not hasattr(names, "_linear_pointwise"):
        return False
    return dtype != torch.bfloat16 or bool(names._is_mkldnn_bf16_supported())


def _packed(linear: nn.Linear, dtype: torch.dtype, gelu: str | None) -> Forward:
    """Return a ``forward`` with the weight in oneDNN's layout; ``gelu``: None, or the formula of its GELU."""
    weight: Any = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().to(dtype).contiguous(), ROWS)
    bias = None if linear.bias is None else linear.bias.detach().to(dtype)
    name, algorithm = ("none", "") if gelu is None else ("gelu", gelu)

    def forward(x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x.to(dtype), weight, bias, name, [], algorithm)

    return forward


def _for_many_rows(packed: Forward, linear: nn.Linear, gelu: str | None) -> Forward:
    """Return a ``forward`` that leaves products of few rows to torch.

    oneDNN makes a kernel for each number of rows and keeps it. Large batches have few numbers of rows (``FILL`` in
    ``fast_packing.py``), small ones have many."""

    def forward(x: Tensor) -> Tensor:
        if x.numel() >= FILLED * x.shape[-1]:
            return packed(x)
        product = nn.functional.linear(x, linear.weight, linear.bias)
        return product if gelu is None else nn.functional.gelu(product, approximate=gelu)

    return forward


def _algorithm(gelu: nn.Module | None) -> str | None:
    """Return the formula of a GELU, as ``nn.functional.gelu`` calls it; None for None."""
    return None if gelu is None else str(getattr(gelu, "approximate", "none"))


def _int8(linear: nn.Linear, gelu: str | None) -> Forward:
    """Return a ``forward`` with weights rounded per output, activations per call, 8-bit products and 32-bit sums;
    ``gelu`` as for ``_packed``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated for years, without a successor in eager mode
            weight = linear.weight.detach()
            scale = weight.abs().amax(1).clamp_min(1e-12).double() / 127
            rounded = torch.quantize_per_channel(weight, scale, torch.zeros_like(scale).long(), 0, torch.qint8)
            bias = None if linear.bias is None else linear.bias.detach()
            with _int8_engine():
                packed: Any = torch.ops.quantized.linear_prepack(rounded, bias)
    except (AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"precision 'int8' is not in this build of torch ({reason}): use 'bf16'") from error
    seven_bits = not torch.cpu._is_vnni_supported()  # without these instructions sums of 8-bit products overflow

    def forward(x: Tensor) -> Tensor:
        product = torch.ops.quantized.linear_dynamic(x.float(), packed, seven_bits)
        return product if gelu is None else torch.ops.aten.gelu_(product, approximate=gelu)

    return forward


@contextmanager
def _int8_engine() -> Iterator[None]:
    """Inside the context, lay weights out for oneDNN, if the processor has tiles (AMX). Its products take 40 to 60 %
    of the time there that those of torch's default library take."""
    engines: Any = torch.backends.quantized
    before = engines.engine
    if has_tiles() and "onednn" in engines.supported_engines:
        engines.engine = "onednn"
    try:
        yield
    finally:
        engines.engine = before


def _identity(x: Tensor) -> Tensor:
    return x


def _probe(linear: nn.Linear) -> Tensor:
    """Return an input (2, in_features) without random numbers."""
    return torch.linspace(-2, 2, 2 * linear.in_features).view(2, -1).sin()


def _is_gelu(module: nn.Module) -> bool:
    if type(module) is GELUActivation:
        return module.act is nn.functional.gelu
    return type(module) is nn.GELU


@torch.no_grad()
def _fusible(model: nn.Module) -> Iterator[tuple[nn.Linear, nn.Module]]:
    """Yield linear layers, each with the GELU that is applied to its output and to nothing else.

    A trial decides: the block around both must give the same output when one kernel computes both.
    """
    blocks = [(block, list(block.children())) for block in model.modules()]
    parents = Counter(id(child) for _, children in blocks for child in children)
    for block, children in blocks:
        linears, activations = [c for c in children if _is_plain(c)], [c for c in children if _is_gelu(c)]
        if not linears or len(activations) != 1 or parents[id(activations[0])] != 1:
            continue
        first, activation = linears[0], activations[0]
        if "forward" not in activation.__dict__ and _is_applied(block, first, activation):
            yield first, activation


def _is_applied(block: nn.Module, linear: nn.Linear, activation: nn.Module) -> bool:
    x, plain, after = _probe(linear), linear.forward, activation.forward
    training = [(module, module.training) for module in block.modules()]
    block.eval()
    try:
        expected = block(x)
        linear.__dict__["forward"] = lambda states: after(plain(states))
        activation.__dict__["forward"] = _identity
        return torch.equal(block(x), expected)
    except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError):
        return False
    finally:
        linear.__dict__.pop("forward", None)
        activation.__dict__.pop("forward", None)
        for module, flag in training:
            module.training = flag


@torch.no_grad()
def _agrees(forward: Forward, linear: nn.Linear, approximate: str | None, tolerance: float) -> bool:
    """Tell whether the replacement runs on this processor and gives the layer's output within the tolerance."""
    x = _probe(linear)
    expected = linear.forward(x)
    if approximate is not None:
        expected = nn.functional.gelu(expected, approximate=approximate)
    try:
        found = forward(x)
    except RuntimeError:
        return False
    return bool((found.float() - expected).abs().max() <= tolerance * (1 + expected.abs().max()))
