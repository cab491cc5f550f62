"""The tables of a plan's grids: STS-B dev by learning rate and weight, what was chosen, and what that gave; and beside
each margin the gap of the term's network."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.records import load
from experiments.summary import dev_score
from experiments.tables.cells import spread

GAPS = ("metrics/aux_mlm_gap", "metrics/rtd_gap", "metrics/icm_gap")
ACCURACIES = ("metrics/aux_mlm_accuracy", "metrics/rtd_accuracy_replaced")
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


def gaps_table(folder: Path, summary: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: one row for each point of a grid whose log has a gap, with its margin on dev over
    the base's point of the same learning rate and dropout. Rows whose base has several such points are left out.

    Raises:
        ValueError: no point has a gap and a base.
    """
    margins = (summary.get("margins") or {}).get("against") or {}
    body = []
    for name, base in margins.items() if isinstance(margins, Mapping) else ():
        plain: dict[tuple[float, float | None], list[float]] = {}
        for rate, dropout, _, score in _points(folder / base):
            plain.setdefault((rate, dropout), []).append(score)
        for (rate, dropout, weights, score), (gap, accuracy) in zip(*_with_gaps(folder / name), strict=True):
            own = plain.get((rate, dropout), [])
            if gap is not None and len(own) == 1 and weights:
                weight = ", ".join(f"{value:g}" for value in weights.values())
                cells = [summary["experiments"][name]["title"], _short(rate), weight, f"{gap:.4f}"]
                margin = f"{score - own[0]:+.2f} over {summary['experiments'][base]['title']}"
                body.append([*cells, "" if accuracy is None else f"{100 * accuracy:.0f} %", f"{score:.2f}", margin])
    if not body:
        raise ValueError(f"{folder}: no point of a grid has a gap and a base")
    caption = (
        "Points of the grid, one seed. Gap: the loss of the term's network with another sentence's vector less that "
        "with its own, nats a token, mean of the last three log entries; accuracy: share of the masked or replaced "
        "tokens that it finds; dev: STS-B dev, Spearman × 100; margin: on dev, over the base's point of the same "
        "learning rate and dropout."
    )
    return caption, ["", "learning rate", "weight", "gap", "accuracy", "dev", "margin"], body


def _with_gaps(folder: Path) -> tuple[list[Any], list[tuple[float | None, float | None]]]:
    """Return the points as :func:`_points`, without those of dropout 0.2, in the order of rate and weight; and of each
    the gap and the accuracy of its network."""
    logs = [record.get("log") or [] for record in _records(folder)]
    both = [(point, log) for point, log in zip(_points(folder), logs, strict=True) if point[1] != 0.2]
    both.sort(key=lambda pair: (pair[0][0], *pair[0][2].values()))
    return [point for point, _ in both], [(_late(log, GAPS), _late(log, ACCURACIES)) for _, log in both]


def _late(log: Sequence[Mapping[str, Any]], names: Sequence[str]) -> float | None:
    found = [row[name] for row in log for name in names if row.get(name) is not None][-3:]
    return sum(found) / len(found) if found else None


def _points(folder: Path) -> list[tuple[float, float | None, Mapping[str, float], float]]:
    """Return learning rate, dropout, weights and dev score of each point of a grid."""
    found = []
    for record in _records(folder):
        given = record["trial"]["arguments"]
        weights = {key: float(value) for key, value in given.items() if key.endswith("_weight")}
        found.append((float(given[_RATE]), float(given.get(_DROPOUT, 0.1)), weights, float(record["dev"]["best"])))
    searched = {key for _, _, weights, _ in found for key in weights if len({w.get(key) for _, _, w, _ in found}) > 1}
    return [(rate, drop, {key: w[key] for key in searched}, score) for rate, drop, w, score in found]


def _records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a grid's trials that have a learning rate of their own and a dev score."""
    found = [load(path) or {} for path in sorted(folder.glob("*.json"))]
    grid = [record for record in found if (record.get("trial") or {}).get("kind") == "grid"]
    return [each for each in grid if _RATE in each["trial"]["arguments"] and dev_score(each) is not None]


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
