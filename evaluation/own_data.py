"""Load and score a user's own files: scored or 0/1 pairs, and labelled texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from csekit.encoding.encoder import Encoder
from csekit.evaluation.clustering import LabelledTexts
from csekit.evaluation.pairs import Pairs, digest, header, normal, read_columns
from csekit.evaluation.sts import EmbeddedPairs, score_pairs
from csekit.evaluation.transfer_data import Split, TransferTask

_HEADS = {
    "spearman": "Spearman × 100",
    "pearson": "Pearson × 100",
    "n": "pairs",
    "ap": "average precision × 100",
    "accuracy": "accuracy × 100",
    "threshold": "cosine threshold",
}


@dataclass(frozen=True)
class PairScores:
    """The scores of one file of pairs.

    Arguments:
        name: name of the file.
        scores: as ``evaluate_pairs`` returns them.
        cosines, gold: (P,) cosine and gold score of each pair.
        truncated: number of sentences that were cut, None if the encoder does not report it.
        checksum: sha256 of the pairs.
    """

    name: str
    scores: dict[str, float]
    cosines: np.ndarray
    gold: np.ndarray
    truncated: int | None
    checksum: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for a results file."""
        entry = {**self.scores, "truncated": self.truncated, "checksum": self.checksum}
        return {"tasks": {self.name: entry}}

    def similarities(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return the cosine and gold score of every pair, as ``write_results`` takes them."""
        return {self.name: (self.cosines, self.gold)}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows for a terminal."""
        decimals = {"n": 0, "threshold": 4}
        cells = [f"{value:.{decimals.get(name, 2)}f}" for name, value in self.scores.items()]
        head = [_HEADS.get(name, name) for name in self.scores]
        return ["file", *head], [[self.name, *cells]]


def score_pair_file(encoder: Encoder, pairs: Pairs, progress: bool = False) -> PairScores:
    """Score an encoder on pairs of ``read_pairs``.

    Raises:
        ValueError: what ``vectors`` raises.
    """
    embedded = EmbeddedPairs(encoder, [pairs], progress)
    return PairScores(
        pairs.name,
        score_pairs(embedded, pairs),
        embedded.similarities(pairs),
        pairs.scores,
        getattr(encoder, "truncated", None),
        digest([pairs]),
    )


def load_classification(
    train: str | Path, test: str | Path, dev: str | Path | None = None, *, name: str | None = None
) -> TransferTask:
    """Load labelled texts as a transfer task, for ``evaluate_transfer``.

    A file is TSV or CSV with a header and the columns ``text`` and ``label``, or ``sentence1``, ``sentence2`` and
    ``label`` for pairs. The training file says which; labels are any strings.

    Arguments:
        dev: chooses the classifier's C. None: 10 folds of the training file do.
        name: name of the task. None: ``classification_name``.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: names file, line and field: what ``read_columns`` raises, or a label that no training row has.
    """
    files = {"train": Path(train), "dev": None if dev is None else Path(dev), "test": Path(test)}
    names = ("sentence1", "sentence2") if "sentence1" in header(train) else ("text",)
    rows = {side: _labelled(path, names) for side, path in files.items() if path is not None}
    classes = {label: i for i, label in enumerate(sorted({label for _, label, _ in rows["train"]}))}
    splits = {}
    for side, found in rows.items():
        for _, label, where in found:
            if label not in classes:
                raise ValueError(f"{where}, field label: must be a label of {Path(train).name}, got {label!r}")
        labels = np.array([classes[label] for _, label, _ in found], dtype=np.int64)
        splits[side] = Split(tuple(zip(*(texts for texts, _, _ in found), strict=True)), labels)
    return TransferTask(name or classification_name(train), splits, tuple(classes))


def classification_name(train: str | Path) -> str:
    """Name a task by its training file, or by the file's folder if the file is called ``train``."""
    path = Path(train).resolve()
    return path.parent.name if path.stem == "train" else path.stem


def _labelled(path: Path, names: Sequence[str]) -> list[tuple[Sequence[str], str, str]]:
    """Read (texts of these columns, label, place in the file) of each row."""
    rows = read_columns(path, {name: name for name in (*names, "label")})
    if not rows:
        raise ValueError(f"{path}: must hold labelled rows, the file has a header only")
    return [(tuple(normal(row[name]) for name in names), row["label"].strip(), where) for where, row in rows]


def load_labelled(path: str | Path, text: str = "text", label: str = "label") -> LabelledTexts:
    """Load labelled texts from one TSV, CSV or parquet file, for ``cluster_texts``.

    Arguments:
        text, label: names of the columns. Labels are strings or whole numbers.

    Raises:
        FileNotFoundError: no such file.
        ValueError: names file, row and field: what ``read_columns`` raises, or fewer than two labels.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        rows = _parquet_rows(path, text, label)
    else:
        found = read_columns(path, {"text": text, "label": label})
        rows = [(normal(row["text"]), row["label"].strip()) for _, row in found]
    names = tuple(sorted({label for _, label in rows}))
    if len(names) < 2:
        raise ValueError(f"{path}, field label ({label!r}): must hold at least two labels, got {len(names)}")
    places = {name: place for place, name in enumerate(names)}
    labels = np.array([places[name] for _, name in rows], dtype=np.int64)
    return LabelledTexts(path.stem, tuple(words for words, _ in rows), labels, names)


def _parquet_rows(path: Path, text: str, label: str) -> list[tuple[str, str]]:
    """Read (text, label) of each row of a parquet file."""
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        columns = pyarrow.parquet.read_schema(path).names
        for field, name in (("text", text), ("label", label)):
            if name not in columns:
                raise ValueError(f"{path}: {field} must be one of the columns {columns}, got {name!r}")
        table = pyarrow.parquet.read_table(path, columns=[text, label]).to_pydict()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not readable as parquet ({error})") from None
    rows = []
    for number, (words, name) in enumerate(zip(table[text], table[label], strict=True), 1):
        for field, value, kinds in (("text", words, (str,)), ("label", name, (str, int))):
            if value is not None and not isinstance(value, kinds):
                wanted = "text" if kinds == (str,) else "text or a whole number"
                raise ValueError(f"{path}, row {number}, field {field}: must be {wanted}, got {value!r:.80}")
            if value is None or not str(value).strip():
                raise ValueError(f"{path}, row {number}, field {field}: must not be empty, got {value!r}")
        rows.append((normal(words), str(name).strip()))
    return rows
