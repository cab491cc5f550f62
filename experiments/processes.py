"""The processes behind a plan: the driver's lock on the output folder, and notes about the trials' processes.

A note is ``{"pid", "host", "started"}``. The start time tells a process from a later one with the same pid.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from csekit.encoding.provenance import write_json
from experiments.trial import PlanError

LOCK = "driver.json"
NOTE = "process.json"


def describe(pid: int) -> dict[str, Any]:
    """Return the note about a process of this machine."""
    return {"pid": pid, "host": socket.gethostname(), "started": psutil.Process(pid).create_time()}


def is_alive(note: Mapping[str, Any]) -> bool | None:
    """Say whether a process still runs; None where it is on another machine."""
    if note["host"] != socket.gethostname():
        return None
    try:
        process = psutil.Process(note["pid"])
        return abs(process.create_time() - note["started"]) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def locked(output_dir: Path, say: Callable[[str], None] = print) -> Iterator[None]:
    """Hold the output folder for this process. A lock of a process that is gone is taken over, with a word.

    Raises:
        PlanError: another driver, or one on another machine that cannot be looked at, has the folder.
    """
    path = output_dir / LOCK
    output_dir.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{LOCK}.{os.getpid()}")
    draft.write_text(json.dumps(describe(os.getpid())), encoding="utf-8")
    try:
        while True:
            try:
                os.link(draft, path)  # the lock appears with its content, or not at all
                break
            except FileExistsError:
                _take_over(path, say)
    finally:
        draft.unlink()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _take_over(path: Path, say: Callable[[str], None]) -> None:
    note = _read(path)
    if note is None:  # released just now
        return
    owner, alive = f"process {note['pid']} on {note['host']}", is_alive(note)
    if alive is None:
        raise PlanError(f"{path.parent} is in use by {owner}: delete {path} if that process is gone")
    if alive:
        raise PlanError(f"{path.parent} is in use by {owner}; --engine ray runs several trials at once")
    say(f"{path.parent} was in use by {owner}, which is gone; this process takes it over")
    path.unlink(missing_ok=True)


def wait_for_left_behind(folder: Path, say: Callable[[str], None] = print) -> None:
    """Wait for the process that a killed driver left in a trial's folder, on this machine; it is about to save."""
    note = _read(folder / NOTE)
    if note and is_alive(note):
        say(f"waiting for process {note['pid']}, which a killed driver left in {folder}")
        while is_alive(note):
            time.sleep(0.2)
    remove_note(folder)


def still_runs(folder: Path) -> bool:
    """Say whether the process of a trial runs; True also where it is on another machine and cannot be looked at."""
    note = _read(folder / NOTE)
    return note is not None and is_alive(note) is not False


def note_process(folder: Path, pid: int) -> None:
    """Write the note about a trial's process into its folder."""
    write_json(folder / NOTE, describe(pid))


def remove_note(folder: Path) -> None:
    """Remove the note about a trial's process, which has ended."""
    (folder / NOTE).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
