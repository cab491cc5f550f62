"""Let one process at a time write to a run's folder.

A lock of the operating system (``filelock``) ends with its process. On file systems that do not share such locks
between machines, a note beside it tells owner and last sign of life: the owner touches it every 15 seconds.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from csekit.encoding.provenance import write_json

logger = logging.getLogger(__name__)

LOCK, NOTE = ".run.lock", ".run.json"
BEAT = 15.0  # seconds between two signs of life
STALE = 120.0  # seconds without one, after which an owner on another machine counts as gone
_WAIT = 2.0  # seconds that the lock of a process may outlive it, and that its thread may take to end


class FolderInUseError(ValueError):
    """Another process works in the folder."""


class RunLock:
    """The lock of a folder, held by this process.

    Raises:
        FolderInUseError: another process holds it; the message names process, machine and last sign of life.
        OSError: the folder cannot be written.
        ValueError: the path, or a part of it, is no folder.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ValueError(f"output_dir must be a folder, got {folder}: {error.strerror}") from None
        self.folder, self.users = folder, 1
        self.note = {"host": socket.gethostname(), "pid": os.getpid(), "token": uuid.uuid4().hex}
        self.taken = False
        self._lock, self._stop = FileLock(folder / LOCK, timeout=_WAIT), threading.Event()
        try:
            self._lock.acquire()
        except Timeout:
            raise FolderInUseError(_in_use(folder, _read(folder))) from None
        try:
            self._take_over()
            write_json(folder / NOTE, self.note)
        except BaseException:
            self._lock.release()
            raise
        self._beats = threading.Thread(target=self._beat, name="run lock", daemon=True)
        self._beats.start()

    def _take_over(self) -> None:
        """Look at the note of an owner that did not release the lock."""
        owner = _read(self.folder)
        if not owner:
            return
        if owner.get("host") != self.note["host"] and (silent := _silence(self.folder)) < STALE:
            raise FolderInUseError(_in_use(self.folder, owner, silent))
        logger.warning("%s was in use by %s, which is gone; this process takes it over", self.folder, _name(owner))

    def _beat(self) -> None:
        last = time.time()
        while not self._stop.wait(BEAT):
            with suppress(OSError):
                owner, now = _read(self.folder), time.time()
                if owner.get("token") == self.note["token"]:
                    os.utime(self.folder / NOTE)
                    last = now
                elif owner or now - last > STALE:  # after so long another owner may have come and gone
                    self.taken = True
                elif not (self.folder / NOTE).exists():  # somebody deleted it
                    write_json(self.folder / NOTE, self.note)

    def _is_ours(self) -> bool:
        return _read(self.folder).get("token") == self.note["token"]

    def release(self) -> None:
        """Give the folder free."""
        self._stop.set()
        self._beats.join(_WAIT)  # it may be writing the note
        with suppress(OSError):
            if self._is_ours():
                (self.folder / NOTE).unlink()
        self._lock.release()


_held: dict[Path, RunLock] = {}
_guard = threading.Lock()


def _key(folder: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(folder))  # Path.resolve() ends in a RuntimeError for a link to itself


@contextmanager
def held(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a folder inside the context. A process may enter it several times.

    Raises:
        FolderInUseError: another process holds it.
        OSError: the folder cannot be written.
        ValueError: the path is no folder.
    """
    key = _key(folder)
    with _guard:
        if key in _held:
            _held[key].users += 1
        else:
            _held[key] = RunLock(Path(folder))
    try:
        yield
    finally:
        with _guard:
            lock = _held[key]
            lock.users -= 1
            if not lock.users:
                del _held[key]
                lock.release()


def check_held(folder: str | os.PathLike[str]) -> None:
    """Check that no other machine has taken the folder over, which one does after 120 seconds without a sign of life.

    Raises:
        FolderInUseError: one has.
    """
    lock = _held.get(_key(folder))
    if lock is not None and lock.taken:
        raise FolderInUseError(
            f"{folder} was taken over by {_name(_read(Path(folder)))}, since this process gave no sign of life for "
            f"{STALE:.0f} seconds: it stops without writing"
        )


def _read(folder: Path) -> dict[str, Any]:
    """Return the owner's note; {} if there is none."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _silence(folder: Path) -> float:
    """Return the seconds since the owner's last sign of life, by the clock of the file system."""
    with suppress(OSError):
        os.utime(folder / LOCK)
        return (folder / LOCK).stat().st_mtime - (folder / NOTE).stat().st_mtime
    return STALE


def _name(owner: dict[str, Any]) -> str:
    return f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"


def _in_use(folder: Path, owner: dict[str, Any], silent: float | None = None) -> str:
    life = "" if silent is None else f", whose last sign of life was {max(silent, 0):.0f} seconds ago"
    return f"{folder} is in use by {_name(owner)}{life}: choose another --output_dir, or wait for its end"
