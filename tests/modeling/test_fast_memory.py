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


#: Frees 120 MB in blocks of 4 MB, as a step frees its activations, takes as much again, and counts page faults.
STEPS = """
import ctypes, resource
from csekit.modeling.fast_memory import freed_memory_kept
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def step():
    blocks = [libc.malloc(4_000_000) for _ in range(30)]
    for block in blocks:
        ctypes.memset(block, 1, 4_000_000)
    for block in blocks[::-1]:
        libc.free(block)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
before = resident()
with freed_memory_kept():
    step()
    first = faults()
    for _ in range(4):
        step()
    inside, held = faults() - first, resident() - before
print(inside, held, resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
@pytest.mark.parametrize("switch", ["0", "1"])
def test_freed_blocks_are_given_back(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSEKIT_FAST", switch)
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert (int(found.stdout) > 50_000_000) is (switch == "1")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
@pytest.mark.parametrize(
    ("variables", "kept"),
    [
        ({}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}, True),
        ({"CSEKIT_FAST": "0"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "1000000"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1000000"}, False),
    ],
)
def test_steps_meet_no_page_faults_unless_the_user_has_set_limits(
    variables: dict[str, str], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    inside, held, after = map(int, found.stdout.split())
    if not kept:
        assert inside > 50_000  # 4 steps over 29,297 pages
        assert held < 60_000_000
    else:
        assert inside < 1000
        assert held > 100_000_000
    assert after < 60_000_000  # all of it goes back


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    fast_memory._libc.cache_clear()
    fast_memory.give_back()
    assert fast_memory._libc() is None
    fast_memory._libc.cache_clear()
