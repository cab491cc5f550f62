"""Retrieval collections in BEIR's format: ``corpus.jsonl``, ``queries.jsonl`` and tab-separated judgements."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csekit.encoding.encoder import half_pair

#: The parts of CQADupStack, a folder each; its score is their mean.
CQADUPSTACK = (
    "android",
    "english",
    "gaming",
    "gis",
    "mathematica",
    "physics",
    "programmers",
    "stats",
    "tex",
    "unix",
    "webmasters",
    "wordpress",
)


#: trec_eval's memory and time grow with the highest grade.
HIGHEST_GRADE = 10_000


@dataclass(frozen=True)
class Collection:
    """Documents, queries and relevance judgements.

    Arguments:
        name: name of the collection.
        document_ids, documents: N ids and N texts; a text is title and text joined by a blank.
        query_ids, queries: Q ids and texts, of queries that have judgements.
        qrels: query id to document id to grade; above 0 is relevant. A negative grade (Touché's spam) becomes 0, which
            gives the same scores: pytrec_eval crashes on grades below −1.
    """

    name: str
    document_ids: tuple[str, ...]
    documents: tuple[str, ...]
    query_ids: tuple[str, ...]
    queries: tuple[str, ...]
    qrels: dict[str, dict[str, int]]

    def __post_init__(self) -> None:
        grades = {query: {key: max(0, grade) for key, grade in row.items()} for query, row in self.qrels.items()}
        object.__setattr__(self, "qrels", grades)

    def checksum(self) -> str:
        """Return the sha256 of ids, texts and judgements."""
        state = hashlib.sha256()
        for ids, texts in ((self.document_ids, self.documents), (self.query_ids, self.queries)):
            for key, text in zip(ids, texts, strict=True):
                state.update(f"{key}\t{text}\n".encode())
        state.update(json.dumps(self.qrels, sort_keys=True).encode())
        return state.hexdigest()


@dataclass(frozen=True)
class CollectionGroup:
    """Several collections that are scored by the mean of their scores, such as CQADupStack."""

    name: str
    parts: tuple[Collection, ...]

    def checksum(self) -> str:
        return hashlib.sha256("\n".join(part.checksum() for part in self.parts).encode()).hexdigest()


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of each line that is not blank."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: must be UTF-8, got the byte 0x{line[error.start]:02X}"
                ) from error
            except (RecursionError, ValueError) as error:  # not JSON, nested too deeply, a number of too many digits
                raise ValueError(f"{path}, line {number}: must be a JSON object, got {_short(line)}") from error
            if not isinstance(record, dict):
                raise ValueError(f"{path}, line {number}: must be a JSON object, got {_short(line)}")
            yield number, record


def _short(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _field(record: dict[str, Any], name: str, where: str, *, required: bool = True, empty: bool = False) -> str:
    value = record.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        found = "nothing" if name not in record else f"{type(value).__name__} {value!r}"
        raise ValueError(f"{where}, field {name}: must be a string, got {found}")
    if not empty and not value.strip():
        raise ValueError(f"{where}, field {name}: must not be empty")
    if half_pair(value):
        raise ValueError(f"{where}, field {name}: must be text, got half a surrogate pair in {value!r:.80}")
    return value


def _texts(path: Path, titles: bool) -> dict[str, str]:
    """Map id to text, for a corpus (``titles``) or for queries. A document may be empty, a query may not."""
    found: dict[str, str] = {}
    for number, record in _records(path):
        where = f"{path}, line {number}"
        key = _field(record, "_id", where)
        if "\0" in key:
            raise ValueError(f"{where}, field _id: must not hold the character U+0000, which ends an id in trec_eval")
        if key in found:
            raise ValueError(f"{where}, field _id: must be given once, got {key!r} again")
        text = _field(record, "text", where, empty=titles)
        found[key] = f"{_field(record, 'title', where, required=False, empty=True)} {text}".strip() if titles else text
    if not found:
        raise ValueError(f"{path}: must hold at least one line, the file is empty")
    return found


def _qrels_path(folder: Path, split: str) -> Path:
    names = [f"qrels/{split}.tsv", f"qrels_{split}.tsv", *(["qrels.tsv"] if split == "test" else [])]
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder}: holds none of {', '.join(names)}")
    return path


def _qrels(path: Path, documents: dict[str, str], queries: dict[str, str], missing: bool) -> dict[str, dict[str, int]]:
    """Map query id to document id to grade. A first line whose third column is ``score`` is a header."""
    found: dict[str, dict[str, int]] = {}
    for number, raw in enumerate(path.read_bytes().splitlines(), 1):
        where = f"{path}, line {number}"
        try:
            fields = raw.decode("utf-8-sig" if number == 1 else "utf-8").split("\t")
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: must be UTF-8, got the byte 0x{raw[error.start]:02X}") from error
        if not any(field.strip() for field in fields):
            continue
        if len(fields) != 3:
            raise ValueError(f"{where}: must hold query-id, corpus-id and score, tab-separated, got {_short(raw)}")
        query, document, score = (field.strip() for field in fields)
        if number == 1 and score == "score":
            continue
        if not re.fullmatch("[+-]?[0-9]+", score):
            raise ValueError(f"{where}, field score: must be a whole number, got {score!r:.80}")
        grade = int(score[:20])
        if grade > HIGHEST_GRADE:
            raise ValueError(f"{where}, field score: must be at most {HIGHEST_GRADE:,}, got {score:.80}")
        if query not in queries:
            raise ValueError(f"{where}, field query-id: must be the _id of a query, got {query!r}")
        if document not in documents and not missing:
            raise ValueError(f"{where}, field corpus-id: must be the _id of a document, got {document!r}")
        if found.setdefault(query, {}).setdefault(document, grade) != grade:
            raise ValueError(f"{where}: must agree with line before it on {query!r} and {document!r}, got {score!r}")
    if not found:
        raise ValueError(f"{path}: must hold at least one judgement, got none")
    return found


def _load_collection(folder: Path, name: str, split: str, missing: bool) -> Collection:
    qrels_path = _qrels_path(folder, split)
    documents = _texts(folder / "corpus.jsonl", titles=True)
    queries = _texts(folder / "queries.jsonl", titles=False)
    qrels = _qrels(qrels_path, documents, queries, missing)
    judged = [key for key in queries if key in qrels]
    return Collection(
        name,
        tuple(documents),
        tuple(documents.values()),
        tuple(judged),
        tuple(queries[key] for key in judged),
        {key: qrels[key] for key in judged},
    )


def load_beir(folder: str | Path, split: str = "test", *, allow_missing: bool = False) -> Collection | CollectionGroup:
    """A retrieval collection in BEIR's format, checked whole.

    The folder holds ``corpus.jsonl`` (``_id``, ``text``, ``title`` where there is one), ``queries.jsonl`` (``_id``,
    ``text``) and the judgements of the split: ``qrels/test.tsv``, ``qrels_test.tsv`` or ``qrels.tsv`` with the columns
    query-id, corpus-id, score. Or it holds the twelve parts of CQADupStack, such a folder each.

    Arguments:
        split: which judgements.
        allow_missing: judged documents may be absent from the corpus. They count as never found, as in mteb; without
            it they are an error, since a corpus that was cut short looks like that.

    Raises:
        FileNotFoundError: a file, or a part of CQADupStack, is missing.
        ValueError: names file, line and field: not UTF-8, not JSON, a field that is missing or no string, an id given
            twice, a grade that is no whole number or above 10,000, a judgement about an unknown query or document.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"folder must be a folder in BEIR's format, got {str(folder)!r}")
    name = folder.resolve().name
    if (folder / "corpus.jsonl").is_file() or not any((folder / part).is_dir() for part in CQADUPSTACK):
        return _load_collection(folder, name, split, allow_missing)
    absent = [part for part in CQADUPSTACK if not (folder / part).is_dir()]
    if absent:
        raise FileNotFoundError(f"{folder}: must hold the twelve parts of CQADupStack, {', '.join(absent)} missing")
    parts = (_load_collection(folder / part, part, split, allow_missing) for part in CQADUPSTACK)
    return CollectionGroup(name, tuple(parts))


def kind_and_cutoff(metric: str) -> tuple[str, int]:
    """Sort key of metrics: recall@5 comes before recall@10."""
    kind, _, cutoff = metric.partition("@")
    return kind, int(cutoff or 0)
