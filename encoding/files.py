"""Encode a file of texts to a file of embeddings in bounded memory, and continue after a kill.

Each row of the input is a row of the output, blank rows included. The output is written chunk by chunk. A record
beside it (``OUT.json``) holds the input, the settings and the number of rows that are safe on disk. ``--shard i/n``
makes one of n parts, for any scheduler; ``merge_shards`` joins them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from csekit.encoding.chunks import NoTokensError
from csekit.encoding.delimited import unique_names
from csekit.encoding.encoder import TextEncoder, first_not_finite, layers_of, tokenizer_digest, weights_digest
from csekit.encoding.stores import (
    DTYPES,
    check_apart,
    check_rows,
    check_shards,
    first_difference,
    join_arrays,
    load_record,
    open_sink,
    output_kind,
    read_record,
    record_path,
    shard_records,
    source_of,
    write_record,
)
from csekit.encoding.text_files import CorpusError, file_columns, file_kind, read_batches, sha256, shown

#: Rows in a chunk. A killed run continues after the last whole chunk.
CHUNK_ROWS = 16_384


@dataclass(frozen=True)
class TextColumn:
    """One column of texts in a file.

    Arguments:
        path: ``.txt``, ``.csv``, ``.tsv``, ``.json``, ``.jsonl`` (each also ``.gz``, ``.xz``) or ``.parquet``.
        name: name of the column.
    """

    path: Path
    name: str

    def batches(self) -> Iterator[list[str]]:
        """Yield the texts in order. Raises CorpusError: a cell is not text; the message names file and line."""
        if file_kind(self.path) == "parquet":
            yield from self._parquet()
            return
        for batch in read_batches(self.path, [self.name]):
            texts = list(batch.cells[0])
            for line, cell in zip(batch.lines, texts, strict=True) if not _all_text(texts) else ():
                if not _all_text([cell]):
                    raise self._no_text(cell, f"line {line}")
            yield texts

    def _parquet(self) -> Iterator[list[str]]:
        import pyarrow.parquet as pq

        row = 0
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(columns=[self.name], batch_size=10_000):
                texts = batch.column(0).to_pylist()
                if None in texts:
                    raise self._no_text(None, f"row {row + texts.index(None) + 1}")
                row += len(texts)
                yield texts

    def _no_text(self, cell: Any, where: str) -> CorpusError:
        return CorpusError(f"{self.path}, {where}: column {self.name!r} holds {shown(cell)}, not text")

    def chunks(self, start: int, stop: int, size: int) -> Iterator[list[str]]:
        """Yield the texts of the rows from ``start`` to ``stop``, ``size`` at a time."""
        texts: list[str] = []
        row = 0
        for batch in self.batches():
            texts += batch[max(0, start - row) : max(0, stop - row)]
            row += len(batch)
            while len(texts) >= size:
                yield texts[:size]
                texts = texts[size:]
            if row >= stop:
                break
        if texts:
            yield texts


def _all_text(cells: list[Any]) -> bool:
    """Tell whether all cells are strings that UTF-8 can hold (JSON allows halves of surrogate pairs)."""
    try:
        return set(map(type, cells)) <= {str} and "".join(cells).encode() is not None
    except UnicodeEncodeError:
        return False


def text_column(path: Path, column: str | None = None) -> TextColumn:
    """Find the column to encode.

    Raises:
        FileNotFoundError: there is no such file.
        CorpusError: there is no such column, or several hold text and none is named.
    """
    if not path.is_file():
        if path.exists():
            raise CorpusError(f"{path}: must be a file, got {'a folder' if path.is_dir() else 'a pipe or a device'}")
        raise FileNotFoundError(f"{path}: no such file")
    if file_kind(path) == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            schema = pq.read_schema(path)
        except pa.ArrowException as error:
            raise CorpusError(f"{path}: not readable as parquet ({error})") from None
        unique_names(schema.names, path, what=": the schema")
        texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        kinds = {field.name: field.type for field in schema}
        kinds |= {name: kind.value_type for name, kind in kinds.items() if pa.types.is_dictionary(kind)}
        available = {name: any(is_text(kind) for is_text in texts) for name, kind in kinds.items()}
    else:
        available = file_columns(path)
    found = [name for name, holds_text in available.items() if holds_text]
    if column is None:
        if len(found) != 1:
            raise CorpusError(
                f"{path}: {len(found)} columns hold text, name one; the columns are {_listed(available)}"
            )
        return TextColumn(path, found[0])
    if column not in available:
        raise CorpusError(f"{path}: no column {column!r}; the columns are {_listed(available)}")
    if file_kind(path) == "parquet" and column not in found:
        raise CorpusError(f"{path}: column {column!r} holds no text")
    return TextColumn(path, column)


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"


def parse_shard(text: str) -> tuple[int, int]:
    """Turn '2/8' into (2, 8). Raises ValueError: not of the form i/n with 1 ≤ i ≤ n."""
    parts = text.split("/")
    if len(parts) == 2 and all(part.isascii() and part.isdecimal() for part in parts):
        i, n = map(int, parts)
        if 1 <= i <= n:
            return i, n
    raise ValueError(f"shard must be i/n with 1 <= i <= n, such as 2/8, got {text!r}")


def shard_path(output: Path, shard: tuple[int, int]) -> Path:
    """Return the path of one shard of an array: ``OUT.2-of-8.npy`` for ``OUT.npy``."""
    return output.with_name(f"{output.stem}.{shard[0]}-of-{shard[1]}{output.suffix}")


def encode_file(
    encoder: TextEncoder,
    input_file: str | Path,
    output: str | Path,
    *,
    column: str | None = None,
    dtype: str = "float32",
    shard: str = "1/1",
    chunk_rows: int = CHUNK_ROWS,
    num_workers: int = 1,
    overwrite: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Encode every row of a file. After a kill, the same call continues; a finished output is left as it is.

    Arguments:
        input_file: see :class:`TextColumn`.
        output: ``OUT.npy`` ((N, H), for ``numpy.load(…, mmap_mode="r")``), or ``OUT.parquet``, a folder of parquet
            files with the columns ``row``, ``text`` and ``embedding``.
        column: name of the column to encode; needed where several hold text.
        dtype: 'float32' or 'float16'.
        shard: 'i/n' encodes the i-th of n parts of the rows. A shard of an array is a file of its own; a shard of
            parquet is files in the common folder. See ``merge_shards``.
        chunk_rows: rows that are sorted by length, encoded and written at a time. More rows need more memory, and a
            kill loses more work.
        num_workers: number of processes, see ``workers.WorkerPool``.
        overwrite: start anew even if an output exists.

    Returns:
        the record in ``OUT.json``.

    Raises:
        ValueError: an argument is not allowed; the input lies in the output; the output was made from another input or
            with other settings; an embedding holds NaN or infinite values (the message names the row; rows before its
            chunk stay).
        FileNotFoundError: there is no such input.
        CorpusError: the input holds something that is not text.
    """
    part, output = parse_shard(shard), Path(output)
    kind = output_kind(output)
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(repr, DTYPES))}, got {dtype!r}")
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}")
    encoder.check_settings(num_workers)
    source = text_column(Path(input_file), column)
    rows = sum(map(len, source.batches()))  # this also checks that every cell is text
    if rows < part[1]:
        raise CorpusError(f"{source.path}: {rows} rows cannot make {part[1]} {'parts' if part[1] > 1 else 'output'}")
    start, stop = (rows * i // part[1] for i in (part[0] - 1, part[0]))
    settings: dict[str, Any] = {
        "input": {"name": source.path.name, "sha256": sha256([source.path]), "column": source.name, "rows": rows},
        "encoder": encoder_settings(encoder),
        "output": {"kind": kind, "dtype": dtype, "chunk_rows": chunk_rows},
        "shard": {"index": part[0], "of": part[1], "start": start, "stop": stop},
    }
    target = shard_path(output, part) if kind == "npy" and part[1] > 1 else output
    path = record_path(target, part)
    check_apart(source.path, target, path)
    record = {} if overwrite else read_record(path, settings)
    record = record or {"name": encoder.name, "settings": settings, "done": 0, "truncated": 0, "complete": False}
    if not record["complete"]:
        record["source"] = source_of(encoder.loading, source.path, path.parent)
        _go_on(encoder, source, target, path, record, num_workers, progress)
    elif kind == "npy" and not target.is_file():
        raise ValueError(f"{target}: missing, {path.name} says that it is complete: say overwrite")
    elif kind == "parquet" and part[1] == 1:
        check_rows(target, rows)
    return record


def encoder_settings(encoder: TextEncoder) -> dict[str, Any]:
    """Return what decides an encoder's vectors, as plain values: its description without its name, the layers behind
    its pooling, and the digests of its weights and tokenizer; prompt, role and the digest of its modules' settings
    where it has one."""
    settings = {**encoder.describe(), "lowercase": encoder.lowercase, "layers": layers_of(encoder.model)}
    settings["weights"] = weights_digest(encoder.model)
    del settings["name"]  # the folder may be renamed
    further = {"prompt": encoder.prompt, "role": encoder.role, "modules": encoder.modules}
    further["tokenizer"] = tokenizer_digest(encoder)
    return settings | {name: value for name, value in further.items() if value is not None}


def _go_on(
    encoder: TextEncoder,
    source: TextColumn,
    target: Path,
    path: Path,
    record: dict[str, Any],
    num_workers: int,
    progress: bool,
) -> None:
    """Encode and write from the last safe row to the end of the shard."""
    place, form = record["settings"]["shard"], record["settings"]["output"]
    first = place["start"] + record["done"]
    read: list[list[str]] = []
    chunks = _remembered(source.chunks(first, place["stop"], form["chunk_rows"]), read)
    total, before = place["stop"] - place["start"], record["truncated"]
    if record["done"] == 0:
        write_record(path, record)
    shard = (place["index"], place["of"])
    with (
        open_sink(target, form["kind"], form["dtype"], total, place["start"], record["done"], shard) as sink,
        tqdm(
            total=total, initial=record["done"], desc=f"encode {source.path.name}", unit=" rows", disable=not progress
        ) as bar,
        closing(encoder.encode_chunks(chunks, num_workers, bar.update)) as found,
    ):
        for rows_nH in _row_named(found, encoder, source.path, record, read):
            texts = read.pop(0)
            _check_finite(rows_nH, texts, source.path, place["start"] + record["done"], form["dtype"])
            sink.write(record["done"], texts, rows_nH)
            record |= {"done": record["done"] + len(texts), "truncated": before + encoder.truncated}
            record["size"] = rows_nH.shape[1]
            write_record(path, record)
            bar.update(record["done"] - bar.n)  # the chunk's repeated texts
        sink.finish(record["done"])
    if record["done"] != total:
        raise ValueError(f"{source.path}: changed while it was read, from {total} rows to {record['done']}")
    if form["kind"] == "parquet" and shard[1] == 1:
        check_rows(target, total)
    record["complete"] = True
    write_record(path, record)


def _row_named(
    found: Iterator[np.ndarray], encoder: TextEncoder, path: Path, record: dict[str, Any], read: list[list[str]]
) -> Iterator[np.ndarray]:
    """Yield the embeddings. Raises CorpusError with file and row for a text of which the tokenizer makes no token; it
    is among the chunks that were read and are not done."""
    try:
        yield from found
    except NoTokensError as error:
        given = encoder.given([text for texts in read for text in texts])
        row = record["settings"]["shard"]["start"] + record["done"] + given.index(error.args[0]) + 1
        raise CorpusError(f"{path}, row {row}: {error}") from None


def _check_finite(rows_nH: np.ndarray, texts: Sequence[str], path: Path, start: int, dtype: str) -> None:
    """Raise ValueError where a row would be written as NaN or infinite values; ``start`` is the first row's place."""
    with np.errstate(over="ignore"):
        row = first_not_finite(rows_nH.astype(dtype, copy=False))
    if row is not None:
        advice = ", which float32 would hold" if np.isfinite(rows_nH[row]).all() else ""
        what = f"the embedding of {texts[row]!r:.100} holds NaN or infinite values in {dtype}{advice}"
        raise ValueError(f"{path}, row {start + row + 1}: {what}")


def _remembered(chunks: Iterator[list[str]], read: list[list[str]]) -> Iterator[list[str]]:
    for texts in chunks:
        read.append(texts)
        yield texts


def merge_shards(output: str | Path, keep: bool = False, tell: Callable[[str], object] = lambda line: None) -> Path:
    """Join the shards of ``output`` after a check that none is missing and all have the same input and settings.

    Arrays are copied in blocks; parquet files stay where they are. The record of the whole is written before the
    shards are deleted; the same call goes on with this after a kill.

    Arguments:
        keep: do not delete the shards of an array.
        tell: called with a line about what is joined.

    Returns:
        the path of the whole.

    Raises:
        FileNotFoundError: there is no shard, or one is missing.
        ValueError: a shard is not complete, or has another input or other settings; there is another output of that
            name.
    """
    output = Path(output)
    kind = output_kind(output)
    if left := _left_of_shards(output, kind):
        for file in left:
            file.unlink(missing_ok=True)
        return output
    records: Sequence[tuple[Path, dict[str, Any]]] = check_shards(output, kind)
    tell(f"{len(records)} shards, {sum(record['done'] for _, record in records):,} rows")
    whole = {**records[0][1], "done": 0, "truncated": sum(record["truncated"] for _, record in records)}
    rows = whole["settings"]["input"]["rows"]
    place = {"index": 1, "of": 1, "start": 0, "stop": rows}
    whole["settings"] = {**whole["settings"], "shard": place}
    path = record_path(output, (1, 1))
    known = path.is_file() and first_difference(load_record(path)["settings"], whole["settings"]) is None
    other = path if kind == "parquet" or not output.exists() else output
    if other.exists() and not known:
        raise ValueError(f"{other}: exists, and not of these shards: remove it or move it away")
    if kind == "parquet":
        check_rows(output, rows)
    else:
        count = len(records)
        if not known:  # a merge that was killed knows its own array by it
            write_record(path, {**whole, "complete": False})
        join_arrays(output, [shard_path(output, (i, count)) for i in range(1, count + 1)], rows)
    write_record(path, {**whole, "done": rows})
    for path, record in records if not keep or kind == "parquet" else ():
        if kind == "npy":
            place = record["settings"]["shard"]
            shard_path(output, (place["index"], place["of"])).unlink()
        path.unlink()
    return output


def _left_of_shards(output: Path, kind: str) -> list[Path]:
    """Return what a merge that was killed behind its last record did not delete: some of the shards, not all."""
    path = record_path(output, (1, 1))
    if not path.is_file() or not output.exists() or not (whole := load_record(path))["complete"]:
        return []
    left: list[Path] = []
    pieces = 0
    for place in shard_records(output, kind):
        record = load_record(place)
        settings = {**record["settings"], "shard": whole["settings"]["shard"]}
        if not record["complete"] or first_difference(whole["settings"], settings) is not None:
            return []
        array = [place.with_name(place.name.removesuffix(".json"))] if kind == "npy" else []
        pieces = record["settings"]["shard"]["of"] * (1 + len(array))
        left += [file for file in (*array, place) if file.is_file()]
    return left if len(left) < pieces else []
