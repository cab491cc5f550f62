"""Write folders and sets of files whole or not at all. Until it is complete, a draft has a name of its own.

The name holds machine and process, so that the next writer deletes the drafts of killed processes.
"""

import errno
import hashlib
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

_DRAFT = re.compile(r"\.(?P<name>.+)\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{8}\.(?P<kind>draft|old)")
_FULL = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}
# safetensors, tokenizers and torch raise errors of their own, without an errno
_FULL_WORDS = re.compile(
    "PytorchStreamWriter|inline_container|No space left|"
    + "|".join(rf"os error {number}\b" for number in sorted(_FULL))
)
#: The draft of a set of files lies in their folder under this name.
_SET = "files"


class DiskFullError(OSError):
    """A file could not be written because the disk is full, or a quota is. The message names path and free space."""


@contextmanager
def full_disk_told(path: Path) -> Iterator[None]:
    """Turn a writer's error about a full disk into a :class:`DiskFullError`.

    Arguments:
        path: what is written, for the message.
    """
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:
        own = isinstance(error, OSError | RuntimeError | SafetensorError) or type(error) is Exception  # of tokenizers
        if not own:
            raise
        full = error.errno in _FULL if isinstance(error, OSError) and error.errno else _FULL_WORDS.search(str(error))
        if not full:
            raise
        too_large = getattr(error, "errno", None) == errno.EFBIG or f"os error {errno.EFBIG})" in str(error)
        limit = " (File too large for a limit)" if too_large else ""
        free = f"{free_megabytes(path):,.1f} MB free{limit}"
        raise DiskFullError(f"{path}: no space left on the disk, {free}") from error


def free_megabytes(path: Path) -> float:
    """Return the free space of the disk that holds a path, or will hold it, in megabytes (10^6 bytes)."""
    there = next((folder for folder in (path, *path.absolute().parents) if folder.exists()), Path())
    return shutil.disk_usage(there).free / 1e6


def draft_path(path: Path, kind: str = "draft") -> Path:
    """Return a new name beside ``path`` that holds machine and process."""
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.{kind}")


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def clean_drafts(path: Path) -> None:
    """Delete the drafts of ``path`` whose processes on this machine have ended. Put a folder back that such a process
    had moved aside and not replaced."""
    for found in path.parent.glob(".*"):
        match = _DRAFT.fullmatch(found.name)
        if match is None or match["name"] != path.name or match["host"] != _host() or _runs(int(match["pid"])):
            continue
        if match["kind"] == "old" and not path.exists():
            os.replace(found, path)
        else:
            shutil.rmtree(found, ignore_errors=True)


def _runs(pid: int) -> bool:
    """Say whether a process of this machine runs; True where that cannot be known."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside ``path``. It takes the place of ``path`` on success and is deleted otherwise.

    Raises:
        DiskFullError: there is no room for it; an older folder stays.
    """
    with full_disk_told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        clean_drafts(path)
        new, old = draft_path(path), draft_path(path, "old")
        new.mkdir()
        try:
            yield new
            _flush(new)
            if path.exists():
                os.replace(path, old)
            os.replace(new, path)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            if old.exists() and not path.exists():
                os.replace(old, path)
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def whole_files(folder: Path, owned: Sequence[str], last: str = "config.json") -> Iterator[Path]:
    """Yield an empty folder inside ``folder``; on success its files take their places in ``folder``, whose other files
    stay.

    The old files stay until the new ones are complete. While these are moved, ``last`` is absent: nothing loads a
    folder whose writer was killed then, and :func:`is_unfinished` tells it.

    Arguments:
        owned: patterns of files and folders of an earlier set, which are deleted where the new set lacks them.
        last: the file that every reader needs.

    Raises:
        DiskFullError: there is no room for them; the old files stay.
    """
    with full_disk_told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        clean_drafts(folder / _SET)
        draft = draft_path(folder / _SET)
        draft.mkdir()
        try:
            yield draft
            _flush(draft)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        _move(draft, folder, owned, last)


def _move(draft: Path, folder: Path, owned: Sequence[str], last: str) -> None:
    new = {path.relative_to(draft) for path in draft.rglob("*") if path.is_file()}
    (folder / last).unlink(missing_ok=True)
    for pattern in owned:
        for found in folder.glob(pattern):
            for file in [found] if found.is_file() else [path for path in found.rglob("*") if path.is_file()]:
                if file.relative_to(folder) not in new:
                    file.unlink()
            with suppress(OSError):  # not empty: the new set has files there
                found.rmdir()
    for name in sorted(new, key=lambda name: name == Path(last)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(draft / name, folder / name)
    shutil.rmtree(draft, ignore_errors=True)


def is_unfinished(folder: Path, last: str = "config.json") -> bool:
    """Say whether the writer of a set of files was killed before they were in their places."""
    return not (folder / last).exists() and any(_DRAFT.fullmatch(path.name) for path in folder.glob(f".{_SET}.*"))


def _flush(folder: Path) -> None:
    """Write the content of all files to the disk, which renaming does not."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDWR)  # Windows flushes only what may be written
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
