"""Memory that an evaluation freed goes back to the system.

glibc keeps freed blocks for later ones. The blocks of an evaluation and those of a training step differ in size, so
each leaves holes that the other does not fill, and a run's memory grows with every evaluation.
"""

import ctypes
import sys
from functools import lru_cache
from typing import Any

from .fast_switch import fast


@lru_cache
def _trim() -> Any:
    """Return glibc's ``malloc_trim``; None with another C library."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return None


def give_back() -> None:
    """Return freed memory to the system. Call it rarely: the next blocks cost a page fault for every 4 KiB."""
    if fast() and (trim := _trim()) is not None:
        trim(0)
