"""Test whether A is better than B, by a paired bootstrap over sentence pairs.

Shape suffixes: R resamples, P pairs of a task, G distinct values among them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from csekit.evaluation.correlation import spearman
from csekit.evaluation.results import read_results, read_similarities
from csekit.evaluation.sts_data import STS_TASKS

_BLOCK = 50

#: Task to (similarities, gold), as ``read_similarities`` gives them.
_Run = dict[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Difference:
    """The difference A − B on one task, Spearman ×100.

    Arguments:
        a, b: scores on the whole task, mean over seeds.
        difference: a − b; ``low`` and ``high`` bound its 95 % percentile interval.
        p: one-sided p-value: the share of resamples that do not favour A, (1 + #{difference ≤ 0}) / (1 + resamples).
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


class Ranks:
    """Compute the ranks of one column of values in many resamples, ties at their average rank."""

    def __init__(self, values_P: np.ndarray) -> None:
        self.order = np.argsort(values_P, kind="stable")
        ordered = values_P[self.order]
        new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        self.starts = np.flatnonzero(new)
        self.group_P = np.empty(len(values_P), dtype=np.int64)
        self.group_P[self.order] = np.cumsum(new) - 1

    def centred(self, counts_RP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ranks minus their mean (R, P) and their sum of squares (R,); pair p is drawn ``counts_RP`` times."""
        counts_RG = np.add.reduceat(counts_RP[:, self.order], self.starts, axis=1)
        ranks_RG = np.cumsum(counts_RG, axis=1) - counts_RG / 2 - counts_RP.shape[1] / 2
        return ranks_RG[:, self.group_P], np.einsum("rg,rg,rg->r", counts_RG, ranks_RG, ranks_RG)


def resampled_spearman(gold: Ranks, systems: Sequence[Ranks], counts_RP: np.ndarray) -> np.ndarray:
    """Return Spearman with gold in each resample, averaged over ``systems``: (R,). A constant resample gives 0."""
    gold_RP, gold_R = gold.centred(counts_RP)
    weighted_RP = gold_RP * counts_RP
    total = np.zeros(len(counts_RP))
    for system in systems:
        ranks_RP, squares_R = system.centred(counts_RP)
        norm = np.sqrt(squares_R * gold_R)
        total += np.einsum("rp,rp->r", weighted_RP, ranks_RP) / np.where(norm > 0, norm, np.inf)
    return total / len(systems)


def bootstrap(
    gold: np.ndarray,
    *sides: Sequence[np.ndarray],
    resamples: int = 1000,
    rng: np.random.Generator | None = None,
) -> list[np.ndarray]:
    """Return Spearman of each side in each resample of the pairs, (R,); all sides and seeds share the pairs.

    Arguments:
        gold: (P,) gold scores.
        sides: similarities (P,), one array per seed; Spearman is averaged over seeds.
    """
    rng = rng or np.random.default_rng(0)
    size, ranks = len(gold), Ranks(gold)
    systems = [[Ranks(values) for values in side] for side in sides]
    scores = [np.empty(resamples) for _ in sides]
    for start in range(0, resamples, _BLOCK):
        rows = min(_BLOCK, resamples - start)
        drawn = rng.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
        counts_RP = np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size).astype(np.float64)
        for side, found in zip(systems, scores, strict=True):
            found[start : start + rows] = resampled_spearman(ranks, side, counts_RP)
    return scores


def p_value(better_R: np.ndarray, baseline_R: np.ndarray) -> float:
    """Return the one-sided p-value: the share of resamples that do not favour the first,
    (1 + #{better ≤ baseline}) / (1 + R)."""
    return float((1 + np.sum(better_R <= baseline_R)) / (1 + len(better_R)))


def bootstrap_averages(
    runs: Mapping[str, Sequence[Path]], resamples: int = 1000, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return the Avg of the seven STS sets in each resample of the pairs, (R,), by name, with the resamples of
    :func:`compare_runs`.

    Arguments:
        runs: results files by name, one per seed. A name is left out if one of its files lacks one of the seven sets.

    Raises:
        ValueError: as ``compare_runs``.
    """
    sides = {name: _read_side(paths) for name, paths in runs.items()}
    sides = {name: side for name, side in sides.items() if all(set(STS_TASKS) <= run.keys() for run in side)}
    if not sides:
        return {}
    _common_tasks([run for side in sides.values() for run in side])
    _check_files([runs[name] for name in sides], STS_TASKS)
    averages = {name: np.zeros(resamples) for name in sides}
    for task, stream in zip(STS_TASKS, np.random.default_rng(seed).spawn(len(STS_TASKS)), strict=True):
        gold = next(iter(sides.values()))[0][task][1]
        values = [[run[task][0] for run in side] for side in sides.values()]
        for name, scores_R in zip(sides, bootstrap(gold, *values, resamples=resamples, rng=stream), strict=True):
            averages[name] += scores_R / len(STS_TASKS)
    return averages


def _summary(a: float, b: float, draws_a_R: np.ndarray, draws_b_R: np.ndarray) -> Difference:
    """Return the difference with its interval; all nan where one side has no correlation."""
    if np.isnan(a - b):
        return Difference(100 * a, 100 * b, *[float("nan")] * 4)
    low, high = 100 * np.percentile(draws_a_R - draws_b_R, [2.5, 97.5])
    return Difference(100 * a, 100 * b, 100 * (a - b), float(low), float(high), p_value(draws_a_R, draws_b_R))


def _files(paths: str | Path | Sequence[str | Path]) -> list[str | Path]:
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    if not files:
        raise ValueError("results files must be given on both sides, got none")
    if not all(map(str, files)):
        raise ValueError(f"results files must have names, got {[str(file) for file in files]}")
    places = [os.path.realpath(file) for file in files]
    twice = next((file for i, file in enumerate(files) if places[i] in places[:i]), None)
    if twice is not None:
        raise ValueError(f"results files of one side must be of different seeds, got {Path(twice).name} twice")
    return files


def _read_side(paths: str | Path | Sequence[str | Path]) -> list[_Run]:
    return [read_similarities(path) for path in _files(paths)]


def _check_copies(paths: Sequence[str | Path], side: Sequence[_Run]) -> None:
    """Raise ValueError if a file of one side is a copy of another one, which is no further seed."""
    for i, run in enumerate(side):
        for j, other in enumerate(side[:i]):
            if run.keys() == other.keys() and all(np.array_equal(run[task][0], other[task][0]) for task in run):
                raise ValueError(
                    "results files of one side must be of different seeds, got the same similarities in "
                    f"{Path(paths[j]).name} and {Path(paths[i]).name}"
                )


def _check_files(sides: Sequence[Sequence[str | Path]], tasks: Sequence[str]) -> None:
    """Raise ValueError unless all files have the same text form and checksum of each task, and the files of one side
    the same pooling. A file that does not name one of them is accepted."""
    known: dict[tuple[str, str], tuple[Any, str]] = {}
    for side in sides:
        poolings: set[str] = set()
        for path in map(Path, side):
            content = read_results(path)
            for key, value in _data_of(content, tasks).items():
                expected, first = known.setdefault(key, (value, path.name))
                if value != expected:
                    raise ValueError(
                        f"results files must have the same {key[0]} of {key[1]}, got {expected!r} in {first} and "
                        f"{value!r} in {path.name}"
                    )
            if (pooling := pooling_of(content)) is not None:
                poolings.add(pooling)
        if len(poolings) > 1:
            raise ValueError(f"results files of one side must have the same pooling, got {sorted(poolings)}")


def pooling_of(content: Mapping[str, Any]) -> str | None:
    """Return the pooling of a results file's encoder, None if the file does not name it."""
    encoder = (content.get("run") or {}).get("encoder")
    settings = encoder if isinstance(encoder, Mapping) else content.get("config") or {}
    return settings.get("pooling")


def _data_of(content: Mapping[str, Any], tasks: Sequence[str]) -> dict[tuple[str, str], Any]:
    """Map (field, task) to the text form and the checksum of these tasks in a results file."""
    found = {}
    for section in content.values():
        if not isinstance(section, Mapping):
            continue
        entries = section.get("tasks") or ({section["set"]: section} if "set" in section else {})
        for task in tasks:
            if isinstance(entries, Mapping) and isinstance(entry := entries.get(task), Mapping):
                found["text form", task] = section.get("text_form")
                found["checksum", task] = entry.get("checksum")
    return {key: value for key, value in found.items() if value is not None}


def _common_tasks(runs: Sequence[_Run]) -> list[str]:
    known = [*STS_TASKS, *sorted(runs[0].keys() - set(STS_TASKS))]
    tasks = [task for task in known if all(task in run for run in runs)]
    if not tasks:
        raise ValueError(f"results files must share a task, got {[sorted(run) for run in runs]}")
    for task in tasks:
        if any(not np.array_equal(run[task][1], runs[0][task][1]) for run in runs[1:]):
            raise ValueError(f"results files must have the same pairs, the gold scores of {task} differ")
    return tasks


def compare_runs(
    a: str | Path | Sequence[str | Path],
    b: str | Path | Sequence[str | Path],
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Difference]:
    """Compare results files by a paired bootstrap, on each task they share, and on ``Avg`` if they share the seven.

    Pairs are resampled, seeds are not: the interval shows how much the choice of test pairs matters, not how much
    another training seed would. The same arguments give the same numbers.

    Arguments:
        a, b: a results file, or one file per seed.

    Raises:
        FileNotFoundError, ValueError: a file is missing or malformed; no task in common; different pairs, checksums or
            text forms; seeds of one side with different pooling; a file of one side that is a copy of another.
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    side_a, side_b = _read_side(a), _read_side(b)
    _check_copies(_files(a), side_a)
    _check_copies(_files(b), side_b)
    tasks = _common_tasks([*side_a, *side_b])
    _check_files([_files(a), _files(b)], tasks)
    result, draws = {}, {}
    for task, stream in zip(tasks, np.random.default_rng(seed).spawn(len(tasks)), strict=True):
        gold = side_a[0][task][1]
        values_a, values_b = ([run[task][0] for run in side] for side in (side_a, side_b))
        mean_a, mean_b = (float(np.mean([spearman(x, gold) for x in values])) for values in (values_a, values_b))
        draws[task] = bootstrap(gold, values_a, values_b, resamples=resamples, rng=stream)
        result[task] = _summary(mean_a, mean_b, *draws[task])
    if set(STS_TASKS) <= result.keys():
        mean_a = float(np.mean([result[task].a for task in STS_TASKS])) / 100
        mean_b = float(np.mean([result[task].b for task in STS_TASKS])) / 100
        result["Avg"] = _summary(mean_a, mean_b, *np.mean([draws[task] for task in STS_TASKS], axis=0))
    return result
