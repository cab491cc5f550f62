"""Refuse a number of layers whose weights alone fill the machine's memory, before they are made."""

import os
from collections.abc import Callable

import torch
from torch import nn


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
    memory = installed_memory()
    if count * size > memory:
        raise ValueError(
            f"{field} must be at most {memory // size:,}, whose weights alone fill this machine's memory, "
            f"{memory / 1e9:,.1f} GB, got {count}"
        )


def installed_memory() -> int:
    """Return the bytes of this machine's memory; more than any machine has, where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**63
