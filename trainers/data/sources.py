"""Sources of training texts, files or tables of ``datasets``, and the choice of their columns."""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from csekit.encoding.delimited import unique_names
from csekit.encoding.text_files import (
    ROWS,
    CorpusError,
    RowBatch,
    Scan,
    file_columns,
    file_kind,
    read_batches,
    sha256,
)
from csekit.modeling.drafts import DiskFullError, full_disk_told


@dataclass(frozen=True)
class Source:
    """The source of the rows: a table of ``datasets`` (map-style or streaming), or files.

    Arguments:
        checksum: SHA-256 of the concatenated files, where a table was read from them.
    """

    columns: tuple[str, ...]
    name: str
    paths: tuple[Path, ...] = ()
    table: Any = None
    checksum: str | None = None

    def checked(self, scan: Scan) -> Iterator[tuple[list[int], list[list[str]]]]:
        """Yield the usable rows in batches: their places among all rows, and their texts per column."""
        if self.table is not None:
            for batch in self._table_batches():
                keep, texts = scan.check(batch, self.name, unit="row")
                yield [batch.lines[i] - 1 for i in keep], texts
            return
        for path in self.paths:
            for batch in read_batches(path, self.columns):
                start = scan.rows
                keep, texts = scan.check(batch, str(path))
                yield [start + i for i in keep], texts
            scan.only_numbers(str(path))

    def place(self, texts: Sequence[str]) -> str:
        """Return where the first row with these texts is, for messages. This reads the source again."""
        batches: Iterator[tuple[str, RowBatch]]
        if self.table is not None:
            batches = ((f"{self.name}, row", batch) for batch in self._table_batches())
        else:
            batches = ((f"{path}, line", b) for path in self.paths for b in read_batches(path, self.columns))
        for where, batch in batches:
            for line, row in zip(batch.lines, zip(*batch.cells, strict=True), strict=True):
                if row == tuple(texts):
                    return f"{where} {line}"
        return self.name

    def _table_batches(self) -> Iterator[RowBatch]:
        start = 1
        for batch in self.table.iter(batch_size=ROWS if isinstance(self.table, datasets.Dataset) else 1000):
            cells = [batch[column] for column in self.columns]
            yield RowBatch(range(start, start + len(cells[0])), cells)
            start += len(cells[0])


def hub_name(dataset_name: str) -> str:
    """Return the name on the Hub, or the last part of a local folder's path."""
    return Path(dataset_name).resolve().name if os.path.exists(dataset_name) else dataset_name


def file_source(
    paths: list[Path],
    columns: str | Sequence[str] | None,
    streaming: bool,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Source:
    """Check that files exist and are not empty, and resolve their columns.

    Raises:
        FileNotFoundError: no such file.
        CorpusError: a file that cannot be read, files of several kinds, or columns that are missing or unclear.
    """
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"train_file {path} does not exist")
        if path.is_dir():
            raise CorpusError(f"train_file must be a file, got the folder {path}")
        if path.stat().st_size == 0:
            raise CorpusError(f"{path}: the file is empty")
    kinds = {file_kind(path) for path in paths}
    if len(kinds) != 1:
        raise CorpusError(f"train_file must name files of one kind, got {', '.join(sorted(kinds)) or 'none'}")
    name = "+".join(path.name for path in paths)
    if kinds == {"parquet"}:
        files = [str(path) for path in paths]
        names = [glob.escape(file) for file in files]  # ``datasets`` takes a name for a pattern
        for path in paths:
            _check_parquet(path)
        cache = None if cache_dir is None else str(cache_dir)
        checksum = None if streaming else sha256(paths)
        # ``datasets`` tells a file in its cache by its path and time; a copy may have the time of the earlier file
        config = None if checksum is None else f"sha256-{checksum[:32]}"
        try:
            table = datasets.load_dataset(
                "parquet", config, data_files=names, split="train", streaming=streaming, cache_dir=cache
            )
        except (datasets.exceptions.DatasetGenerationError, pa.ArrowException) as error:
            _tell_full_disk(error.__cause__, Path(cache or datasets.config.HF_DATASETS_CACHE))
            raise CorpusError(f"{', '.join(files)}: not readable as parquet ({error.__cause__ or error})") from None
        source = table_source(table, columns, name)
        return Source(source.columns, name, tuple(paths), source.table, checksum)
    available = [file_columns(path) for path in paths]
    chosen = [resolve_columns(found, columns, str(path)) for found, path in zip(available, paths, strict=True)]
    for path, other in zip(paths, chosen, strict=True):
        if other != chosen[0]:
            raise CorpusError(f"{path}: columns {', '.join(other)}, but {paths[0]} has {', '.join(chosen[0])}")
    return Source(chosen[0], name, tuple(paths))


def _tell_full_disk(error: BaseException | None, cache: Path) -> None:
    """Raise DiskFullError if ``datasets`` could not write its cache because the disk is full."""
    if not isinstance(error, OSError):
        return
    try:
        with full_disk_told(cache):
            raise error
    except DiskFullError as full:
        raise full from None
    except OSError:
        return  # of the file that is read


def _check_parquet(path: Path) -> None:
    """Raise CorpusError for a file that is not parquet, has no rows or a column twice, which ``datasets`` says in
    other words."""
    try:
        metadata = pq.read_metadata(path)
        names = metadata.schema.to_arrow_schema().names
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{path}: not readable as parquet ({error})") from None
    unique_names(names, path, what=": the schema")
    if not metadata.num_rows:
        raise CorpusError(f"{path}: the file has no rows")


def table_source(table: Any, columns: str | Sequence[str] | None, name: str) -> Source:
    """Resolve the columns of a table. Raises CorpusError if one is missing, unclear or holds no text."""
    features = table.features
    if features is None:  # a stream without features
        available = {column: isinstance(value, str) for column, value in _first_values(table).items()}
    else:
        available = {column: _is_text(feature) for column, feature in features.items()}
    chosen = resolve_columns(available, columns, name)
    for column in chosen:
        if not available[column]:
            row = next(iter(table.select_columns([column])), {column: None})
            value = f"{row[column]!r}"[:80]
            raise CorpusError(
                f"{name}, row 1: column {column!r} holds {value}, not text ({(features or {}).get(column)})"
            )
    return Source(chosen, name, table=table.select_columns(list(chosen)))


def _first_values(table: Any, rows: int = 1000) -> dict[str, Any]:
    """Return the first value of each column that is not null, among the first rows of a stream."""
    found: dict[str, Any] = {}
    for row in islice(table, rows):
        found |= {column: value for column, value in row.items() if found.get(column) is None}
        if None not in found.values():
            break
    return found


def _is_text(feature: Any) -> bool:
    return isinstance(feature, datasets.Value) and feature.dtype in ("string", "large_string", "string_view")


def resolve_columns(available: dict[str, bool], columns: str | Sequence[str] | None, where: str) -> tuple[str, ...]:
    """Choose the columns to use.

    Arguments:
        available: True for columns that hold text, by name.
        columns: the names that the user gave, or None for all columns that hold text, at most three.
        where: file or dataset, for messages.

    Raises:
        CorpusError: a column is missing, or the choice is not clear.
    """
    listed = ", ".join(available) or "none"
    if columns is None:
        found = tuple(name for name, text in available.items() if text)
        if not 1 <= len(found) <= 3:
            raise CorpusError(
                f"{where}: {len(found)} columns hold text, name the one to three to use as columns=(…); "
                f"the columns are {listed}"
            )
        return found
    chosen = (columns,) if isinstance(columns, str) else tuple(columns)
    if not 1 <= len(chosen) <= 3 or len(set(chosen)) != len(chosen):
        raise CorpusError(f"columns must be one to three different names, got {chosen}")
    missing = [column for column in chosen if column not in available]
    if missing:
        raise CorpusError(f"{where}: no column {', '.join(map(repr, missing))}; the columns are {listed}")
    return chosen
