"""Results files: JSON in a stable layout, the similarity of every pair in a small file beside it.

``NAME.json`` holds scores and environment; ``NAME.similarities.npz`` holds, for each task, the similarities as 16-bit
steps between their lowest and highest value (so ranks survive) and the gold scores.
"""

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from csekit.encoding.provenance import write_atomically

FORMAT = 1
_STEPS = 65535

Similarities = Mapping[str, tuple[np.ndarray, np.ndarray]]


def _plain(value: Any, field: str = "results") -> Any:
    """Numpy values to Python's, nan to null; a machine's path is an error."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{field}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{field}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist(), field)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        if not np.isfinite(value):
            return None
        return round(value, 6) if abs(value) >= 1 else float(f"{value:.6g}")
    if isinstance(value, Path) or (isinstance(value, str) and os.path.isabs(value) and " " not in value):
        raise ValueError(f"{field} must hold no machine's path, got {str(value)!r}: store its last part")
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ValueError(f"{field} must be JSON (numbers, strings, lists, mappings), got {type(value).__name__}")


def pack_similarities(similarities: Similarities) -> bytes:
    """The compressed arrays of ``NAME.similarities.npz``: under 60 kB for the seven STS sets.

    All tasks in one array each, 16-bit numbers as a plane of high and a plane of low bytes: both compress better so.
    """
    steps, ranges, golds = [], [], []
    for task, (values, gold) in similarities.items():
        values = np.asarray(values, dtype=np.float64)
        if values.ndim != 1 or len(values) != len(gold) or not np.isfinite(values).all():
            raise ValueError(f"similarities of {task} must be finite, one for each of {len(gold)} gold scores")
        low, high = float(values.min()), float(values.max())
        steps.append(np.rint((values - low) / ((high - low) / _STEPS or 1.0)))
        ranges.append((low, high))
        golds.append(np.asarray(gold, dtype=np.float64))
    levels, codes = np.unique(np.concatenate(golds), return_inverse=True)
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        tasks=np.array(list(similarities)),
        sizes=np.array([len(gold) for gold in golds]),
        ranges=np.array(ranges),
        steps=_planes(np.concatenate(steps)),
        levels=levels,
        gold=_planes(codes),
    )
    return stream.getvalue()


def _planes(values: np.ndarray) -> np.ndarray:
    """(N,) whole numbers below 65,536 to (2, N) bytes."""
    whole = values.astype(np.uint16)
    return np.stack([whole >> 8, whole & 255]).astype(np.uint8)


def unpack_similarities(data: bytes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Task to (similarities, gold), float64; a similarity is off by at most 1/131070 of its task's range."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    steps, codes = (arrays[name].astype(np.int64) for name in ("steps", "gold"))
    steps, codes = 256 * steps[0] + steps[1], 256 * codes[0] + codes[1]
    found, start = {}, 0
    for task, size, (low, high) in zip(arrays["tasks"], arrays["sizes"], arrays["ranges"], strict=True):
        part = slice(start, start + int(size))
        found[str(task)] = (low + steps[part] * ((high - low) / _STEPS), arrays["levels"][codes[part]])
        start = part.stop
    return found


def similarities_path(path: str | Path) -> Path:
    """``NAME.similarities.npz`` beside ``NAME.json``."""
    return Path(path).with_suffix(".similarities.npz")


def write_results(
    path: str | Path,
    results: Mapping[str, Any],
    similarities: Similarities | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a results file, whole or not at all; sorted keys, six decimals (six digits below 1), nan as null.

    Arguments:
        path: ``NAME.json``.
        results: JSON values. ``results["run"]`` says what was run (encoder, data, settings): a file whose ``run`` is
            equal is replaced, any other existing file is kept.
        similarities: task to (similarities, gold), for ``csekit compare``.
        overwrite: replace any file.

    Raises:
        FileExistsError: the file holds another run.
        ValueError: a value that is not JSON, or a machine's path.
    """
    path = Path(path)
    if path.suffix != ".json":
        raise ValueError(f"path must end in .json, got {path.name!r}")
    content = {**_plain(results), "format": FORMAT}
    if path.exists() and not overwrite:
        old = read_results(path)
        same_run = "run" in content and content["run"] == old.get("run")
        if not same_run and {**old, "similarities": None} != {**content, "similarities": None}:
            raise FileExistsError(f"{path}: holds the results of another run; choose another name or say overwrite")
    if similarities is not None:
        data = pack_similarities(similarities)
        write_atomically(similarities_path(path), data)
        content["similarities"] = {
            "file": similarities_path(path).name,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
    text = json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, (text + "\n").encode("utf-8"))
    return path


def read_results(path: str | Path) -> dict[str, Any]:
    """The content of a results file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON, not a results file, or of a later format.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such results file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(content, dict) or "format" not in content:
        raise ValueError(f"{path}: not a results file: the field 'format' is missing")
    if content["format"] != FORMAT:
        raise ValueError(f"{path}: format must be {FORMAT}, got {content['format']!r}")
    return content


def read_similarities(path: str | Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Task to (similarities, gold) of a results file ``NAME.json``.

    Raises:
        FileNotFoundError: the file beside it is missing.
        ValueError: the results hold no similarities, or those of another run.
    """
    entry = read_results(path).get("similarities")
    if not entry:
        raise ValueError(f"{path}: holds no similarities")
    beside = Path(path).parent / entry["file"]
    if not beside.is_file():
        raise FileNotFoundError(f"{beside}: no such file, {Path(path).name} refers to it")
    data = beside.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ValueError(f"{beside}: not the similarities of {Path(path).name}, its sha256 differs")
    return unpack_similarities(data)
