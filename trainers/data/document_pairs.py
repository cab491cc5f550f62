"""Pairs from the structure of documents: neighbouring passages, title and body, two spans of one document.

A pair never crosses the end of a document. Documents are read one line at a time.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from csekit.encoding.text_files import ARCHIVE_ERRORS, CorpusError, open_bytes
from csekit.modeling.settings import check_number
from csekit.trainers.data.draws import uniform
from csekit.trainers.data.row_files import check_rows_file, write_rows

COLUMNS = ("anchor", "positive")
KINDS = ("neighbors", "title", "spans")
UNITS = ("line", "paragraph", "sentence")
#: Where a text is divided: at line ends, at blank lines, or behind a sentence, which becomes a paragraph first.
_ENDS = {
    "line": re.compile(r"\s*\n\s*"),
    "paragraph": re.compile(r"[^\S\n]*\n[^\S\n]*\n\s*"),
}
_HALF = re.compile("[\\ud800-\\udfff]")
#: The mark that ends a sentence, with the quotes and brackets that close behind it.
_SENTENCE_END = re.compile(r"([.!?…؟۔।॥։።។။][\"'”’»)\]]*)\s+|([。！？][”’」』）】》)\]]*)\s*")


@dataclass(frozen=True)
class DocumentPairs:
    """Settings of the pairs.

    Arguments:
        kind: ``neighbors`` (a passage and the next one), ``title`` (the title and the first passage), or ``spans``
            (two spans of words that do not overlap, drawn by ``seed`` and the number of the document).
        unit: what a passage is: a ``line``, a ``paragraph`` (between blank lines) or a ``sentence``. A text that is a
            list of strings is divided already.
        text_field, title_field: fields of the documents. A document without a title makes no pair of kind ``title``.
        min_words: passages and titles of fewer words, between white space, make no pair. They are not skipped:
            the passages around them are no neighbours.
        span_words: words of a span.
        spans: pairs of spans of a document; a document with room for fewer gives fewer.
        seed: of the spans.

    Raises:
        ValueError: a value that is not allowed.
    """

    kind: str = "neighbors"
    unit: str = "line"
    text_field: str = "text"
    title_field: str = "title"
    min_words: int = 3
    span_words: int = 32
    spans: int = 1
    seed: int = 42

    def __post_init__(self) -> None:
        for name, allowed in (("kind", KINDS), ("unit", UNITS)):
            if getattr(self, name) not in allowed:
                words = ", ".join(map(repr, allowed))
                raise ValueError(f"{name} must be one of {words}, got {getattr(self, name)!r}")
        for name in ("min_words", "span_words", "spans"):
            check_number(name, getattr(self, name), 1)

    def __call__(self, document: Any, number: int, where: str) -> list[tuple[str, str]]:
        """Return the pairs of a document.

        Arguments:
            document: what its line holds.
            number: its number, from 0.
            where: file and line, for messages.

        Raises:
            CorpusError: it is no object, or a field is missing or is no text.
        """
        if not isinstance(document, dict):
            raise CorpusError(f"{where}: a document must be an object, got {document!r:.60}")
        text = _field(document, self.text_field, where, several=True)
        if self.untitled(document):
            return []
        if self.kind == "title":
            title = _field(document, self.title_field, where)
            first = next(iter(self.passages(text)), None)
            return [(_plain(title), first)] if first is not None and self.enough(title) else []
        if self.kind == "spans":
            return self.drawn(" ".join([text] if isinstance(text, str) else text).split(), number)
        parts: list[str | None] = [part if self.enough(part) else None for part in self.passages(text, short=True)]
        return [(a, b) for a, b in pairwise(parts) if a is not None and b is not None]

    def untitled(self, document: dict[str, Any]) -> bool:
        """Return True if the kind is ``title`` and a document has none: the field is missing, null or blank."""
        title = document.get(self.title_field)
        return self.kind == "title" and (title is None or (isinstance(title, str) and not title.strip()))

    def passages(self, text: str | list[str], short: bool = False) -> list[str]:
        """Return a text's passages, white space as single blanks; with ``short`` those of few words as well."""
        parts = _divided(text, self.unit) if isinstance(text, str) else text
        found = [_plain(part) for part in parts if part.strip()]
        return found if short else [part for part in found if self.enough(part)]

    def enough(self, text: str) -> bool:
        """Return True if a text has ``min_words``."""
        return len(text.split()) >= self.min_words

    def drawn(self, words: list[str], number: int) -> list[tuple[str, str]]:
        """Return pairs of spans that do not overlap, in the order of the text."""
        size = self.span_words
        free = len(words) - 2 * size
        if free < 0:
            return []
        found: dict[tuple[int, int], None] = {}
        for first, second in uniform(self.seed, 0, [number], "document_pairs", (self.spans, 2))[0]:
            gaps = sorted(int(each * (free + 1)) for each in (first, second))
            found[gaps[0], gaps[1] + size] = None
        return [(" ".join(words[a : a + size]), " ".join(words[b : b + size])) for a, b in found]


def _divided(text: str, unit: str) -> list[str]:
    if unit == "sentence":
        text, unit = _SENTENCE_END.sub(lambda found: f"{found[1] or found[2]}\n\n", text), "paragraph"
    return _ENDS[unit].split(text)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _field(document: dict[str, Any], name: str, where: str, several: bool = False) -> Any:
    """Return a field that is text, or with ``several`` a list of texts."""
    if name not in document:
        raise CorpusError(f"{where}: field {name!r} is missing, the document has {', '.join(document) or 'none'}")
    value = document[name]
    texts = value if several and isinstance(value, list) else [value]
    if all(isinstance(each, str) for each in texts):
        if any(map(_HALF.search, texts)):
            raise CorpusError(f"{where}: field {name!r} holds half a surrogate pair, not text")
        return value
    allowed = "text or a list of texts" if several else "text"
    raise CorpusError(f"{where}: field {name!r} must be {allowed}, got {value!r:.60}")


def read_documents(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the line number and the value of each line that is not blank of a ``.jsonl`` file (also ``.gz``, ``.xz``).

    Raises:
        FileNotFoundError: no such file.
        CorpusError: another ending; a line is not UTF-8 or not JSON, or a number in it has too many digits; the
            archive is damaged.
    """
    stem = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
    if stem.suffix not in (".jsonl", ".json"):
        raise CorpusError(f"{path}: documents must be a .jsonl file, an object a line (also .gz or .xz)")
    number = 0
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    yield number, json.loads(text)
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}, line {number}: not UTF-8, at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise CorpusError(f"{path}, line {number}: not a JSON object on one line: {error.msg}") from None
    except ValueError as error:  # a number with too many digits
        raise CorpusError(f"{path}, line {number}: not readable as JSON: {str(error).split(';')[0]}") from None
    except RecursionError:
        raise CorpusError(f"{path}, line {number}: too deeply nested") from None
    except ARCHIVE_ERRORS as error:
        raise CorpusError(f"{path}: the archive is damaged behind line {number}: {error}") from None


def write_document_pairs(documents: Path, target: Path, settings: DocumentPairs) -> dict[str, int]:
    """Write the pairs of documents with the columns ``anchor`` and ``positive``, whole or not at all.

    Arguments:
        documents: a ``.jsonl`` file.
        target: a ``.jsonl`` or ``.csv`` file that does not exist yet.

    Returns:
        counts: ``documents``, ``pairs``, ``documents_without`` a pair; with kind ``title`` also how many of these are
            ``documents_without_title``.

    Raises:
        FileExistsError: the target exists.
        ValueError: what :func:`read_documents` and :class:`DocumentPairs` raise; no document makes a pair.
    """
    check_rows_file(target)
    if target.exists():
        raise FileExistsError(f"{target} exists already: move it away, or choose another name")
    counts = Counter(documents=0, pairs=0, documents_without=0)
    if settings.kind == "title":
        counts["documents_without_title"] = 0

    def rows() -> Iterator[tuple[str, str]]:
        for number, (line, document) in enumerate(read_documents(documents)):
            found = settings(document, number, f"{documents}, line {line}")
            counts.update(documents=1, pairs=len(found), documents_without=int(not found))
            if settings.kind == "title":
                counts["documents_without_title"] += settings.untitled(document)
            yield from found
        if not counts["pairs"]:
            untitled = counts["documents_without_title"]
            without = f"; {untitled:,} have no field {settings.title_field!r}, or nothing in it" if untitled else ""
            sizes = f"min_words {settings.min_words} and span_words {settings.span_words}"
            by_lines = settings.unit == "line" and settings.kind == "neighbors"
            hint = "; unit 'sentence' splits lines that hold several sentences" if by_lines else ""
            raise ValueError(
                f"{documents}: none of {counts['documents']:,} documents makes a pair of kind {settings.kind!r} "
                f"with unit {settings.unit!r}, {sizes}{without}{hint}"
            )

    target.parent.mkdir(parents=True, exist_ok=True)
    write_rows(target, COLUMNS, rows())
    return dict(counts)
