"""Scored sentence pairs, and readers for TSV and CSV files."""

import hashlib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from csekit.encoding.delimited import delimited_rows, unique_names

Column = str | int

#: A number as people write it: Python would also read 1_0 and digits of other scripts.
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Pairs:
    """N sentence pairs with gold scores.

    Arguments:
        name: name of the set or sub-corpus.
        sentences1, sentences2: N strings each.
        scores: (N,) float64, any scale, higher = more similar.
        path: the file they come from.
    """

    name: str
    sentences1: tuple[str, ...]
    sentences2: tuple[str, ...]
    scores: np.ndarray
    path: str | None = None

    def __len__(self) -> int:
        return len(self.sentences1)

    def checksum(self) -> str:
        """Return the sha256 of sentences and scores."""
        return digest([self])


def digest(subsets: Sequence[Pairs]) -> str:
    """Return the sha256 of sentences and scores: equal for equal pairs, independent of the file's layout."""
    state = hashlib.sha256()
    for pairs in subsets:
        for first, second, score in zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True):
            state.update(f"{first}\t{second}\t{float(score)!r}\n".encode())
    return state.hexdigest()


def normal(text: str) -> str:
    """Normalise white space as SentEval does: one blank between words, none around them."""
    return " ".join(text.split())


def read_lines(path: str | Path, encoding: str = "utf-8-sig") -> list[str]:
    """Read the lines of a UTF-8 file without line ends (LF, CRLF or CR, also mixed, as in training and ``csekit
    encode``), byte order mark and last empty line.

    Arguments:
        encoding: another encoding, such as ``latin-1``, in which any byte is a character.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not UTF-8; the message names file and line.
    """
    lines = io.StringIO(_read_text(Path(path), encoding), newline=None).read().split("\n")
    return lines[:-1] if lines and not lines[-1] else lines


def _read_text(path: Path, encoding: str) -> str:
    """Read a file with its line ends as they are. Raises: as ``read_lines``."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    data = path.read_bytes()
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = 1 + io.StringIO(data[: error.start].decode(encoding), newline=None).read().count("\n")
        raise ValueError(
            f"{path}, line {line}: must be UTF-8, got the byte 0x{data[error.start]:02X} at offset {error.start}"
        ) from error


def parse_score(text: str, where: str) -> float:
    """Parse a score. Raises ValueError that starts with ``where`` if it is no decimal number or not finite."""
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{where}: must be a number, got {text!r:.80}")
    score = float(text)
    if not math.isfinite(score):
        raise ValueError(f"{where}: must be finite, got {text!r}")
    return score


def _rows(path: Path, delimiter: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of each line that is not blank."""
    lines = read_lines(path)
    delimiter = delimiter or ("\t" if lines and "\t" in lines[0] else ",")
    if delimiter == "\t":
        yield from ((i, line.split("\t")) for i, line in enumerate(lines, 1) if line.strip())
        return
    text = io.StringIO(_read_text(path, "utf-8-sig"), newline="")  # a line end in quotes is part of its cell
    for number, row in delimited_rows(text, path, delimiter):
        if any(field.strip() for field in row):
            yield number, row


def _positions(path: Path, header: list[str] | None, columns: Mapping[str, Column]) -> dict[str, int]:
    """Map argument name to 0-based column number."""
    positions = {}
    if header is not None:
        unique_names(header, path, [column for column in columns.values() if isinstance(column, str)])
    for argument, column in columns.items():
        if isinstance(column, int):
            if column < 0:
                raise ValueError(f"{argument} must be a column name or a number from 0, got {column}")
            positions[argument] = column
            continue
        assert header is not None
        if column not in header:
            raise ValueError(f"{path}, line 1: {argument} must be one of the columns {header}, got {column!r}")
        positions[argument] = header.index(column)
    if len(set(positions.values())) < len(positions):
        raise ValueError(f"{', '.join(columns)} must be different columns, got {list(columns.values())}")
    return positions


def read_pairs(
    path: str | Path,
    sentence1: Column = "sentence1",
    sentence2: Column = "sentence2",
    score: Column = "score",
    *,
    delimiter: str | None = None,
    name: str | None = None,
) -> Pairs:
    """Read scored pairs from a TSV or CSV file.

    Arguments:
        sentence1, sentence2, score: column names (the first line is the header then), or numbers from 0 (no header).
        delimiter: None: a tab if the first line holds one, else a comma. Tab-separated files have no quoting; others
            are CSV with double quotes.
        name: name of the set; the file's name by default.

    Raises:
        FileNotFoundError: no such file.
        ValueError: names file, line and field: not UTF-8, an unbalanced quote, a column that is missing or there
            twice, more fields than the header has, an empty sentence, a score that is no finite decimal number, fewer
            than 3 pairs, or the same score everywhere.
    """
    path = Path(path)
    rows = read_columns(path, {"sentence1": sentence1, "sentence2": sentence2, "score": score}, delimiter=delimiter)
    if not rows:
        raise ValueError(f"{path}: must hold scored pairs, the file has none")
    scores = [parse_score(row["score"], f"{where}, field score ({score!r})") for where, row in rows]
    check_scores(np.array(scores), str(path))
    first, second = (tuple(normal(row[side]) for _, row in rows) for side in ("sentence1", "sentence2"))
    return Pairs(name or path.stem, first, second, np.array(scores), path=str(path))


def header(path: str | Path, delimiter: str | None = None) -> list[str]:
    """Read the column names in a TSV or CSV file's first line, empty if the file is."""
    return [field.strip() for field in next(_rows(Path(path), delimiter), (1, []))[1]]


def read_columns(
    path: str | Path, columns: Mapping[str, Column], *, delimiter: str | None = None
) -> list[tuple[str, dict[str, str]]]:
    """Read columns of a TSV or CSV file.

    Arguments:
        columns: argument to column name (the first line is the header then), or to number from 0 (no header).
        delimiter: as for ``read_pairs``.

    Returns:
        for each row its place (file and line) and argument to text.

    Raises:
        FileNotFoundError: no such file.
        ValueError: names file, line and field: not UTF-8, an unbalanced quote, a column that is missing or there
            twice, more fields than the header has, an empty field.
    """
    path = Path(path)
    rows = list(_rows(path, delimiter))
    if not rows:
        raise ValueError(f"{path}: must hold rows, the file is empty")
    names: list[str] | None = None
    if any(isinstance(column, str) for column in columns.values()):
        names = [field.strip() for field in rows.pop(0)[1]]
    positions = _positions(path, names, columns)
    found = []
    for line, row in rows:
        if names is not None and len(row) > len(names):
            raise ValueError(f"{path}, line {line}: {len(row)} fields, the header has {len(names)}")
        for argument, position in positions.items():
            where = f"{path}, line {line}, field {argument} ({columns[argument]!r})"
            if position >= len(row):
                raise ValueError(f"{where}: must be column {position + 1}, the line has {len(row)}")
            if not row[position].strip():
                raise ValueError(f"{where}: must not be empty")
        found.append((f"{path}, line {line}", {argument: row[position] for argument, position in positions.items()}))
    return found


def check_scores(scores: np.ndarray, where: str) -> None:
    """Raise ValueError if no rank correlation exists: fewer than 3 pairs, or the same score everywhere."""
    if len(scores) < 3:
        raise ValueError(f"{where}: must hold at least 3 scored pairs, got {len(scores)}")
    if np.all(scores == scores[0]):
        raise ValueError(f"{where}: scores must differ, got {float(scores[0])} for all {len(scores)} pairs")
