"""Is A better than B? A paired bootstrap over sentence pairs.

Shape suffixes: R resamples, P pairs of a task, G distinct values among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from csekit.evaluation.correlation import spearman
from csekit.evaluation.results import read_similarities
from csekit.evaluation.sts_data import STS_TASKS

_BLOCK = 50


@dataclass(frozen=True)
class Difference:
    """A − B on one task, Spearman ×100.

    Arguments:
        a, b: scores on the whole task, mean over seeds.
        difference: a − b; ``low``, ``high``: its 95 % percentile interval.
        p: one-sided: how often a resample does not favour A, (1 + #{difference ≤ 0}) / (1 + resamples).
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


class _Ranks:
    """Ranks of one column of values in any number of resamples, ties at their average rank."""

    def __init__(self, values_P: np.ndarray) -> None:
        self.order = np.argsort(values_P, kind="stable")
        ordered = values_P[self.order]
        new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        self.starts = np.flatnonzero(new)
        self.group_P = np.empty(len(values_P), dtype=np.int64)
        self.group_P[self.order] = np.cumsum(new) - 1

    def centred(self, counts_RP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ranks less their mean (R, P), and their sum of squares (R,), where pair p is drawn ``counts_RP`` times."""
        counts_RG = np.add.reduceat(counts_RP[:, self.order], self.starts, axis=1)
        ranks_RG = np.cumsum(counts_RG, axis=1) - counts_RG / 2 - counts_RP.shape[1] / 2
        return ranks_RG[:, self.group_P], np.einsum("rg,rg,rg->r", counts_RG, ranks_RG, ranks_RG)


def resampled_spearman(gold: _Ranks, systems: Sequence[_Ranks], counts_RP: np.ndarray) -> np.ndarray:
    """Spearman with gold in each resample, mean over ``systems``: (R,). 0 where a resample is constant."""
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
    """Spearman of each side in each resample of the pairs, (R,): the same pairs for all sides and seeds.

    Arguments:
        gold: (P,) gold scores.
        sides: similarities (P,), one array a seed; the Spearman is averaged over seeds.
    """
    rng = rng or np.random.default_rng(0)
    size, ranks = len(gold), _Ranks(gold)
    systems = [[_Ranks(values) for values in side] for side in sides]
    scores = [np.empty(resamples) for _ in sides]
    for start in range(0, resamples, _BLOCK):
        rows = min(_BLOCK, resamples - start)
        drawn = rng.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
        counts_RP = np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size).astype(np.float64)
        for side, found in zip(systems, scores, strict=True):
            found[start : start + rows] = resampled_spearman(ranks, side, counts_RP)
    return scores


def p_value(better_R: np.ndarray, baseline_R: np.ndarray) -> float:
    """One-sided: how often a resample does not favour the first, (1 + #{better ≤ baseline}) / (1 + R)."""
    return float((1 + np.sum(better_R <= baseline_R)) / (1 + len(better_R)))


def bootstrap_averages(
    runs: Mapping[str, Sequence[Path]], resamples: int = 1000, seed: int = 0
) -> dict[str, np.ndarray]:
    """Avg of the seven STS sets in each resample of the pairs, (R,), by name; the resamples of :func:`compare_runs`.

    Arguments:
        runs: results files by name, one a seed. Names with a file that has not all seven sets are left out.
    """
    sides = {name: _read_side(paths) for name, paths in runs.items()}
    sides = {name: side for name, side in sides.items() if all(set(STS_TASKS) <= run.keys() for run in side)}
    if not sides:
        return {}
    _common_tasks([run for side in sides.values() for run in side])
    averages = {name: np.zeros(resamples) for name in sides}
    for task, stream in zip(STS_TASKS, np.random.default_rng(seed).spawn(len(STS_TASKS)), strict=True):
        gold = next(iter(sides.values()))[0][task][1]
        values = [[run[task][0] for run in side] for side in sides.values()]
        for name, scores_R in zip(sides, bootstrap(gold, *values, resamples=resamples, rng=stream), strict=True):
            averages[name] += scores_R / len(STS_TASKS)
    return averages


def _summary(a: float, b: float, draws_a_R: np.ndarray, draws_b_R: np.ndarray) -> Difference:
    low, high = 100 * np.percentile(draws_a_R - draws_b_R, [2.5, 97.5])
    return Difference(100 * a, 100 * b, 100 * (a - b), float(low), float(high), p_value(draws_a_R, draws_b_R))


def _read_side(paths: str | Path | Sequence[str | Path]) -> list[dict[str, tuple[np.ndarray, np.ndarray]]]:
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    if not files:
        raise ValueError("results files must be given on both sides, got none")
    return [read_similarities(path) for path in files]


def _common_tasks(runs: Sequence[dict[str, Any]]) -> list[str]:
    known = [*STS_TASKS, *sorted(runs[0].keys() - set(STS_TASKS))]
    tasks = [task for task in known if all(task in run for run in runs)]
    if not tasks:
        raise ValueError(f"results files must share a task, got {[sorted(run) for run in runs]}")
    for task in tasks:
        if any(not np.array_equal(run[task][1], runs[0][task][1]) for run in runs[1:]):
            raise ValueError(f"results files must be of the same pairs, the gold scores of {task} differ")
    return tasks


def compare_runs(
    a: str | Path | Sequence[str | Path],
    b: str | Path | Sequence[str | Path],
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Difference]:
    """Paired bootstrap between results files, for each task they share, and for ``Avg`` where they share the seven.

    Pairs are resampled, seeds are not: the interval says how much the choice of test pairs matters, not how much
    another training seed would. The same arguments give the same numbers.

    Arguments:
        a, b: a results file, or one file a seed.

    Raises:
        FileNotFoundError, ValueError: a file is missing or malformed, no task in common, or different pairs.
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    side_a, side_b = _read_side(a), _read_side(b)
    tasks = _common_tasks([*side_a, *side_b])
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
