"""Read the seven STS sets: from SentEval's folders, from tables with raw and tokenised text, or from the Hub.

Oddities of the files: gold files of STS15 and STS16 have a blank line for each pair that was never scored; one gold
file has no input (STS13's SMT); ``sts-*.csv`` is tab-separated with bare double quotes and 7 or 9 columns; some files
lack the last newline; one of three files of a set has CRLF.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from csekit.evaluation.pairs import Pairs, digest, normal, parse_score, read_lines

#: Task to sub-corpora to scored pairs.
COUNTS: dict[str, dict[str, int]] = {
    "STS12": {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750, "surprise.SMTnews": 399},
    "STS13": {"FNWN": 189, "headlines": 750, "OnWN": 561},
    "STS14": {
        "deft-forum": 450,
        "deft-news": 300,
        "headlines": 750,
        "images": 750,
        "OnWN": 750,
        "tweet-news": 750,
    },
    "STS15": {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
    "STS16": {
        "answer-answer": 254,
        "headlines": 249,
        "plagiarism": 230,
        "postediting": 244,
        "question-question": 209,
    },
    "STS-B": {"test": 1379},
    "SICK-R": {"test": 4927},
    "STS-B-dev": {"dev": 1500},
    "SICK-R-trial": {"trial": 500},
}
#: The seven whose mean is the Avg of the papers, in their order.
STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
DEV_TASKS = ("STS-B-dev", "SICK-R-trial")
TEXT_FORMS = ("tokenized", "raw")
#: Highest gold score of every set.
HIGHEST = 5.0

#: Task to (data set on the Hub, split, pairs). They hold raw text without sub-corpora. The Hub's SICK-R is all of
#: SICK, not the papers' test part, so it has its own name and is not part of the Avg.
HUB_DATASETS: dict[str, tuple[str, str, int]] = {
    "STS12": ("mteb/sts12-sts", "test", 3108),
    "STS13": ("mteb/sts13-sts", "test", 1500),
    "STS14": ("mteb/sts14-sts", "test", 3750),
    "STS15": ("mteb/sts15-sts", "test", 3000),
    "STS16": ("mteb/sts16-sts", "test", 1186),
    "STS-B": ("mteb/stsbenchmark-sts", "test", 1379),
    "STS-B-dev": ("mteb/stsbenchmark-sts", "validation", 1500),
    "SICK-R-all": ("mteb/sickr-sts", "test", 9927),
}


@dataclass(frozen=True)
class STSTask:
    """One STS set: its name, its sub-corpora, the form of its text (``tokenized`` or ``raw``)."""

    name: str
    subsets: tuple[Pairs, ...]
    text_form: str = "tokenized"

    def __len__(self) -> int:
        return sum(map(len, self.subsets))

    def checksum(self) -> str:
        return digest(self.subsets)


def resolve_tasks(tasks: str | Sequence[str], allowed: Iterable[str] = COUNTS) -> list[str]:
    """Return task names from ``"sts"`` (the seven), ``"dev"`` (the two development sets) or names, in a list or
    separated by commas.

    Raises:
        ValueError: an unknown or repeated name.
    """
    allowed = list(allowed)
    names = [name.strip() for name in tasks.split(",")] if isinstance(tasks, str) else list(tasks)
    groups = {"sts": STS_TASKS, "dev": DEV_TASKS}
    names = [member for name in names for member in groups.get(name, (name,))]
    for name in names:
        if name not in allowed:
            raise ValueError(f"tasks must be 'sts', 'dev' or names among {allowed}, got {name!r}")
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"tasks must name each set once, got {names}")
    return names


def check_count(found: int, expected: int, where: object) -> None:
    """Raise ValueError with file, expected and found number of pairs if they differ."""
    if found != expected:
        raise ValueError(f"{where}: expected {expected} scored pairs, found {found}")


def parse_gold(text: str, where: str) -> float:
    """Parse a gold score from 0 to 5. Raises ValueError that starts with ``where``."""
    score = parse_score(text, where)
    if not 0 <= score <= HIGHEST:
        raise ValueError(f"{where}: must be from 0 to {HIGHEST:g}, got {text.strip()}")
    return score


def has_stsb(data_dir: str | Path) -> bool:
    """Return whether the folder holds STS-B, as SentEval's folder or as a table."""
    senteval = find_folder(data_dir, "STS/STSBenchmark", ("", "senteval", "downstream"))
    return senteval is not None or find_folder(data_dir, "stsb_test.tsv", ("", "sts_norm")) is not None


def find_folder(data_dir: str | Path, part: str, folders: Sequence[str]) -> Path | None:
    """Return the first of these folders of data_dir that holds ``part``, None if none does."""
    root = Path(data_dir).expanduser()
    return next((root / folder for folder in folders if (root / folder / part).exists()), None)


def _senteval_year(folder: Path, name: str, subset: str) -> Pairs:
    where = folder / f"{name}-en-test"
    input_path, gold_path = where / f"STS.input.{subset}.txt", where / f"STS.gs.{subset}.txt"
    inputs, golds = read_lines(input_path), read_lines(gold_path)
    if len(inputs) != len(golds):
        raise ValueError(f"{gold_path}: expected {len(inputs)} lines as in {input_path.name}, found {len(golds)}")
    pairs = []
    for i, (text, gold) in enumerate(zip(inputs, golds, strict=True), 1):
        if not gold.strip():
            continue
        sentences = text.split("\t")
        if len(sentences) < 2:
            raise ValueError(f"{input_path}, line {i}: must hold two tab-separated sentences, got {text!r}")
        pairs.append((sentences[0], sentences[1], parse_gold(gold, f"{gold_path}, line {i}, field score")))
    check_count(len(pairs), COUNTS[name][subset], gold_path)
    return _pairs(subset, pairs, gold_path)


def _pairs(name: str, rows: Sequence[tuple[str, str, float]], path: Path | str) -> Pairs:
    return Pairs(
        name,
        tuple(normal(row[0]) for row in rows),
        tuple(normal(row[1]) for row in rows),
        np.array([row[2] for row in rows], dtype=np.float64),
        path=str(path),
    )


def _table(path: Path, columns: tuple[int, int, int], header: bool) -> list[tuple[str, str, str]]:
    """Read (sentence1, sentence2, score text) of a tab-separated file; quotes have no meaning."""
    rows = []
    for i, line in enumerate(read_lines(path), 1):
        fields = line.split("\t")
        if (header and i == 1) or not line.strip():
            continue
        if len(fields) <= max(columns):
            raise ValueError(f"{path}, line {i}: expected at least {max(columns) + 1} columns, found {len(fields)}")
        rows.append((fields[columns[0]], fields[columns[1]], fields[columns[2]]))
    return rows


def _scored(path: Path, rows: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, float]]:
    """Keep the rows with a gold score and parse it."""
    return [(a, b, parse_gold(s, f"{path}, the pair {a!r}, field score")) for a, b, s in rows if s.strip()]


def _sick(data_dir: str | Path, subset: str) -> Pairs:
    file = {"test": "SICK_test_annotated.txt", "trial": "SICK_trial.txt"}[subset]
    root = find_folder(data_dir, "SICK", ("", "senteval", "downstream", "../senteval"))
    if root is None:
        raise FileNotFoundError(f"{Path(data_dir) / 'SICK' / file}: no such file")
    path = root / "SICK" / file
    pairs = _scored(path, _table(path, (1, 2, 3), header=True))
    check_count(len(pairs), COUNTS["SICK-R" if subset == "test" else "SICK-R-trial"][subset], path)
    return _pairs(subset, pairs, path)


def _from_table(folder: Path, name: str, text_form: str) -> tuple[Pairs, ...]:
    """Read a task from the tables with raw and tokenised text side by side."""
    stsb = name.startswith("STS-B")
    subsets = COUNTS[name]
    path = folder / (f"stsb_{next(iter(subsets))}.tsv" if stsb else "sts12-16.tsv")
    lines = read_lines(path)
    header = lines[0].split("\t") if lines else []
    suffix = "_tok" if text_form == "tokenized" else ""
    wanted = [f"sentence1{suffix}", f"sentence2{suffix}", "score"] + ([] if stsb else ["dataset", "subset"])
    for column in wanted:
        if column not in header:
            raise ValueError(f"{path}, line 1: expected the column {column!r}, found {header}")
    rows: dict[str, list[tuple[str, str, str]]] = {subset: [] for subset in subsets}
    for i, line in enumerate(lines[1:], 2):
        fields = dict(zip(header, line.split("\t"), strict=False))
        if len(fields) < len(header):
            raise ValueError(f"{path}, line {i}: expected {len(header)} columns, found {len(fields)}")
        if stsb or fields["dataset"] == name:
            subset = next(iter(subsets)) if stsb else fields["subset"]
            rows.setdefault(subset, []).append((fields[wanted[0]], fields[wanted[1]], fields["score"]))
    tasks = []
    for subset, found in rows.items():
        pairs = _scored(path, found)
        check_count(len(pairs), subsets.get(subset, 0), f"{path}, {name} {subset}")
        tasks.append(_pairs(subset, pairs, path))
    return tuple(tasks)


def _load_task(data_dir: str | Path, name: str, text_form: str) -> STSTask:
    if name.startswith("SICK"):
        return STSTask(name, (_sick(data_dir, next(iter(COUNTS[name]))),), text_form)
    senteval = find_folder(data_dir, "STS", ("", "senteval", "downstream"))
    table = find_folder(data_dir, "sts12-16.tsv", ("", "sts_norm"))
    if text_form == "raw" or senteval is None:
        if table is None:
            wanted = "sts12-16.tsv" if text_form == "raw" else "STS/ (SentEval's layout) or sts12-16.tsv"
            raise FileNotFoundError(f"{data_dir}: holds no {wanted}, needed for {text_form} text of {name}")
        return STSTask(name, _from_table(table, name, text_form), text_form)
    folder = senteval / "STS"
    if name.startswith("STS-B"):
        subset = next(iter(COUNTS[name]))
        path = folder / "STSBenchmark" / f"sts-{subset}.csv"
        pairs = _scored(path, _table(path, (5, 6, 4), header=False))
        check_count(len(pairs), COUNTS[name][subset], path)
        return STSTask(name, (_pairs(subset, pairs, path),), text_form)
    return STSTask(name, tuple(_senteval_year(folder, name, subset) for subset in COUNTS[name]), text_form)


def load_sts(data_dir: str | Path, tasks: str | Sequence[str] = "sts", text_form: str = "tokenized") -> list[STSTask]:
    """Load STS sets from disk and check the number of pairs of every file. Pairs without a gold score are dropped.

    Arguments:
        data_dir: a folder in SentEval's layout (``STS/``, ``SICK/``), or one that holds it as ``senteval/`` or
            ``downstream/``; for raw text, one with ``sts12-16.tsv`` and ``stsb_*.tsv``, in it or in ``sts_norm/``.
        tasks: as for ``resolve_tasks``.
        text_form: ``tokenized`` (lower-cased and tokenised as in SentEval, as the papers report) or ``raw``. SICK has
            raw text only.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a wrong count (names file, expected, found), an unknown task, a malformed line, a gold score
            outside 0 to 5.
    """
    if text_form not in TEXT_FORMS:
        raise ValueError(f"text_form must be 'tokenized' or 'raw', got {text_form!r}")
    if not Path(data_dir).expanduser().is_dir():
        raise FileNotFoundError(f"data_dir must be a folder, got {str(data_dir)!r}")
    return [_load_task(data_dir, name, text_form) for name in resolve_tasks(tasks)]


def load_stsb_dev(data_dir: str | Path, text_form: str = "tokenized") -> Pairs:
    """Load the 1,500 pairs of STS-B dev, which training selects on. Raises the errors of ``load_sts``."""
    return load_sts(data_dir, "STS-B-dev", text_form)[0].subsets[0]


def load_sts_hub(
    tasks: str | Sequence[str] = tuple(HUB_DATASETS), load: Callable[..., Any] | None = None
) -> list[STSTask]:
    """Load STS sets from the Hub (``HUB_DATASETS``): raw text without sub-corpora, so ``all`` equals ``mean``.

    Arguments:
        load: function ``load(data set, split=split)`` that returns rows with sentence1, sentence2, score. None:
            ``datasets.load_dataset``.

    Raises:
        ValueError: a wrong count, or an unknown task. The Hub does not have ``SICK-R`` in the papers' form.
    """
    if load is None:
        from datasets import load_dataset

        load = load_dataset
    result = []
    for name in resolve_tasks(tasks, HUB_DATASETS):
        dataset, split, expected = HUB_DATASETS[name]
        rows = [
            (row["sentence1"], row["sentence2"], parse_gold(str(row["score"]), f"{dataset} ({split}), row {i}"))
            for i, row in enumerate(load(dataset, split=split), 1)
            if row["score"] is not None
        ]
        check_count(len(rows), expected, f"{dataset} ({split})")
        result.append(STSTask(name, (_pairs(split, rows, dataset),), "raw"))
    return result
