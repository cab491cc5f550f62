"""Read sentences from files and tables in batches, with the line of each row for messages.

Each format has one parser, so that a message names the line that was read.
"""

import gzip
import hashlib
import io
import json
import lzma
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from csekit.encoding.delimited import CorpusError, delimited_rows, unique_names

ROWS = 10_000  # per batch
BLOCK = 1 << 23  # bytes read at a time
OVERLONG = 100_000  # characters

ARCHIVE_ERRORS = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)

#: Suffixes and the formats they stand for.
KINDS = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}


@dataclass(frozen=True)
class RowBatch:
    """Rows as they were read, not yet checked.

    Arguments:
        lines: for each row its line in the file, or its row number in a table, from 1.
        cells: for each column the values of these rows.
    """

    lines: Sequence[int]
    cells: Sequence[Sequence[Any]]


def file_kind(path: Path) -> str:
    """Return the format that the suffix stands for: ``text``, ``csv``, ``tsv``, ``json`` or ``parquet``.

    ``.gz`` or ``.xz`` may follow the suffix of a text format.

    Raises:
        CorpusError: the suffix is unknown.
    """
    stem = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
    kind = KINDS.get(stem.suffix.lower())
    if kind is None or (kind == "parquet" and stem is not path):
        allowed = ", ".join(KINDS)
        raise CorpusError(f"{path}: the suffix must be one of {allowed} (text formats also .gz or .xz)")
    return kind


def open_bytes(path: Path) -> Any:
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    return opener(path, "rb")


def sha256(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the concatenated raw files."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()


def undecodable(path: Path) -> CorpusError:
    """Return the error for a file that is not UTF-8, with line and byte."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                wide = number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
                hint = "it looks like UTF-16" if wide else "convert the file first, e.g. with iconv"
                return CorpusError(
                    f"{path}, line {number}: not UTF-8, byte {error.start + 1} of the line is "
                    f"0x{line[error.start]:02X}; {hint}"
                )
    return CorpusError(f"{path}: not UTF-8")


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[RowBatch]:
    """Yield all rows of a text, csv, tsv or json file.

    Raises:
        CorpusError: the file is not UTF-8, a row is broken, or the archive is damaged.
    """
    kind = file_kind(path)
    try:
        if kind == "text":
            yield from _text(path)
        elif kind == "json":
            yield from _json(path, columns)
        else:
            yield from _delimited(path, columns)
    except UnicodeDecodeError:
        raise undecodable(path) from None
    except ARCHIVE_ERRORS as error:
        raise _bad_archive(path, error) from None


def _open_text(path: Path, newline: str | None) -> io.TextIOWrapper:
    """Open a file as UTF-8; ``utf-8-sig`` drops a byte order mark."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline=newline)


def _text(path: Path) -> Iterator[RowBatch]:
    number = 1
    with _open_text(path, newline=None) as file:  # CRLF and CR become LF
        while block := file.read(BLOCK):
            lines = (block + file.readline()).split("\n")
            if not lines[-1]:
                lines.pop()
            yield RowBatch(range(number, number + len(lines)), [lines])
            number += len(lines)


def _delimited(path: Path, columns: Sequence[str]) -> Iterator[RowBatch]:
    with _open_text(path, newline="") as file:
        reader = _rows(file, path)
        header = next(reader, (1, []))[1]
        unique_names(header, path, columns)
        width, places = len(header), [header.index(column) for column in columns]
        lines: list[int] = []
        rows: list[list[str]] = []
        for line, row in reader:
            if not row:
                row = [""] * width  # an empty line
            elif len(row) != width:
                raise CorpusError(f"{path}, line {line}: {len(row)} fields, the header has {width}")
            lines.append(line)
            rows.append(row)
            if len(rows) == ROWS:
                yield RowBatch(lines, [[row[i] for row in rows] for i in places])
                lines, rows = [], []
        if rows:
            yield RowBatch(lines, [[row[i] for row in rows] for i in places])


def _bad_archive(path: Path, error: Exception) -> CorpusError:
    return CorpusError(f"{path}: damaged archive ({error})")


def _rows(file: Iterable[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, fields): with quoting for commas, without for tabs (a quotation mark in a tsv is text)."""
    return delimited_rows(file, path, "\t" if file_kind(path) == "tsv" else ",")


def _json(path: Path, columns: Sequence[str]) -> Iterator[RowBatch]:
    lines: list[int] = []
    rows: list[tuple[Any, ...]] = []
    for line, row in json_objects(path):
        try:
            cells = tuple(row[column] for column in columns)
        except KeyError as error:
            raise CorpusError(f"{path}, line {line}: no field {error}, it has {', '.join(row)}") from None
        lines.append(line)
        rows.append(cells)
        if len(rows) == ROWS:
            yield RowBatch(lines, list(zip(*rows, strict=True)))
            lines, rows = [], []
    if rows:
        yield RowBatch(lines, list(zip(*rows, strict=True)))


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, object) of JSON lines, or (place, object) of one JSON array, which is read as a whole."""
    with _open_text(path, newline=None) as file:
        start = file.read(1)
        while start.isspace():
            start = file.read(1)
        file.seek(0)
        items = enumerate(_parsed(file.read(), path, 1), 1) if start == "[" else _json_lines(file, path)
        for line, row in items:
            if not isinstance(row, dict):
                raise CorpusError(f"{path}, line {line}: an object is wanted, got {type(row).__name__}")
            yield line, row


def _json_lines(file: Iterable[str], path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, _parsed(line.rstrip(), path, number)


def _parsed(text: str, path: Path, line: int) -> Any:
    """Return the value of a JSON text that begins in this line. Raises CorpusError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise CorpusError(f"{path}, line {line + error.lineno - 1}: not JSON ({error.msg})") from None
    except RecursionError:
        raise CorpusError(f"{path}, line {line}: not JSON (nested too deeply)") from None
    except ValueError as error:  # a number with too many digits
        raise CorpusError(f"{path}, line {line}: not JSON ({error})") from None


def file_columns(path: Path, head: int = 1000) -> dict[str, bool]:
    """Return the columns of a file, from its header or first rows, and for each whether it holds text."""
    kind = file_kind(path)
    if kind == "text":
        return {"text": True}
    try:
        if kind == "json":
            found: dict[str, bool] = {}
            for _, (_, row) in zip(range(head), json_objects(path), strict=False):
                for name, value in row.items():  # a null is told with its line when the column is read
                    found[name] = found.get(name, True) and (value is None or isinstance(value, str))
            return found
        with _open_text(path, newline="") as file:
            reader = _rows(file, path)
            header = next(reader, (1, []))[1]
            if file_kind(path) == "csv":
                _check_comma(path, header)
            unique_names(header, path)
            rows = [row for _, (_, row) in zip(range(head), reader, strict=False) if len(row) == len(header)]
    except UnicodeDecodeError:
        raise undecodable(path) from None
    except ARCHIVE_ERRORS as error:
        raise _bad_archive(path, error) from None
    return {name: not all_numbers([row[i] for row in rows]) for i, name in enumerate(header)}


def _check_comma(path: Path, header: Sequence[str]) -> None:
    """Raise CorpusError for a header that another sign than the comma separates: each line would be one text."""
    found = header[0] if len(header) == 1 else ""
    if "\t" in found:
        raise CorpusError(f"{path}, line 1: the header has tabs and no comma: rename the file to .tsv")
    if ";" in found:
        raise CorpusError(
            f"{path}, line 1: the header has semicolons and no comma, got {found!r:.80}: save the file with commas"
        )


def shown(cell: Any) -> str:
    """Return a cell that is not text for a message, shortened."""
    return "nothing (null)" if cell is None else f"{reprlib.repr(cell)} ({type(cell).__name__})"


def all_numbers(cells: Sequence[str]) -> bool:
    """Tell whether there are non-blank cells and all of them are numbers."""
    filled = [cell for cell in cells if cell.strip()]
    return bool(filled) and all(_is_number(cell) for cell in filled)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@dataclass
class Scan:
    """Check rows batch by batch: drop blank rows, refuse cells that are not text, count duplicates and long texts.

    Arguments:
        columns: names of the columns, for messages.
        numbers_are_text: False: a column of numbers alone is an error (for formats without types).
        multiline: texts with a line break; ``first_multiline`` is the place of the first one.
        hashing: keep a 64-bit hash of each used row, 8 bytes a row, for ``duplicates``.
    """

    columns: Sequence[str]
    numbers_are_text: bool = True
    hashing: bool = True
    rows: int = 0
    blank: int = 0
    overlong: int = 0
    first_overlong: str | None = None
    multiline: int = 0
    first_multiline: str | None = None
    used: int = 0
    _hashes: list[np.ndarray] = field(default_factory=list)
    _numeric: dict[int, tuple[int, str]] | None = None

    def check(self, batch: RowBatch, where: str, unit: str = "line") -> tuple[list[int], list[list[str]]]:
        """Return the places of the rows that are used, and their texts for each column.

        Raises:
            CorpusError: a cell is not a string, or UTF-8 cannot hold it.
        """
        self.rows += len(batch.lines)
        blank: set[int] = set()
        for name, cells in zip(self.columns, batch.cells, strict=True):
            if not set(map(type, cells)) <= {str}:
                i = next(i for i, cell in enumerate(cells) if not isinstance(cell, str))
                raise CorpusError(
                    f"{where}, {unit} {batch.lines[i]}: column {name!r} holds {shown(cells[i])}, not text"
                )
            blank.update(i for i, cell in enumerate(cells) if not cell or cell.isspace())
            if max(map(len, cells), default=0) > OVERLONG:
                long = [i for i, cell in enumerate(cells) if len(cell) > OVERLONG]
                self.overlong += len(long)
                self.first_overlong = self.first_overlong or f"{Path(where).name}, {unit} {batch.lines[long[0]]}"
            if broken := [i for i, cell in enumerate(cells) if "\n" in cell]:
                self.multiline += len(broken)
                self.first_multiline = self.first_multiline or f"{Path(where).name}, {unit} {batch.lines[broken[0]]}"
        self._watch_numbers(batch)
        keep = [i for i in range(len(batch.lines)) if i not in blank] if blank else list(range(len(batch.lines)))
        texts = [[cells[i] for i in keep] if blank else list(cells) for cells in batch.cells]
        self.blank += len(blank)
        self.used += len(keep)
        try:
            if self.hashing and keep:
                self._hashes.append(row_hashes(texts))
            for column in [] if self.hashing else texts:
                "".join(column).encode()
        except UnicodeEncodeError:
            raise self._surrogate(batch, where, unit) from None
        return keep, texts

    def _surrogate(self, batch: RowBatch, where: str, unit: str) -> CorpusError:
        for name, cells in zip(self.columns, batch.cells, strict=True):
            for line, cell in zip(batch.lines, cells, strict=True):
                if any("\ud800" <= character <= "\udfff" for character in cell):
                    return CorpusError(
                        f"{where}, {unit} {line}: column {name!r} holds half a surrogate pair, not text"
                    )
        return CorpusError(f"{where}: not representable in UTF-8")

    def _watch_numbers(self, batch: RowBatch) -> None:
        if self.numbers_are_text:
            return
        if self._numeric is None:
            self._numeric = {c: (batch.lines[0], cells[0]) for c, cells in enumerate(batch.cells) if len(cells)}
        for column in list(self._numeric):
            if not all_numbers(batch.cells[column]):
                del self._numeric[column]

    def only_numbers(self, where: str) -> None:
        """Check a whole file without types at its end.

        Raises:
            CorpusError: a chosen column holds only numbers.
        """
        for column, (line, cell) in (self._numeric or {}).items():
            name = self.columns[column]
            raise CorpusError(f"{where}, line {line}: column {name!r} holds only numbers, not text (here {cell!r})")

    def first_occurrences(self) -> np.ndarray:
        """Return the places (U,), ascending, of the first occurrence of each distinct row among the used rows."""
        if not self._hashes:
            return np.zeros(0, dtype=np.int64)
        return np.sort(np.unique(np.concatenate(self._hashes), return_index=True)[1])


def row_hashes(texts: Sequence[Sequence[str]]) -> np.ndarray:
    """Return a 64-bit hash of each row, (N,) uint64, the same in every process."""
    joined = texts[0] if len(texts) == 1 else map("\x1f".join, zip(*texts, strict=True))
    blake = hashlib.blake2b
    return np.frombuffer(b"".join([blake(row.encode(), digest_size=8).digest() for row in joined]), dtype="<u8")
