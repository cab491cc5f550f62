"""Read the seven transfer tasks in SentEval's folders.

Oddities of the files: blank lines that count as examples (CR, MPQA), a byte 0xF0 in TREC's training file (latin-1,
like MR, CR, SUBJ and MPQA), a byte order mark, a header and bare double quotes in MRPC.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from csekit.evaluation.pairs import normal, read_lines

#: The seven whose mean is the Avg of the papers, in their order: task to file to examples.
COUNTS: dict[str, dict[str, int]] = {
    "MR": {"MR/rt-polarity.pos": 5331, "MR/rt-polarity.neg": 5331},
    "CR": {"CR/custrev.pos": 2407, "CR/custrev.neg": 1368},
    "SUBJ": {"SUBJ/subj.objective": 5000, "SUBJ/subj.subjective": 5000},
    "MPQA": {"MPQA/mpqa.pos": 3312, "MPQA/mpqa.neg": 7294},
    "SST2": {"SST/binary/sentiment-train": 67349, "SST/binary/sentiment-dev": 872, "SST/binary/sentiment-test": 1821},
    "TREC": {"TREC/train_5500.label": 5452, "TREC/TREC_10.label": 500},
    "MRPC": {"MRPC/msr_paraphrase_train.txt": 4076, "MRPC/msr_paraphrase_test.txt": 1725},
}
TRANSFER_TASKS = tuple(COUNTS)
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")

#: A blank line is an example with a label; it is read as this text, because not every encoder accepts an empty one.
BLANK = "."

_Row = tuple[tuple[str, ...], int]


@dataclass(frozen=True)
class Split:
    """N labelled examples.

    Arguments:
        columns: one column of N sentences, or two for pairs.
        labels: (N,) int64, classes from 0.
    """

    columns: tuple[tuple[str, ...], ...]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TransferTask:
    """A classification task.

    Arguments:
        name: name of the task.
        splits: ``all`` alone (cross-validated), ``train`` and ``test``, or ``train``, ``dev`` and ``test``.
        labels: names of the classes, for messages; empty: their numbers.
    """

    name: str
    splits: dict[str, Split]
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))

    def checksum(self) -> str:
        """Return the sha256 of sentences and labels: equal for the same examples in the same order."""
        state = sha256()
        for name, split in self.splits.items():
            for *texts, label in zip(*split.columns, split.labels.tolist(), strict=True):
                state.update("\t".join([name, *texts, str(label)]).encode() + b"\n")
        return state.hexdigest()


def resolve_transfer(tasks: str | Sequence[str]) -> list[str]:
    """Return task names from ``"transfer"`` (the seven) or names, in a list or separated by commas.

    Raises:
        ValueError: an unknown or repeated name.
    """
    names = [name.strip() for name in tasks.split(",")] if isinstance(tasks, str) else list(tasks)
    names = [member for name in names for member in (TRANSFER_TASKS if name == "transfer" else (name,))]
    for name in names:
        if name not in COUNTS:
            raise ValueError(f"tasks must be 'transfer' or names among {list(COUNTS)}, got {name!r}")
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"tasks must name each task once, got {names}")
    return names


def load_transfer(data_dir: str | Path, tasks: str | Sequence[str] = "transfer") -> list[TransferTask]:
    """Load transfer tasks from disk and check the number of examples of every file.

    Rows are in SentEval's order (by number of words, then label), so that the folds are SentEval's.

    Arguments:
        data_dir: a folder in SentEval's layout (``MR/``, ``SST/binary/``, …), or one that holds it as ``senteval/`` or
            ``downstream/``.
        tasks: as for ``resolve_transfer``.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a wrong count (names file, expected, found), an unknown task, a malformed line.
    """
    root = Path(data_dir).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"data_dir must be a folder, got {str(data_dir)!r}")
    return [_load_task(root, name) for name in resolve_transfer(tasks)]


def _load_task(root: Path, name: str) -> TransferTask:
    lines = {}
    for file, count in COUNTS[name].items():
        path = _locate(root, file)
        utf8 = name in ("SST2", "MRPC")
        lines[path] = read_lines(path, "utf-8-sig" if utf8 else "latin-1")[name == "MRPC" :]
        if len(lines[path]) != count:
            raise ValueError(f"{path}: expected {count} examples, found {len(lines[path])}")
    if name not in _READERS:
        positive, negative = lines.values()
        return TransferTask(name, {"all": _split([*_unlabelled(positive, 1), *_unlabelled(negative, 0)])})
    splits = ("train", "dev", "test") if name == "SST2" else ("train", "test")
    read = _READERS[name]
    rows = {path: [read(line, f"{path}, line {i}") for i, line in _numbered(name, lines[path])] for path in lines}
    return TransferTask(name, dict(zip(splits, map(_split, rows.values()), strict=True)))


def _locate(root: Path, file: str) -> Path:
    """Find the file in the root or in one of its known folders."""
    candidates = [root / folder / file for folder in ("", "senteval", "downstream")]
    return next((path for path in candidates if path.is_file()), candidates[0])


def _numbered(name: str, lines: Sequence[str]) -> Iterable[tuple[int, str]]:
    """Number the lines as in the file: MRPC's first line is a header."""
    return enumerate(lines, 2 if name == "MRPC" else 1)


def _split(rows: Sequence[_Row]) -> Split:
    """Put examples in SentEval's order."""
    ordered = sorted(rows, key=lambda row: (*(len(text.split()) for text in row[0]), row[1]))
    columns = zip(*(texts for texts, _ in ordered), strict=True)
    labels = np.array([label for _, label in ordered], dtype=np.int64)
    return Split(tuple(tuple(text or BLANK for text in column) for column in columns), labels)


def _unlabelled(lines: Sequence[str], label: int) -> list[_Row]:
    return [((normal(line),), label) for line in lines]


def _sst(line: str, where: str) -> _Row:
    """Parse sentence, tab, 0 or 1."""
    text, _, label = line.rpartition("\t")
    number = _label(label, ("0", "1"), where)
    return (_text(text, where),), number


def _trec(line: str, where: str) -> _Row:
    """Parse ``COARSE:fine question``; the coarse class is the label."""
    coarse, _, rest = line.partition(":")
    number = _label(coarse, TREC_CLASSES, where)
    return (_text(rest.partition(" ")[2], where),), number


def _mrpc(line: str, where: str) -> _Row:
    """Parse label, two ids, two sentences, separated by tabs; quotes have no meaning."""
    fields = line.split("\t")
    if len(fields) != 5:
        raise ValueError(f"{where}: expected 5 columns, found {len(fields)}")
    return (_text(fields[3], where), _text(fields[4], where)), _label(fields[0], ("0", "1"), where)


_READERS: dict[str, Callable[[str, str], _Row]] = {"SST2": _sst, "TREC": _trec, "MRPC": _mrpc}


def _text(text: str, where: str) -> str:
    if not text.strip():
        raise ValueError(f"{where}: the sentence is missing")
    return normal(text)


def _label(text: str, allowed: Sequence[str], where: str) -> int:
    if text not in allowed:
        raise ValueError(f"{where}: label must be one of {list(allowed)}, got {text[:40]!r}")
    return list(allowed).index(text)
