"""Store embeddings as an array or a folder of parquet files, chunk by chunk, with a record of what is done.

A chunk is on disk before the record counts it, and the record is replaced in one step. After a kill the record is at
most one chunk behind; that chunk is written again in the same place.
"""

import glob
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from csekit.encoding.json_files import read_json
from csekit.encoding.provenance import write_atomically
from csekit.encoding.schema import Count, Schema, check_schema
from csekit.modeling.drafts import full_disk_told

DTYPES = ("float32", "float16")
_VERSION = 1
_COPY_ROWS = 65_536
#: Name of a file that Ray wrote into a parquet folder: of the data set, if it has one, of the write, of the task.
_OF_RAY = re.compile(r"([0-9A-Za-z]+_)?[0-9a-f]{32}_[0-9]{6}.*\.parquet")


class Sink(Protocol):
    """A place that chunks are written to. ``row`` counts from the first row of the shard."""

    def write(self, row: int, texts: Sequence[str], rows_nH: np.ndarray) -> None: ...

    def finish(self, rows: int) -> None: ...


def output_kind(output: Path) -> str:
    """Return 'npy' or 'parquet'. Raises ValueError: another ending."""
    if output.suffix not in (".npy", ".parquet"):
        raise ValueError(f"output must end in .npy or .parquet, got {output.name!r}")
    return output.suffix[1:]


def record_path(target: Path, shard: tuple[int, int]) -> Path:
    """Return ``OUT.npy.json``, or a file in the parquet folder whose leading underscore makes readers skip it."""
    if target.suffix == ".npy":
        return target.with_name(target.name + ".json")
    return target / ("_encode.json" if shard[1] == 1 else f"_encode.{shard[0]}-of-{shard[1]}.json")


def check_apart(source: Path, output: Path, *others: Path) -> None:
    """Raise ValueError where the input of an encoding is its output, or lies in it: it would be deleted or replaced.

    Arguments:
        others: further files that the encoding writes.
    """
    around = {source.resolve(), *source.resolve().parents}
    if any(path.resolve() in around for path in (output, *others)):
        raise ValueError(f"{output}: must not hold the input {source.name}, which would be lost: choose another")


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Replace the record in one step."""
    text = json.dumps({**record, "version": _VERSION}, indent=2, sort_keys=True, ensure_ascii=False)
    write_atomically(path, (text + "\n").encode("utf-8"))


def source_of(loading: Mapping[str, Any], input_file: Path, folder: Path) -> dict[str, Any]:
    """Return where the model and the input are, seen from ``folder``, and what else ``load_encoder`` was told.

    A local path begins with a dot, unlike a name on the Hub.
    """
    further = dict(loading)
    model = further.pop("model", None)
    if model is not None and Path(model).expanduser().exists():
        model = _relative(Path(model).expanduser(), folder)
    return {"model": model, "loading": further, "input": _relative(input_file, folder)}


def _relative(path: Path, folder: Path) -> str:
    try:
        way = Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:  # another drive of Windows
        way = path.name
    return way if way.startswith("../") else f"./{way}"


class _Input(Schema):
    name: str
    sha256: str
    column: str
    rows: Count


class _Output(Schema):
    kind: str
    dtype: str


class _Shard(Schema):
    index: Count
    of: Count
    start: Count
    stop: Count


class _Settings(Schema):
    input: _Input
    output: _Output
    shard: _Shard
    encoder: dict[str, Any]


class _Source(Schema):
    model: str | None = None
    loading: dict[str, Any]
    input: str


class _Record(Schema):
    source: _Source | None = None
    size: Count | None = None
    settings: _Settings
    done: Count
    truncated: Count
    complete: bool


def load_record(path: Path) -> dict[str, Any]:
    """Read a record. Raises ValueError: the file is not one, lacks a field, or is of another version."""
    record = read_json(path)
    if not isinstance(record, dict) or record.pop("version", None) != _VERSION:
        raise ValueError(f"{path}: not a record of an encoding, or of another version")
    check_schema(_Record, record, path)
    place = record["settings"]["shard"]
    rows = place["stop"] - place["start"]
    if rows < 0 or record["done"] > rows or (record["complete"] and record["done"] < rows):
        raise ValueError(f"{path}: done must fit the shard of {rows} rows, got {record['done']}")
    return record


def read_record(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Read the record of a run to continue; empty where there is none.

    Raises:
        ValueError: it has another input or other settings (the message names the first that differs), or there is an
            output without a record, or a parquet folder that holds another encoding.
    """
    if not path.is_file():
        if path.name.endswith(".npy.json"):
            output = path.with_name(path.name.removesuffix(".json"))
            others = [output] if output.exists() else []
        else:
            others = _other_files(path.parent, _Shard(**settings["shard"]))
        if others:
            raise ValueError(f"{others[0]}: exists, and not of this command: choose another name or say overwrite")
        return {}
    record = load_record(path)
    known = record["settings"]
    settings = {**settings, "encoder": comparable(known["encoder"], settings["encoder"])}
    if difference := first_difference(known, settings):
        name, old, new = difference
        raise ValueError(
            f"{path}: {name} was {old!r} there and is {new!r} now: go on as it was begun, choose another name or "
            "say overwrite"
        )
    return record


def comparable(recorded: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an encoder's settings without what a record of an earlier version does not hold."""
    later = ("modules", "tokenizer", "lowercase", "layers")
    return {name: value for name, value in settings.items() if name not in later or name in recorded}


def differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, old value, new value) of each field that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield name, old, new


def first_difference(old: Any, new: Any) -> tuple[str, Any, Any] | None:
    """Return (name, old value, new value) of the first field that differs; None where all are equal."""
    return next(differences(old, new), None)


class ArraySink:
    """A ``.npy`` file that has a temporary name until it is whole. It is not memory-mapped: mapped pages count as
    resident memory."""

    def __init__(self, target: Path, dtype: str, rows: int, done: int) -> None:
        self.target, self.dtype, self.rows = target, np.dtype(dtype), rows
        self.draft = target.with_name(target.name + ".partial")
        path = target if done == rows and not self.draft.exists() else self.draft  # killed just behind the last step
        if done and not path.exists():
            raise ValueError(f"{path}: missing, its record says that {done} rows are in it: say overwrite")
        self.file: Any = open(path, "r+b" if done else "w+b")  # noqa: SIM115
        self.offset = 0
        if done:
            self._read_header(done)

    def _read_header(self, done: int) -> None:
        try:
            np.lib.format.read_magic(self.file)
            shape, _, _ = np.lib.format.read_array_header_1_0(self.file)
        except ValueError as error:
            raise ValueError(f"{self.file.name}: not the array of its record: {error}; say overwrite") from None
        if shape[:1] != (self.rows,):
            raise ValueError(f"{self.file.name}: has shape {shape}, {self.rows} rows are wanted: say overwrite")
        self.offset = self.file.tell()
        if os.fstat(self.file.fileno()).st_size < self.offset + done * math.prod(shape[1:]) * self.dtype.itemsize:
            raise ValueError(f"{self.file.name}: holds fewer than the {done} rows of its record: say overwrite")

    def write(self, row: int, texts: Sequence[str], rows_nH: np.ndarray) -> None:
        rows = np.ascontiguousarray(rows_nH, dtype=self.dtype)
        if not self.offset:
            descr = np.lib.format.dtype_to_descr(self.dtype)
            header = {"descr": descr, "fortran_order": False, "shape": (self.rows, rows.shape[1])}
            np.lib.format.write_array_header_1_0(self.file, header)
            self.offset = self.file.tell()
        self.file.seek(self.offset + row * rows.shape[1] * self.dtype.itemsize)
        self.file.write(rows.tobytes())
        self.file.flush()
        os.fsync(self.file.fileno())

    def finish(self, rows: int) -> None:
        if rows == self.rows and self.draft.exists():
            os.replace(self.draft, self.target)


class ParquetSink:
    """A folder with one parquet file for each chunk, named by its first row and written whole or not at all."""

    def __init__(self, folder: Path, dtype: str, start: int) -> None:
        self.folder, self.dtype, self.start = folder, dtype, start
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, row: int, texts: Sequence[str], rows_nH: np.ndarray) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        values = pa.array(np.ascontiguousarray(rows_nH, dtype=self.dtype).reshape(-1))
        first = self.start + row
        table = pa.table(
            {
                "row": pa.array(np.arange(first, first + len(texts))),
                "text": pa.array(texts, pa.large_string()),
                "embedding": pa.FixedSizeListArray.from_arrays(values, rows_nH.shape[1]),
            }
        )
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        write_atomically(self.folder / f"rows-{first:012d}.parquet", sink.getvalue().to_pybytes())

    def finish(self, rows: int) -> None:
        pass


@contextmanager
def open_sink(
    target: Path, kind: str, dtype: str, rows: int, start: int, done: int, shard: tuple[int, int] = (1, 1)
) -> Iterator[Sink]:
    """Open the sink of a shard of ``rows`` rows from row ``start`` of the input, ``done`` of them written.

    Where none is, the files of an earlier encoding in a parquet folder are deleted. The shard's record must be there
    by then: after a kill it says that the folder is unfinished, and the same call deletes the rest.

    Raises:
        DiskFullError: the disk is full. What the record counts stays.
    """
    if kind == "parquet":
        sink = ParquetSink(target, dtype, start)
        place = _Shard(index=shard[0], of=shard[1], start=start, stop=start + rows)
        for path in [] if done else _other_files(target, place):
            path.unlink(missing_ok=True)  # another shard may delete it, too
        yield sink
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with full_disk_told(target):
        array = ArraySink(target, dtype, rows, done)
        try:
            yield array
        finally:
            array.file.close()


def _other_files(folder: Path, place: _Shard) -> list[Path]:
    """Return what an earlier encoding left in a parquet folder, records first.

    Records of this shard and of the other shards of as many are not among it, nor the rows of those others.
    """
    rows = row_files(folder)  # before the records: a shard that starts meanwhile has its record before its rows
    others: list[Path] = []
    taken: list[dict[str, Any]] = []
    for path in sorted(folder.glob("_encode*.json")):
        found = re.fullmatch(r"_encode(?:\.([0-9]+)-of-([0-9]+))?\.json", path.name)
        if found is None:
            continue
        index, of = (int(number) for number in found.groups("1"))
        if of != place.of:
            others.append(path)
        elif index != place.index:
            taken.append(load_record(path)["settings"]["shard"])
    for first, path in rows:
        own = place.start <= first < place.stop
        if own or not any(other["start"] <= first < other["stop"] for other in taken):
            others.append(path)
    return others + [path for path in sorted(folder.glob("*.parquet")) if _OF_RAY.fullmatch(path.name)]


def row_files(folder: Path) -> list[tuple[int, Path]]:
    """Return (first row, path) of the files of rows, sorted."""
    files = {path: path.stem.removeprefix("rows-") for path in folder.glob("rows-*.parquet")}
    return sorted((int(first), path) for path, first in files.items() if re.fullmatch("[0-9]{1,18}", first))


def shard_records(output: Path, kind: str) -> list[Path]:
    """Return the files of the records of shards that are there."""
    if kind == "parquet":
        return sorted(output.glob("_encode.*-of-*.json"))
    form = re.compile(re.escape(output.stem) + r"\.[0-9]+-of-[0-9]+\.npy\.json")  # not those of OUT.v2.npy
    files = output.parent.glob(f"{glob.escape(output.stem)}.*-of-*.npy.json")
    return sorted(path for path in files if form.fullmatch(path.name))


def check_shards(output: Path, kind: str) -> list[tuple[Path, dict[str, Any]]]:
    """Return the records of all shards in order.

    Raises:
        FileNotFoundError: there is no shard, or one is missing.
        ValueError: a shard is not complete, or has another input or other settings.
    """
    found = shard_records(output, kind)
    if not found:
        raise FileNotFoundError(f"{output}: no shard of it is there")
    records = {path: load_record(path) for path in found}
    count = next(iter(records.values()))["settings"]["shard"]["of"]
    ordered: list[tuple[Path, dict[str, Any]]] = []
    for index in range(1, count + 1):
        place = (index, count)
        own = [path for path in found if path.name.split(".")[-2 if kind == "parquet" else -3] == _tag(place)]
        if not own:
            raise FileNotFoundError(f"{output}: shard {index}/{count} is missing")
        ordered.append((own[0], records.pop(own[0])))
    if records:
        raise ValueError(f"{next(iter(records))}: not one of {count} shards: remove what is left of another run")
    common = [{**record["settings"], "shard": None} for _, record in ordered]
    for (path, record), settings in zip(ordered, common, strict=True):
        if difference := first_difference(common[0], settings):
            raise ValueError(f"{path}: {difference[0]} is {difference[2]!r}, in shard 1 {difference[1]!r}")
        place_of = record["settings"]["shard"]
        if not record["complete"]:
            wanted = place_of["stop"] - place_of["start"]
            raise ValueError(f"{path}: not complete, {record['done']} of {wanted} rows")
    return ordered


def check_rows(folder: Path, rows: int) -> None:
    """Raise ValueError where the parquet files do not hold each row from 0 to ``rows`` exactly once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = 0
    for first, path in row_files(folder):
        if first != wanted:
            what = "is missing" if first > wanted else "is there twice"
            raise ValueError(f"{folder}: row {min(first, wanted)} {what}, {path.name} begins with {first}")
        try:
            wanted += pq.read_metadata(path).num_rows
        except pa.ArrowException as error:
            raise ValueError(f"{path}: not readable as parquet ({error})") from None
    if wanted != rows:
        raise ValueError(f"{folder}: {wanted} rows are there instead of {rows}")


def _tag(shard: tuple[int, int]) -> str:
    return f"{shard[0]}-of-{shard[1]}"


def join_arrays(output: Path, parts: Sequence[Path], rows: int) -> None:
    """Copy several arrays into one, in blocks; it appears whole or not at all.

    Raises:
        ValueError: a part is missing, or the parts do not have ``rows`` rows together.
        OSError: the disk has too little space.
    """
    arrays = [np.load(part, mmap_mode="r") for part in parts if part.is_file()]
    if len(arrays) != len(parts) or sum(map(len, arrays)) != rows:
        found = sum(map(len, arrays))
        raise ValueError(f"{output}: {len(arrays)} of {len(parts)} shards with {found} of {rows} rows are there")
    draft = output.with_name(output.name + ".partial")
    draft.unlink(missing_ok=True)  # of a merge that was killed
    if shutil.disk_usage(output.parent).free < sum(array.nbytes for array in arrays):
        raise OSError(f"{output.parent}: too little space on the disk for {output.name}")
    with full_disk_told(output), open(draft, "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(arrays[0].dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (rows, arrays[0].shape[1])})
        for array in arrays:
            for start in range(0, len(array), _COPY_ROWS):
                file.write(array[start : start + _COPY_ROWS].tobytes())
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, output)
