"""Format the cells of a table: numbers, and means with their deviations."""

from collections.abc import Mapping
from typing import Any


def spread(value: Mapping[str, Any] | None, sign: bool = False) -> str:
    """Format ``summary.spread``: the mean, and the deviation if there is one."""
    if not value:
        return "–"
    return number(value["mean"], sign) + (f" ± {value['std']:.2f}" if value.get("std") is not None else "")


def number(value: float | str | None, sign: bool = False) -> str:
    """Format a number; a paper's ``75.81 ± 0.41`` is text and stays as it is."""
    if isinstance(value, str):
        return value
    return "–" if value is None else f"{value:{'+' if sign else ''}.2f}"


def compact(value: float | None) -> str:
    """Format a number by its first two digits."""
    return "–" if value is None else f"{value:.2g}"


def processor(environment: Mapping[str, Any]) -> str:
    """Return the kind of processor, nothing where the file is from before it was recorded.

    AMD's with AVX-512 are a kind of their own: their bfloat16 products are twice as fast as float32's."""
    cpu = environment.get("cpu")
    if not cpu:
        return ""
    kind = "AMX" if cpu["amx"] else str(cpu["capability"]).replace("AVX512", "AVX-512")
    return f"{kind} of AMD" if kind == "AVX-512" and cpu.get("vendor") == "AuthenticAMD" else kind
