"""Run a Python command that gets SIGTERM when the process that started it dies, so that it saves and ends.

    python experiments/tether.py PARENT_PID WORD ...     # becomes: python WORD ...

The kernel sends the signal (Linux only). A new process, rather than a hook between fork and exec: such hooks are not
safe in a process with threads, which a Ray worker is.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def hold(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when ``parent`` dies; end where it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    hold(int(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
