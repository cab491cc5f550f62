"""Read rows of csv and tsv text strictly: a row that is not well-formed is an error with its line, never a guess."""

import csv
from collections.abc import Iterable, Iterator, Sequence

#: Lines that one row of csv may span, unless every row so far begins with a quote. A longer row is taken for a quote
#: that was never closed. Where all cells are quoted, such a quote meets the opening quote of the next row instead.
MOST_LINES = 100

csv.field_size_limit(2**31 - 1)  # the module's own limit is 131,072 characters, and a text may be longer


class CorpusError(ValueError):
    """The texts hold something that the user must correct; the message names file and line."""


class _Held:
    """The lines of a file; it holds those that were read since the last whole row."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines, self.held = iter(lines), list[str]()
        self.quoted = True  # every row begins with a quote

    def __iter__(self) -> "_Held":
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        self.held.append(line)
        if len(self.held) == 1:
            self.quoted = self.quoted and line[:1] == '"'
        if len(self.held) > MOST_LINES and not self.quoted:
            raise csv.Error(
                f"the row spans more than {MOST_LINES} lines; if the text is so long, put the header and all cells in "
                "quotes, or write .jsonl"
            )
        return line


def delimited_rows(lines: Iterable[str], where: object, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, fields) of each row; an empty line is a row without fields.

    Arguments:
        lines: with their line ends.
        where: the file, for messages.
        delimiter: fields between tabs have no quoting; others may be in double quotes, with line breaks inside.

    Raises:
        CorpusError: a quote that is not closed, or closes before the end of its field; the message names the line in
            which it opens.
    """
    if delimiter == "\t":
        for number, line in enumerate(lines, 1):
            text = line.removesuffix("\n").removesuffix("\r")
            yield number, text.split("\t") if text else []
        return
    source, start = _Held(lines), 1
    try:
        for row in csv.reader(source, delimiter=delimiter, strict=True):
            yield start, row
            start += len(source.held)
            source.held.clear()
    except csv.Error as error:
        raise _fault(where, start, source.held, delimiter, error) from None


def _fault(where: object, start: int, held: Sequence[str], delimiter: str, error: csv.Error) -> CorpusError:
    opened, last = _open_quote(held, delimiter), start + max(len(held), 1) - 1
    if opened is None:
        return CorpusError(f"{where}, line {last}: {error}")
    found = "" if opened == len(held) - 1 else f" in line {last}"
    return CorpusError(f"{where}, line {start + opened}: an unbalanced quote opens here: {error}{found}")


def _open_quote(lines: Sequence[str], delimiter: str) -> int | None:
    """Return the place of the line whose quote is open at the end, or closes inside its field; None without one."""
    opened: int | None = None
    for number, line in enumerate(lines):
        at_start, i = opened is None, 0
        while i < len(line):
            if opened is None:
                opened = number if at_start and line[i] == '"' else None
            elif line.startswith('""', i):
                i += 1
            elif line[i] == '"':
                if line[i + 1 : i + 2] not in (delimiter, "\r", "\n", ""):
                    return opened
                opened = None
            at_start = opened is None and line[i] == delimiter
            i += 1
    return opened


def unique_names(
    header: Sequence[str], where: object, chosen: Iterable[str] | None = None, what: str = ", line 1: the header"
) -> None:
    """Check that a header names each column once.

    Arguments:
        chosen: the columns that are read; None: all but those without a name.
        what: what names the columns, for the message.

    Raises:
        CorpusError: a name twice.
    """
    for name in filter(None, header) if chosen is None else chosen:
        if header.count(name) > 1:
            places = " and ".join(str(i) for i, other in enumerate(header, 1) if other == name)
            raise CorpusError(f"{where}{what} names {name!r} more than once, in columns {places}")
