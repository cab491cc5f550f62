"""Tables of encoders side by side: teachers and students, and the sizes that an embedding is cut to."""

from collections.abc import Mapping
from typing import Any


def students_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: an encoder each, with size, speed and scores.

    Arguments:
        results: content of a file of ``experiments.students``.
    """
    encoders = results["encoders"]
    tasks = list(next(iter(encoders.values()))["scores"])
    head = ["encoder", "parameters (M)", "MB", "dimensions", "texts/s", *tasks]
    rows = []
    for name, found in encoders.items():
        scores = ["–" if found["scores"][task] is None else f"{found['scores'][task]:.2f}" for task in tasks]
        cells = [f"{found['parameters'] / 1e6:.2f}", f"{found['megabytes']:.1f}", str(found["dimensions"])]
        rows.append([name, *cells, f"{found['texts_per_second']:,.0f}", *scores])
    threads = results["environment"]["threads"]
    caption = (
        f"Scores × 100; texts/s: {results['texts']:,} texts on {results['device']}, threads: {threads}, median of "
        f"three passes.{_training(encoders)}"
    )
    return caption, head, rows


def dimensions_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: a row for each task and encoder, a column for each size.

    Arguments:
        results: content of a file of ``experiments.dimensions``.
    """
    sizes = [str(size) for size in results["sizes"]]
    rows = []
    for task in next(iter(results["encoders"].values()))["scores"]:
        for name, encoder in results["encoders"].items():
            values = [encoder["scores"][task][size] for size in sizes]
            rows.append([task, name, *("–" if value is None else f"{value:.2f}" for value in values)])
    return f"Scores × 100 by number of dimensions.{_training(results['encoders'])}", ["task", "encoder", *sizes], rows


def _training(encoders: Mapping[str, Any]) -> str:
    """Say what the trained encoders were trained on."""
    runs = [encoder["run"] for encoder in encoders.values() if encoder["run"]]
    told = dict.fromkeys(
        f"{run['steps']} steps of {run['batch']} rows of {run['corpus']['name']} from {run['backbone']}, "
        f"seed {run['seed']}"
        for run in runs
    )
    return f" Trained here: {'; '.join(told)}." if told else ""
