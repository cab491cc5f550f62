"""The tables of a plan's grids: STS-B dev by learning rate and weight, what was chosen, and what that gave; and beside
each margin the gap of the term's network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.records import load
from experiments.summary import dev_score
from experiments.tables.cells import number, spread

GAPS = ("metrics/aux_mlm_gap", "metrics/rtd_gap", "metrics/icm_gap")
ACCURACIES = ("metrics/aux_mlm_accuracy", "metrics/rtd_accuracy_replaced")


@dataclass(frozen=True)
class Point:
    """A trial of a grid.

    Arguments:
        trial: its name.
        dropout: None where the encoder's own was left.
        weights: of the searched terms, by argument.
        dev: the best dev score.
        log: the log's entries.
    """

    trial: str
    rate: float
    dropout: float | None
    weights: dict[str, float]
    dev: float
    log: Sequence[Mapping[str, Any]]


def grid_table(folder: Path, summary: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: one row for each experiment with a grid.

    Arguments:
        folder: the plan's folder of records.

    Raises:
        ValueError: no experiment has a grid over learning rates.
    """
    experiments = summary["experiments"]
    grids = {name: points for name in experiments if (points := _points(folder / name, experiments[name]))}
    rates = sorted({point.rate for points in grids.values() for point in points})
    if not rates:
        raise ValueError(f"{folder}: no grid trial has a dev score")
    margins = (summary.get("margins") or {}).get("rows") or {}
    body = []
    for name, points in grids.items():
        entry = experiments[name]
        cells = [number(max((p.dev for p in points if p.rate == rate), default=None)) for rate in rates]
        chosen = next(point for point in points if point.trial == entry["selected"]["trial"])
        base, margin = next(iter(margins.get(name, {}).items()), (None, None))
        gain = "" if base is None else f"{spread(margin, sign=True)} over {experiments[base]['title']}"
        average = spread((entry.get("test") or {}).get("Avg"))
        long = [spread(entry.get("dev")), _steps(folder / name, entry), average, gain]
        several = len({weight for point in points for weight in point.weights}) > 1
        how = (_by_name if several else _by_weight)(points, chosen)
        picked = f"{_short(chosen.rate)}, {chosen.trial}" if several else _settings(chosen)
        body.append([entry["title"], *cells, picked, how, *long])
    seeds = sorted({entry["dev"]["n"] for name in grids if (entry := experiments[name]).get("dev")})
    over = "one seed" if seeds == [1] else f"mean ± standard deviation over {' or '.join(map(str, seeds))} seeds"
    caption = (
        "STS-B dev of the best point of a grid at each learning rate, one seed; the point that was chosen; dev by "
        "weight of the searched term, or by combination, at its rate and dropout. Behind it the chosen point's long "
        f"runs, {over}: best dev score, its step, and Avg of the seven STS test sets. Spearman × 100."
    )
    head = ["", *(f"dev at {_short(rate)}" for rate in rates), "chosen", "dev by setting"]
    return caption, [*head, "long, dev", "step", "Avg", "margin"], body


def gaps_table(folder: Path, summary: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: one row for each point of a grid over weights whose log has a gap, with its
    margin on dev over the base's point of the same learning rate, both at their usual dropout. Experiments whose base
    searches weights itself are left out.

    Raises:
        ValueError: no point has a gap and a base.
    """
    against = (summary.get("margins") or {}).get("against") or {}
    body, experiments = [], summary["experiments"]
    for name, bases in against.items() if isinstance(against, Mapping) else ():
        base = bases if isinstance(bases, str) else bases[0]
        plain = {point.rate: point.dev for point in _usual(folder / base, experiments[base]) if not point.weights}
        for point in _usual(folder / name, experiments[name]):
            gap, accuracy = late(point.log, GAPS), late(point.log, ACCURACIES)
            if gap is None or not point.weights or point.rate not in plain:
                continue
            weight = ", ".join(f"{value:g}" for value in point.weights.values())
            share = "" if accuracy is None else f"{100 * accuracy:.0f} %"
            margin = f"{point.dev - plain[point.rate]:+.2f} over {experiments[base]['title']}"
            cells = [experiments[name]["title"], _short(point.rate), weight, f"{gap:.4f}", share]
            body.append([*cells, number(point.dev), margin])
    if not body:
        raise ValueError(f"{folder}: no point of a grid has a gap and a base")
    caption = (
        "Points of the grid, one seed. Gap: the loss of the term's network with another sentence's vector less that "
        "with its own, nats a token, mean of the last three log entries; accuracy: share of the masked or replaced "
        "tokens that it finds; dev: STS-B dev, Spearman × 100; margin: on dev, over the base's point of the same "
        "learning rate."
    )
    return caption, ["", "learning rate", "weight", "gap", "accuracy", "dev", "margin"], body


def _points(folder: Path, entry: Mapping[str, Any]) -> list[Point]:
    """Return the points of an experiment's grid over learning rates, in the order of rate and weights.

    Arguments:
        entry: of the plan's summary; points that its grid does not have are of an earlier plan, and left out.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        record = load(path) or {}
        trial, dev = record.get("trial") or {}, dev_score(record)
        given = trial.get("arguments") or {}
        if trial.get("kind") != "grid" or dev is None or "learning_rate" not in given:
            continue
        if entry.get("grid") is not None and entry["grid"].get(path.stem) is None:
            continue
        weights = {key: float(value) for key, value in given.items() if key.endswith("_weight")}
        dropout = float(given["dropout"]) if "dropout" in given else None
        rate = float(given["learning_rate"])
        found.append(Point(path.stem, rate, dropout, weights, dev, record.get("log") or []))
    for name in {name for point in found for name in point.weights}:
        if len({point.weights.get(name) for point in found}) == 1:  # a setting of the experiment, not searched
            for point in found:
                del point.weights[name]
    return sorted(found, key=lambda point: (point.rate, *point.weights.values()))


def _usual(folder: Path, entry: Mapping[str, Any]) -> list[Point]:
    """Return the points that leave the encoder's dropout alone, else those of the lowest dropout."""
    points = _points(folder, entry)
    usual = min((point.dropout for point in points), key=lambda value: -1 if value is None else value, default=None)
    return [point for point in points if point.dropout == usual]


def late(log: Sequence[Mapping[str, Any]], names: Sequence[str]) -> float | None:
    """Return the mean of the last three entries of a log that have one of these values; None where none has."""
    found = [row[name] for row in log for name in names if row.get(name) is not None][-3:]
    return sum(found) / len(found) if found else None


def _settings(point: Point) -> str:
    words = [_short(point.rate), *(f"{key} {value:g}" for key, value in point.weights.items())]
    return ", ".join([*words, *([] if point.dropout is None else [f"dropout {point.dropout:g}"])])


def _by_weight(points: Sequence[Point], chosen: Point) -> str:
    return "; ".join(
        f"{value:g}: {point.dev:.2f}" for point in _beside(points, chosen) for value in point.weights.values()
    )


def _by_name(points: Sequence[Point], chosen: Point) -> str:
    """Return dev by the point's name, of a grid over combinations."""
    return "; ".join(f"{point.trial}: {point.dev:.2f}" for point in _beside(points, chosen))


def _beside(points: Sequence[Point], chosen: Point) -> list[Point]:
    return [point for point in points if (point.rate, point.dropout) == (chosen.rate, chosen.dropout)]


def _short(rate: float) -> str:
    """Return ``1e-4`` for 0.0001."""
    digits, exponent = f"{rate:e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def _steps(folder: Path, entry: Mapping[str, Any]) -> str:
    """Return the steps of the best dev scores of the long runs that the summary counts."""
    counted = [str(seed) for seed in entry.get("finished_seeds", [])]
    found = {path: path.stem.partition("=")[2] for path in sorted(folder.glob("seed=*.json"))}
    records = [load(path) or {} for path, seed in found.items() if seed in counted]
    return ", ".join(str(record["dev"]["step"]) for record in records) or "–"
