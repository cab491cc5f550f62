"""The table of a plan's grids: STS-B dev by learning rate and weight, what was chosen, and what that gave."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.records import load
from experiments.summary import dev_score
from experiments.tables.cells import spread

_RATE, _DROPOUT = "learning_rate", "dropout"


def grid_table(folder: Path, summary: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: one row for each experiment with a grid.

    Arguments:
        folder: the plan's folder of records.

    Raises:
        ValueError: no experiment has a grid over learning rates.
    """
    grids = {name: _points(folder / name) for name in summary["experiments"]}
    grids = {name: points for name, points in grids.items() if points}
    rates = sorted({rate for points in grids.values() for rate, *_ in points})
    if not rates:
        raise ValueError(f"{folder}: no grid trial has a dev score")
    margins = (summary.get("margins") or {}).get("rows") or {}
    body = []
    for name, points in grids.items():
        entry = summary["experiments"][name]
        best = [max((score for at, _, _, score in points if at == rate), default=None) for rate in rates]
        top = max(points, key=lambda point: point[3])
        cells = [entry["title"], *("" if score is None else f"{score:.2f}" for score in best), _chosen(top)]
        cells.append(_weights(points, top))
        average = (entry.get("test") or {}).get("Avg")
        base, margin = next(iter(margins.get(name, {}).items()), (None, None))
        gain = "" if base is None else f"{spread(margin, sign=True)} over {summary['experiments'][base]['title']}"
        body.append([*cells, *_final(folder / name), spread(average), gain])
    head = ["", *(f"dev at {_short(rate)}" for rate in rates), "chosen", "dev by weight"]
    seeds = sorted({(summary["experiments"][name].get("dev") or {"n": 0})["n"] for name in grids} - {0})
    caption = (
        "STS-B dev of the best point of a grid at each learning rate, one seed; the point that was chosen; dev at its "
        f"rate by weight of the searched term. Behind it the chosen point's long runs, {' or '.join(map(str, seeds))} "
        f"{'seed' if seeds == [1] else 'seeds'}: best dev score, its step, and Avg of the seven STS test sets. "
        "Spearman × 100."
    )
    return caption, [*head, "long, dev", "step", "Avg", "margin"], body


def _points(folder: Path) -> list[tuple[float, float | None, Mapping[str, float], float]]:
    """Return learning rate, dropout, weights and dev score of each point of a grid."""
    found = []
    for path in sorted(folder.glob("*.json")):
        record = load(path) or {}
        trial, score = record.get("trial", {}), dev_score(record)
        if trial.get("kind") == "grid" and score is not None and _RATE in trial["arguments"]:
            given = trial["arguments"]
            weights = {key: float(value) for key, value in given.items() if key.endswith("_weight")}
            dropout = float(given[_DROPOUT]) if _DROPOUT in given else None
            found.append((float(given[_RATE]), dropout, weights, score))
    searched = {key for _, _, weights, _ in found for key in weights if len({w.get(key) for _, _, w, _ in found}) > 1}
    return [(rate, drop, {key: w[key] for key in searched}, score) for rate, drop, w, score in found]


def _chosen(point: tuple[float, float | None, Mapping[str, float], float]) -> str:
    rate, dropout, weights, _ = point
    words = [_short(rate), *(f"{key} {value:g}" for key, value in weights.items())]
    return ", ".join([*words, *(["dropout 0.2"] if dropout == 0.2 else [])])


def _short(rate: float) -> str:
    """Return ``1e-4`` for 0.0001."""
    digits, exponent = f"{rate:e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def _weights(points: Sequence[Any], top: tuple[float, float | None, Mapping[str, float], float]) -> str:
    """Return the scores at the chosen learning rate by weight, without those of another dropout."""
    own = [(*weights.values(), score) for rate, dropout, weights, score in points if rate == top[0] and dropout != 0.2]
    return "; ".join(f"{weight:g}: {score:.2f}" for weight, score in sorted(own)) if top[2] and own else ""


def _final(folder: Path) -> list[str]:
    records = [load(path) or {} for path in sorted(folder.glob("seed=*.json"))]
    if not records:
        return ["–", "–"]
    scores = [score for record in records if (score := dev_score(record)) is not None]
    steps = [int(record["dev"]["step"]) for record in records]
    return [f"{sum(scores) / len(scores):.2f}", ", ".join(map(str, steps))]
