"""Freed memory goes back to the system."""

import subprocess
import sys

import pytest

from csekit.modeling import fast_memory

#: Frees small blocks below one that stays: glibc alone gives none of them back.
SCRIPT = """
import ctypes
from csekit.modeling.fast_memory import give_back
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [libc.malloc(60_000) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 60_000)
for block in blocks[:-1]:
    libc.free(block)
before = resident()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
@pytest.mark.parametrize("switch", ["0", "1"])
def test_freed_blocks_are_given_back(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSEKIT_FAST", switch)
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert (int(found.stdout) > 50_000_000) is (switch == "1")


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    fast_memory._trim.cache_clear()
    fast_memory.give_back()
    assert fast_memory._trim() is None
    fast_memory._trim.cache_clear()
