"""Tables of ``csekit eval``'s results files: one row for each model, the sanity baselines included, sorted by Avg.

They read ``experiments/results/evaluation/*.json``. A file without a suite's scores has no row in the suite's table.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from csekit.evaluation.results import read_results
from csekit.evaluation.sts_data import STS_TASKS
from csekit.evaluation.transfer_data import TRANSFER_TASKS

Table = tuple[str, list[str], list[list[str]]]

_MISSING = "–"


def sts_scores_table(files: Sequence[Mapping[str, Any]]) -> Table:
    """Return caption, head and rows: the seven STS sets."""
    body = _rows(files, "test", "all", STS_TASKS)
    forms = sorted({content["test"]["text_form"] for content in files if "test" in content})
    return f"Spearman × 100, `all`, {' and '.join(forms)} text; rows sorted by Avg.", ["", *STS_TASKS, "Avg"], body


def transfer_scores_table(files: Sequence[Mapping[str, Any]]) -> Table:
    """Return caption, head and rows: the seven transfer tasks in test mode."""
    files = [content for content in files if content.get("transfer", {}).get("mode") == "test"]
    body = _rows(files, "transfer", "accuracy", TRANSFER_TASKS)
    seeds = sorted({content["transfer"]["seed"] for content in files})
    caption = (
        f"Accuracy × 100, logistic regression on frozen embeddings, seed {', '.join(map(str, seeds))} of the folds"
    )
    return f"{caption}; rows sorted by Avg.", ["", *TRANSFER_TASKS, "Avg"], body


def transfer_seconds_table(files: Sequence[Mapping[str, Any]]) -> Table:
    """Return caption, head and rows: CPU seconds of each task, encoding + fitting, for files that recorded them."""
    body = []
    for content in sorted(files, key=lambda content: content["title"]):
        tasks = content.get("transfer", {}).get("tasks", {})
        if set(TRANSFER_TASKS) <= tasks.keys() and content["transfer"]["mode"] == "test":
            spent = [
                [tasks[name]["seconds"].get(f"{part}_cpu") for part in ("embed", "fit")] for name in TRANSFER_TASKS
            ]
            if None not in (pair[0] for pair in spent):
                spent.append([sum(part) for part in zip(*spent, strict=True)])
                body.append([content["title"], *(f"{embed:.0f} + {fit:.0f}" for embed, fit in spent)])
    if not body:
        raise ValueError("no results file has all transfer tasks with processor seconds")
    return "Processor seconds: encoding + fitting.", ["", *TRANSFER_TASKS, "all"], body


def _rows(files: Sequence[Mapping[str, Any]], key: str, value: str, names: Sequence[str]) -> list[list[str]]:
    """Return title, a score for each task and Avg, sorted by Avg. Files that lack a task come last, by title."""
    found = [(content["title"], content[key]) for content in files if key in content]
    if not found:
        raise ValueError(f"no results file has scores of {key}")
    found.sort(key=lambda row: (row[1]["avg"] is None, row[1]["avg"] or 0.0, row[0]))
    return [
        [title, *(_number(scores["tasks"].get(name, {}).get(value)) for name in names), _number(scores["avg"])]
        for title, scores in found
    ]


def _number(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.2f}"


#: Table to function: ``<!-- table:evaluation/sts -->``.
EVALUATION_TABLES: dict[str, Callable[[Sequence[Mapping[str, Any]]], Table]] = {
    "sts": sts_scores_table,
    "transfer": transfer_scores_table,
    "transfer-seconds": transfer_seconds_table,
}


def evaluation_table(folder: str | Path, name: str) -> Table:
    """Return caption, head and rows of a table.

    Arguments:
        folder: the folder of the results files, ``experiments/results/evaluation``.

    Raises:
        ValueError: an unknown table, or no file with its scores.
    """
    if name not in EVALUATION_TABLES:
        raise ValueError(f"table must be one of {sorted(EVALUATION_TABLES)}, got {name!r}")
    contents = [read_results(path) for path in sorted(Path(folder).glob("*.json"))]
    return EVALUATION_TABLES[name]([content for content in contents if "suites" in content])
