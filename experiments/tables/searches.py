"""Tables of a search of combinations (``experiments.search``): all its trials, and the trials of each choice."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from csekit.evaluation.results import read_results
from experiments.tables.cells import number

Table = tuple[str, list[str], list[list[str]]]

_STATES = {"finished": "", "behind": "fell behind", "failed": "failed"}


def searched(results_dir: Path, table: str) -> Table:
    """Return caption, head and rows of ``NAME`` or ``NAME/choices``.

    Raises:
        ValueError: another table is named.
        FileNotFoundError: the search has no record.
    """
    name, _, which = table.partition("/")
    if which not in ("", "choices"):
        raise ValueError(f"a search has the tables NAME and NAME/choices, got {table!r}")
    results = read_results(results_dir / "searches" / f"{name}.json")
    return choices_table(results) if which else search_table(results)


def search_table(results: Mapping[str, Any]) -> Table:
    """Return caption, head and rows: one row a trial, those that went furthest first, then the best.

    Arguments:
        results: content of the search's record.
    """
    trials = sorted(results["trials"], key=lambda row: (-len(row["dev"]), -_best(row)))
    steps = sorted({point["step"] for row in trials for point in row["dev"]})
    body = []
    for row in trials:
        scores = {point["step"]: point["stsb_spearman"] for point in row["dev"]}
        cells = [number(scores[step]) if step in scores else "" for step in steps]
        body.append([", ".join(_named(results, row)), *cells, _STATES[row["state"]]])
    return _caption(results), ["choices", *(f"dev at {step}" for step in steps), ""], body


def choices_table(results: Mapping[str, Any]) -> Table:
    """Return caption, head and rows: one row a choice, with the number of its trials at each rung, and its best one.

    Arguments:
        results: content of the search's record.
    """
    search, trials = results["search"], results["trials"]
    rungs = _rungs(search)
    body = []
    for axis in results["axes"]:
        for choice in axis["choices"]:
            own = [row for row in trials if row["choices"][axis["name"]] == choice]
            passed = [sum(_reached(row) > rung for row in own) for rung in rungs]
            first = [row["dev"][0]["stsb_spearman"] for row in own if row["dev"]]
            mean = number(sum(first) / len(first)) if first else "–"
            best = number(max((row["best"] for row in own if row["best"] is not None), default=None))
            body.append([axis["name"], choice, str(len(own)), *map(str, passed), mean, best])
    head = ["axis", "choice", "trials", *(f"beyond {rung}" for rung in rungs), f"mean dev at {rungs[0]}", "best dev"]
    caption = (
        f"The table counts the trials of each choice, and those that went on after {' and '.join(map(str, rungs))} "
        f"steps. Mean dev: STS-B dev of all of them after {rungs[0]} steps; best dev: of those that went to the end. "
        "The first choice of an axis is SimCSE's."
    )
    return caption, head, body


def _rungs(search: Mapping[str, Any]) -> list[int]:
    """Return the steps after which trials are stopped."""
    found, steps = [search["first_rung"]], search["arguments"]["max_steps"]
    while found[-1] * search["reduction"] < steps:
        found.append(found[-1] * search["reduction"])
    return found


def _caption(results: Mapping[str, Any]) -> str:
    search, trials = results["search"], results["trials"]
    given, rungs = search["arguments"], _rungs(search)
    ended = [sum(row["state"] == "behind" and _reached(row) == rung for row in trials) for rung in rungs]
    stopped = " and ".join(f"{count} after {rung} steps" for count, rung in zip(ended, rungs, strict=True))
    finished = sum(row["state"] == "finished" for row in trials)
    failed = sum(row["state"] == "failed" for row in trials)
    return (
        f"STS-B dev (Spearman × 100) by step of {len(trials)} combinations, backbone {given['model_name_or_path']}, "
        f"stand-in Wikipedia corpus, {given['per_device_train_batch_size']} sentences a step, learning rate "
        f"{given['learning_rate']:g}, seed {search['seed']}. Successive halving stopped {stopped}; {finished} went to "
        f"the end{f', {failed} failed' if failed else ''}."
    )


def _named(results: Mapping[str, Any], row: Mapping[str, Any]) -> Sequence[str]:
    """Return a trial's choices that are not the first of their axis."""
    chosen = [(row["choices"][axis["name"]], axis["choices"][0]) for axis in results["axes"]]
    return [choice for choice, first in chosen if choice != first] or ["SimCSE"]


def _best(row: Mapping[str, Any]) -> float:
    return max((point["stsb_spearman"] for point in row["dev"]), default=float("-inf"))


def _reached(row: Mapping[str, Any]) -> int:
    """Return the last step with a dev score."""
    return int(row["dev"][-1]["step"]) if row["dev"] else 0
