"""Record the origin of a result (versions, device, commit, checksums), and write files whole or not at all."""

import errno
import glob
import hashlib
import io
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import csekit

RESULTS = "experiments/results"

_OLD = 3600.0  # seconds
_FULL = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _commit() -> dict[str, Any]:
    """Return the commit of the checkout that csekit runs from, and whether files beside the results differ from it.

    A series of runs writes results into ``experiments/results`` as it goes, which are no code.
    A copy without its ``.git`` has the commit that ``CSEKIT_COMMIT`` names; an installed csekit has None.
    """
    source = Path(csekit.__file__).resolve()
    top = _git(source.parent, "rev-parse", "--show-toplevel")
    if top is None or Path(top, "src", "csekit", "__init__.py").resolve() != source:
        return {"commit": os.environ.get("CSEKIT_COMMIT") or None, "dirty": None}
    status = _git(Path(top), "status", "--porcelain", "--", ".", f":(exclude){RESULTS}")
    return {"commit": _git(Path(top), "rev-parse", "HEAD"), "dirty": bool(status) if status is not None else None}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> dict[str, Any]:
    """Return the vector instructions that torch's kernels use, whether the processor has matrix units (AMX), in which
    bfloat16 is faster (None where this torch does not tell), and on Linux who made it (``AuthenticAMD``)."""
    import torch

    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "amx": None if has_tiles is None else bool(has_tiles()),
        "vendor": _vendor(),
    }


def _vendor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), None)


def environment() -> dict[str, Any]:
    """Return versions, platform, device, processor, threads and commit, which every results file records."""
    import torch  # here, so that commands without a model start at once

    cuda = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {
            "csekit": csekit.__version__,
            **{name: _version(name) for name in ("torch", "transformers", "numpy", "scipy", "scikit-learn")},
        },
        "device": torch.cuda.get_device_name() if cuda else (platform.processor() or platform.machine()),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        **_commit(),
    }


def weights_of(folder: str | Path) -> dict[str, str]:
    """Return the SHA-256 of each file with weights that an encoder's folder is loaded from, by its path in the folder:
    those in the root and in its modules' folders (``2_Dense``), else those of ``training/``, else those of modules in
    subfolders; {} where it is no folder."""
    folder = Path(folder).expanduser()
    for place in ("", "training/", "*/"):
        if files := _weight_files(folder, place):
            files += _weight_files(folder, "[0-9]*_*/") if place == "" else []
            return {file.relative_to(folder).as_posix(): checksum(file) for file in files}
    return {}


def _weight_files(folder: Path, place: str) -> list[Path]:
    return sorted(file for kind in ("*.safetensors", "pytorch_model*.bin") for file in folder.glob(place + kind))


def checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files in the order of their names.

    Raises:
        FileNotFoundError: there is no such file or folder.
    """
    path = Path(path)
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such file or folder")
    state = hashlib.sha256()
    for name in sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()):
        state.update(f"{name}\0{checksum(path / name)}\n".encode())
    return state.hexdigest()


def check_writable(path: Path, folder: bool = False) -> None:
    """Check that a file, or a folder, can be written, before the work whose result it will hold. Nothing is created.

    Raises:
        OSError: a folder stands in the place of the file or the other way round, a part of the path is a file, or the
            folder is read-only.
    """
    path = path.absolute()
    if path.exists() and path.is_dir() is not folder:
        raise OSError(
            f"{path}: must be a {'folder' if folder else 'file'}, there is a {'file' if folder else 'folder'}"
        )
    held = path if folder and path.exists() else path.parent
    while not held.exists():
        held = held.parent
    if not held.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {held} is a file")
    if not os.access(held, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written: {held} is read-only")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: first under a temporary name in the same folder, then renamed.

    Drafts of this file that killed processes of this machine left are deleted; those of others once they are an hour
    old.

    Raises:
        OSError: among others, the disk is full; the message names file and free space, and an older file stays.
    """
    write_together({path: data})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write files as ``write_atomically`` does. Each is on the disk before the first is renamed, so that a full disk
    leaves all older files. Raises OSError: as ``write_atomically``."""
    drafts: list[str] = []
    path = next(iter(files))
    try:
        for path, data in files.items():
            drafts.append(_draft(path))
            with open(drafts[-1], "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(drafts[-1], 0o644)
        for path, draft in zip(files, drafts, strict=True):
            os.replace(draft, path)
    except BaseException as error:
        for draft in drafts:
            Path(draft).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _FULL:
            free = shutil.disk_usage(path.parent).free / 1e6
            limit = " (File too large for a limit)" if error.errno == errno.EFBIG else ""
            raise OSError(f"{path}: no space left on the disk, {free:,.1f} MB free{limit}") from error
        raise


def _draft(path: Path) -> str:
    """Make an empty file with a temporary name beside a file, and delete drafts that were left there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*.draft"):
        with suppress(OSError):
            if _is_left(draft):
                draft.unlink()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=f".{_host()}-{os.getpid()}.draft")
    os.close(handle)
    return name


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_left(draft: Path) -> bool:
    """Say whether the process of a draft has ended, for another machine's whether it is old."""
    owner = re.fullmatch(r".*\.([0-9a-f]{8})-(\d+)\.draft", draft.name)
    if owner is None or owner[1] != _host() or os.name != "posix":
        return time.time() - draft.stat().st_mtime > _OLD
    try:
        os.kill(int(owner[2]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_atomically(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8"))


def array_bytes(array: np.ndarray) -> bytes:
    """Return an array as the content of a ``.npy`` file. ``numpy.save`` to a file says nothing where a full disk takes
    only the beginning."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()
