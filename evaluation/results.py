"""Read and write results files: JSON in a stable layout, and the similarity of every pair in a file beside it.

``NAME.json`` holds scores and environment. ``NAME.similarities.npz`` holds similarities and gold scores of each task.
Similarities are stored as float32, which is the precision that scores are computed with: ranks, ties and therefore
Spearman are exactly those of the run. Files written before stored them in 16-bit steps; they are still read.
"""

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from csekit.encoding.json_files import read_json
from csekit.encoding.provenance import write_together
from csekit.evaluation.results_schema import check_results

FORMAT = 1
#: Steps of the similarities in files that older versions wrote.
_STEPS = 65535

Similarities = Mapping[str, tuple[np.ndarray, np.ndarray]]


def _names_no_file(field: str) -> bool:
    """Tell whether a field holds a title, labels or prompts, which may begin with a slash."""
    named = field == "results.title" or field.startswith("results.clustering.map.names[")
    return named or field.endswith(".prompt_template") or ".prompts." in field


def plain(value: Any, field: str = "results") -> Any:
    """Convert NumPy values to Python's and nan to null. Raises ValueError for an absolute path."""
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{field}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{field}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), field)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        if not np.isfinite(value):
            return None
        return round(value, 6) if abs(value) >= 1 else float(f"{value:.6g}")
    path = isinstance(value, str) and os.path.isabs(value) and " " not in value and not _names_no_file(field)
    if isinstance(value, Path) or path:
        raise ValueError(f"{field} must hold no machine's path, got {str(value)!r}: store its last part")
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ValueError(f"{field} must be JSON (numbers, strings, lists, mappings), got {type(value).__name__}")


def pack_similarities(similarities: Similarities) -> bytes:
    """Return the content of ``NAME.similarities.npz``: at most 6 bytes per pair and 1 kB, some 80 kB for the seven STS
    sets. With more than 65,536 different gold scores it is 8 bytes per pair, and these scores.

    All tasks share one array, and each byte of a number has its own plane: both compress better.

    Raises:
        ValueError: similarities that are not finite, or not one per gold score.
    """
    found, golds = [], []
    for task, (values, gold) in similarities.items():
        values = np.asarray(values, dtype=np.float64)
        if values.ndim != 1 or len(values) != len(gold) or not np.isfinite(values).all():
            raise ValueError(f"similarities of {task} must be finite, one for each of {len(gold)} gold scores")
        found.append(values.astype("<f4"))
        golds.append(np.asarray(gold, dtype=np.float64))
    levels, codes = np.unique(np.concatenate(golds), return_inverse=True)
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        tasks=np.array(list(similarities)),
        sizes=np.array([len(gold) for gold in golds]),
        similarities=_planes(np.concatenate(found)),
        levels=levels,
        gold=_planes(codes.astype("<u2" if len(levels) <= 2**16 else "<u4")),
    )
    return stream.getvalue()


def _planes(values: np.ndarray) -> np.ndarray:
    """Split (N,) little-endian numbers of b bytes into (b, N) bytes, the most significant first."""
    return np.ascontiguousarray(values.view(np.uint8).reshape(len(values), -1).T[::-1])


def _joined(planes: np.ndarray, kind: str) -> np.ndarray:
    """Join what ``_planes`` split."""
    return np.ascontiguousarray(planes[::-1].T).view(kind).ravel()


def unpack_similarities(data: bytes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Map task to (similarities, gold), float64. In a file of 16-bit steps a similarity is off by at most 1/131070 of
    its task's range."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    gold = arrays["levels"][_joined(arrays["gold"], f"<u{len(arrays['gold'])}")]
    parts = np.split(np.arange(len(gold)), np.cumsum(arrays["sizes"])[:-1])
    if "similarities" in arrays:
        similarities = _joined(arrays["similarities"], "<f4").astype(np.float64)
    else:
        steps = _joined(arrays["steps"], "<u2")
        ranges = zip(parts, arrays["ranges"], strict=True)
        similarities = np.concatenate([low + steps[part] * ((high - low) / _STEPS) for part, (low, high) in ranges])
    tasks = zip(arrays["tasks"], parts, strict=True)
    return {str(task): (similarities[part], gold[part]) for task, part in tasks}


def _digest(similarities: np.ndarray, gold: np.ndarray) -> str:
    """Return a digest of one task's similarities, as they are stored, and gold scores."""
    parts = np.asarray(similarities, dtype="<f4"), np.asarray(gold, dtype="<f8")
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:32]


def similarities_path(path: str | Path) -> Path:
    """Return the path of ``NAME.similarities.npz`` beside ``NAME.json``."""
    return Path(path).with_suffix(".similarities.npz")


def check_replaceable(path: str | Path, run: Mapping[str, Any]) -> None:
    """Check that ``write_results`` could replace an existing file by results of this run, before the work.

    Raises:
        FileExistsError: the file holds another run.
        ValueError: the file is no results file.
    """
    path = Path(path)
    if path.exists() and not same_run(read_results(path).get("run"), plain(run, "results.run")):
        raise _of_another_run(path)


def same_run(old: Any, new: Any) -> bool:
    """Tell whether two values of ``run`` are equal, but for what files of earlier versions lack."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        later = {"tokenizer", "tensors", "further"} - old.keys()
        new = {name: value for name, value in new.items() if name not in later}
    return bool(old == new)


def _of_another_run(path: Path) -> FileExistsError:
    return FileExistsError(f"{path}: holds the results of another run; choose another name or say overwrite")


def write_results(
    path: str | Path,
    results: Mapping[str, Any],
    similarities: Similarities | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a results file atomically, with sorted keys, six decimals (six digits below 1), and nan as null.

    Arguments:
        path: ``NAME.json``.
        results: JSON values. ``results["run"]`` describes the run (encoder, data, settings): a file with an equal
            ``run`` is replaced, any other existing file is kept.
        similarities: task to (similarities, gold), for ``csekit compare``; stored as float32.
        overwrite: replace any file.

    Raises:
        FileExistsError: the file holds another run.
        ValueError: a value that is not JSON, or an absolute path.
    """
    path = Path(path)
    if path.suffix != ".json":
        raise ValueError(f"path must end in .json, got {path.name!r}")
    content = {**plain(results), "format": FORMAT}
    if path.exists() and not overwrite:
        old = read_results(path)
        known = "run" in content and same_run(old.get("run"), content["run"])
        if not known and {**old, "similarities": None} != {**content, "similarities": None}:
            raise _of_another_run(path)
    files: dict[Path, bytes] = {}
    if similarities is not None:
        data = pack_similarities(similarities)
        files[similarities_path(path)] = data
        content["similarities"] = {
            "file": similarities_path(path).name,
            "sha256": hashlib.sha256(data).hexdigest(),
            "digests": {task: _digest(*both) for task, both in similarities.items()},
        }
    text = json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    write_together({**files, path: (text + "\n").encode("utf-8")})
    return path


def read_results(path: str | Path) -> dict[str, Any]:
    """Read the content of a results file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON, a field that is given twice, not a results file, of a later format, or a field of the
            wrong type.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such results file")
    content = read_json(path, once=True)
    if not isinstance(content, dict) or "format" not in content:
        raise ValueError(f"{path}: not a results file: the field 'format' is missing")
    if content["format"] != FORMAT:
        raise ValueError(f"{path}: format must be {FORMAT}, got {content['format']!r:.80}")
    check_results(content, path)
    return content


def read_similarities(path: str | Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Read task to (similarities, gold) of a results file ``NAME.json``.

    Raises:
        FileNotFoundError: the file beside it is missing.
        ValueError: the results hold no similarities, those of another run, or the file is damaged.
    """
    entry = read_results(path).get("similarities")
    if not entry:
        raise ValueError(f"{path}: holds no similarities")
    beside = Path(path).parent / entry["file"]
    if not beside.is_file():
        raise FileNotFoundError(f"{beside}: no such file, {Path(path).name} refers to it")
    data, digests = beside.read_bytes(), entry.get("digests")
    newer = hashlib.sha256(data).hexdigest() != entry["sha256"]
    differs = f"{beside}: not the similarities of {Path(path).name}, its sha256 differs"
    if newer and not digests:
        raise ValueError(differs)
    try:
        found = unpack_similarities(data)
    except (KeyError, ValueError, IndexError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{beside}: holds no similarities: {error!r:.200}") from error
    if newer:  # a writer that added a task was killed before it replaced the results
        if {task: _digest(*found[task]) for task in digests if task in found} != digests:
            raise ValueError(differs)
        return {task: found[task] for task in digests}
    return found
