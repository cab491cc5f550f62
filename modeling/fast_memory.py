"""How glibc deals with freed memory: kept between training steps, given back after an evaluation.

glibc gives the freed end of a heap back to the system as soon as it is larger than a limit, and grows the limit with
the largest block that a process has freed, up to 64 MiB. A step frees more than that, so each step paid again for the
pages of the one before: 7,000 to 28,000 page faults a step on a small encoder.

Blocks of an evaluation and those of a training step differ in size. Each leaves holes that the other does not fill,
and a run's memory would grow with every evaluation.

Before 2.39, glibc also kept the scraps beside an aligned block in the thread's cache, where a freed neighbour cannot
join them (its bug 30723). The hole is then a few bytes too small for the next tensor of the same size. Only the
environment of a process can turn the cache off: ``GLIBC_TUNABLES=glibc.malloc.tcache_count=0``.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from .fast_switch import fast

#: Options of ``mallopt``: the free end of a heap that is kept, and the size from which a block has pages of its own.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: The largest limits that glibc reaches by itself.
_LARGEST_BLOCK, _LARGEST_END = 32 << 20, 64 << 20
#: Limits that a user sets by variables, MALLOC_TRIM_THRESHOLD_ and the like, or in GLIBC_TUNABLES.
_LIMITS = ("trim_threshold", "mmap_threshold", "top_pad", "mmap_max")


@lru_cache
def _libc() -> Any:
    """Return glibc; None with another C library."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL("libc.so.6")
        return libc if libc.malloc_trim and libc.mallopt else None
    except (OSError, AttributeError):
        return None


def give_back() -> None:
    """Return freed memory to the system. Call it rarely: the next blocks cost a page fault for every 4 KiB."""
    if fast() and (libc := _libc()) is not None:
        libc.malloc_trim(0)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside the context, let glibc keep all freed memory for the next step, but for blocks of over 32 MiB.

    ``give_back`` works inside as well. After the context the memory goes back, and the limits are the largest that
    glibc reaches by itself; it moves them no more. Nothing happens with another C library, if the fast paths are off,
    and where the environment sets one of the limits (``MALLOC_TRIM_THRESHOLD_``, or
    ``GLIBC_TUNABLES=glibc.malloc.trim_threshold=…``, and the like).
    """
    libc = _libc() if fast() and not _set_by_user() else None
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
    libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        libc.mallopt(_TRIM_THRESHOLD, _LARGEST_END)
        libc.malloc_trim(0)


def _set_by_user() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return any(f"MALLOC_{limit.upper()}_" in os.environ or f"glibc.malloc.{limit}=" in tunables for limit in _LIMITS)
