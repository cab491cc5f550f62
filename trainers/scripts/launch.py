"""Tell how a training program was started: its name in messages, and its errors and threads under a launcher.

``torchrun`` and ``accelerate launch`` start several processes, and set OMP_NUM_THREADS to 1 if you did not set it.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import psutil
import torch
from tqdm.auto import tqdm

logger = logging.getLogger(__name__)

_NAME: ContextVar[str | None] = ContextVar("name", default=None)

#: Variables that a launcher sets for the processes that it starts.
_LAUNCHED = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")

#: Seconds that the other processes wait with an error. Within them the launcher ends them if process 0 has it as well.
_WAIT = 30.0


@contextmanager
def called(name: str) -> Iterator[None]:
    """Name the program in help and errors: ``csekit train``."""
    token = _NAME.set(name)
    try:
        yield
    finally:
        _NAME.reset(token)


def program() -> str:
    """Return the program's name as it was called: that of :func:`called`, else the script's file."""
    return _NAME.get() or Path(sys.argv[0]).name


def tell_error(error: object) -> None:
    """Print an error in one line on stderr, also beside a progress bar.

    Process 0 of each machine prints at once; its launcher then ends the others. An error that process 0 does not have
    is printed by its own process half a minute later.
    """
    logger.debug("the traceback:", exc_info=True)
    told = " ".join(_without_traceback(str(error)).split())
    rank = os.environ.get("LOCAL_RANK", "0")
    name = program()
    if rank != "0":
        time.sleep(_WAIT)
        name = f"{name}: process {rank}"
    tqdm.write(f"{name}: error: {told}", file=sys.stderr)


def _without_traceback(message: str) -> str:
    """Return a worker's error without the traceback that the data loader puts before it."""
    if not re.match(r"Caught \w+ in DataLoader worker", message):
        return message
    ends = [match.end() for match in re.finditer(r"^[\w.]+: ", message, re.MULTILINE)]
    return message[ends[-1] :] if ends else message


def use_all_cores() -> None:
    """Share the cores among the processes of this machine if a launcher set OMP_NUM_THREADS to 1.

    A number of threads that you chose stays: OMP_NUM_THREADS in the launcher's own environment, or accelerate's
    ``--num_cpu_threads_per_process``. It also stays where the launcher cannot be read.
    """
    if os.environ.get("OMP_NUM_THREADS") != "1":
        return
    try:
        launcher = psutil.Process(os.getppid())
        before, words = launcher.environ(), launcher.cmdline()
    except (psutil.Error, OSError):
        return
    launched = any(name in os.environ and name not in before for name in _LAUNCHED)
    chosen = any(word.replace("-", "_").startswith("__num_cpu_threads_per_process") for word in words)
    if launched and not chosen and "OMP_NUM_THREADS" not in before:
        torch.set_num_threads(max(1, _cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def _cores() -> int:
    """Return the number of physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(psutil.cpu_count(logical=False) or allowed, allowed)
