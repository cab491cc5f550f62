"""Refuse a number of layers, vectors or dimensions that alone fill the machine's memory, before they are made."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

CONTROL_GROUP = Path("/sys/fs/cgroup")


def check_layers(field: str, count: int, build: Callable[[], nn.Module]) -> None:
    """Check that this machine's memory holds the weights of so many layers.

    Arguments:
        field: name of the setting, for the message.
        count: number of layers.
        build: makes one of them; it is called without memory for its weights.

    Raises:
        ValueError: it does not; the message names the largest number that it holds.
    """
    with torch.device("meta"):
        size = sum(weight.numel() * weight.element_size() for weight in build().parameters())
    check_count(field, count, size, "weights")


def check_vectors(field: str, count: int, size: int, what: str = "vectors") -> None:
    """Check that this machine's memory holds so many vectors of ``size`` float32 numbers.

    Arguments:
        field: name of the setting, for the message.
        what: what is kept, for the message.

    Raises:
        ValueError: it does not; the message names the largest number that it holds.
    """
    check_count(field, count, size * torch.float32.itemsize, what)


def check_count(field: str, count: int, size: int, what: str) -> None:
    memory = installed_memory()
    if count * size > memory:
        raise ValueError(
            f"{field} must be at most {memory // size:,}, whose {what} alone fill this machine's memory, "
            f"{memory / 1e9:,.1f} GB, got {count}"
        )


def installed_memory() -> int:
    """Return the bytes of this machine's memory, or of a smaller limit of the process's control group (a container's);
    more than any machine has, where the system does not tell."""
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        installed = 2**63
    limit = group_bytes("memory.max")
    return installed if limit is None else min(installed, limit)


def group_bytes(name: str) -> int | None:
    """Return a number of the process's control group, such as ``memory.max``; None where it has no such limit."""
    try:
        return int((CONTROL_GROUP / name).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
