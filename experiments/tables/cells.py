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


def processor(environment: Mapping[str, Any]) -> str:
    """Return the kind of processor, nothing where the file is from before it was recorded."""
    cpu = environment.get("cpu")
    if not cpu:
        return ""
    return "AMX" if cpu["amx"] else str(cpu["capability"]).replace("AVX512", "AVX-512")
