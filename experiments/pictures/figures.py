"""Figures of trainings: traces, differences between methods, few-shot curves, ablations. Pure functions."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from csekit.evaluation.plotting import COLOURS, HATCHES, LINES, MARKERS, drawing, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Quantity to label and what is better, for traces.
QUANTITIES = {
    "alignment": "alignment (lower: closer)",
    "uniformity": "uniformity (lower: more uniform)",
    "mean_cosine": "mean cosine (lower: less of a cone)",
    "effective_rank": "effective rank (higher: more directions)",
}


@drawing
def training_traces(
    runs: Mapping[str, Sequence[Mapping[str, float]]],
    quantities: Mapping[str, str] = QUANTITIES,
    source: str = "STS-B dev",
) -> "Figure":
    """Plot quantities over training steps, one line for each run (MSSE, Fig. 6).

    Arguments:
        runs: name to its evaluations, each with ``step`` and the quantities.
        quantities: key of an evaluation to the label of its panel.
        source: what was evaluated, for the axis.
    """
    figure, axes = panels(len(quantities), 2, 3.6, 2.6, sharex=True)
    for axis, (quantity, label) in zip(axes, quantities.items(), strict=True):
        for place, (name, evaluations) in enumerate(runs.items()):
            steps = [row["step"] for row in evaluations]
            axis.plot(steps, [row[quantity] for row in evaluations], label=name, markersize=4, **_look(place))
        axis.set_title(label)
        axis.set_xlabel("training step")
        axis.tick_params("x", labelbottom=True)
        axis.set_ylabel(source)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(runs), 4))
    return figure


@drawing
def task_differences(
    differences: Mapping[str, Mapping[str, Sequence[float]]], baseline: str, unit: str = "Spearman × 100"
) -> "Figure":
    """Plot the difference to the baseline on each task: bars at the mean over seeds, whiskers of ± one deviation
    (MSSE, Fig. 5).

    Arguments:
        differences: by method and task, one difference for each seed; the same tasks for every method.
        baseline: name of the method whose scores were subtracted.
    """
    tasks = list(next(iter(differences.values())))
    width = 0.8 / len(differences)
    figure, (axis,) = panels(1, 1, max(6.5, 0.85 * len(tasks)), 3.4)
    for place, (method, values) in enumerate(differences.items()):
        means = [statistics.fmean(values[task]) for task in tasks]
        spreads = [statistics.stdev(values[task]) if len(values[task]) > 1 else 0.0 for task in tasks]
        at = np.arange(len(tasks)) + (place - (len(differences) - 1) / 2) * width
        error = {"elinewidth": 0.9, "ecolor": "black"}
        axis.bar(
            at,
            means,
            0.92 * width,
            yerr=spreads if any(spreads) else None,
            capsize=2,
            label=method,
            error_kw=error,
            **_fill(place),
        )
    axis.axhline(0, color="black", linewidth=0.8)
    for edge in np.arange(len(tasks) - 1) + 0.5:
        axis.axvline(edge, color="#DDDDDD", linewidth=0.6)
    axis.set_xticks(range(len(tasks)), tasks)
    axis.tick_params("x", length=0)
    axis.grid(axis="x", visible=False)
    axis.set_ylabel(f"difference to {baseline}\n{unit}")
    counts = sorted({len(seeds) for values in differences.values() for seeds in values.values()})
    if any(count > 1 for count in counts):
        seeds = " or ".join(map(str, counts))
        axis.set_xlabel(f"bars: mean over {seeds} seeds; whiskers: ± standard deviation")
    figure.legend(loc="outside lower center", ncols=min(len(differences), 4))
    return figure


@drawing
def few_shot_curves(
    curves: Mapping[str, Mapping[int, Sequence[float]]], score: str = "Avg of seven STS test sets, Spearman × 100"
) -> "Figure":
    """Plot the score by the number of training sentences: the mean over seeds, a band of ± one standard deviation, and
    each seed as a dot.

    Arguments:
        curves: by method and number of sentences, one score for each seed.
    """
    figure, (axis,) = panels(1, 1, 6.0, 3.9)
    for place, (method, curve) in enumerate(curves.items()):
        xs = sorted(curve)
        means = np.array([statistics.fmean(curve[x]) for x in xs])
        spreads = np.array([statistics.stdev(curve[x]) if len(curve[x]) > 1 else 0.0 for x in xs])
        look = _look(place)
        axis.fill_between(xs, means - spreads, means + spreads, color=look["color"], alpha=0.18, linewidth=0)
        axis.plot(xs, means, label=method, **look)
        shift = 1 + 0.035 * (place - (len(curves) - 1) / 2)
        for x in xs:
            seeds = [shift * x] * len(curve[x])
            axis.plot(seeds, curve[x], look["marker"], color=look["color"], markersize=3, alpha=0.6, linestyle="none")
    axis.set_xscale("log")
    sizes = sorted({size for curve in curves.values() for size in curve})
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.minorticks_off()
    axis.set_xlabel("training sentences")
    axis.set_ylabel(score)
    counts = sorted({len(seeds) for curve in curves.values() for seeds in curve.values()})
    many = f"mean of {' or '.join(map(str, counts))} seeds, band ± standard deviation"
    title = "one seed" if counts == [1] else many
    figure.legend(loc="outside lower center", ncols=min(len(curves), 4), title=title)
    return figure


@drawing
def score_dots(scores: Mapping[str, Sequence[float]], unit: str) -> "Figure":
    """Plot a row for each method, the best on top: a dot for each seed, a bar at the mean, a line of ± one deviation.

    Arguments:
        scores: by name, one score for each seed.
        unit: unit of the scores, for the axis.
    """
    ordered = sorted(scores.items(), key=lambda item: statistics.fmean(item[1]))
    figure, (axis,) = panels(1, 1, 7.0, 0.9 + 0.26 * len(ordered))
    for y, (_, values) in enumerate(ordered):
        mean = statistics.fmean(values)
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        axis.plot([mean - spread, mean + spread], [y, y], color=COLOURS[0], linewidth=1.2, zorder=1)
        axis.plot([mean, mean], [y - 0.28, y + 0.28], color=COLOURS[0], linewidth=2.5, zorder=2)
        axis.plot(values, [y] * len(values), "o", color=COLOURS[1], markersize=4.5, alpha=0.8, zorder=3)
        axis.annotate(f"{mean:.2f}", (max(*values, mean + spread), y), (6, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    axis.grid(axis="y", visible=False)
    axis.tick_params("y", length=0)
    axis.margins(x=0.12)
    axis.set_ylim(-0.7, len(ordered) - 0.3)
    axis.set_xlabel(unit)
    return figure


@drawing
def scores_by_loss(
    curves: Mapping[str, Mapping[str, Mapping[float, float]]], unit: str = "Spearman × 100"
) -> "Figure":
    """Plot scores by the loss of the masked LM that a training started from, a panel for each test; the better
    language model stands on the right.

    Arguments:
        curves: by test and name of a line, loss to score.
    """
    figure, axes = panels(len(curves), 2, 3.8, 3.2)
    places = {
        name: place for place, name in enumerate(dict.fromkeys(name for lines in curves.values() for name in lines))
    }
    handles = {}
    for axis, (test, lines) in zip(axes, curves.items(), strict=True):
        for name, points in lines.items():
            xs = sorted(points, reverse=True)
            (handles[name],) = axis.plot(xs, [points[x] for x in xs], label=name, markersize=5, **_look(places[name]))
        axis.set_title(test)
        axis.set_xlabel("held-out loss of the masked LM, nats")
        axis.invert_xaxis()
    axes[0].set_ylabel(unit)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3)
    return figure


@dataclass(frozen=True)
class Ablation:
    """A table whose rows differ in one setting.

    Arguments:
        labels: the rows' labels.
        ours: our score of each row, None for a row without a score yet.
        paper: the paper's score of each row, None for a row that it does not have.
        reference: index of the row that the others are compared with.
    """

    title: str
    labels: list[str]
    ours: list[float | None]
    paper: list[float | None]
    reference: int = 0


@drawing
def ablation_bars(tables: Sequence[Ablation], unit: str = "STS-B dev, Spearman × 100") -> "Figure":
    """Plot each row's difference to its table's reference row, ours beside the paper's.

    Bars start at zero, so that scores on different models and sets share one axis. The number at a bar is the score.

    Raises:
        ValueError: no table, or a reference row without a score.
    """
    if not tables:
        raise ValueError("tables must hold at least one ablation, got none")
    for table in tables:
        if table.ours[table.reference] is None:
            raise ValueError(f"{table.title!r}: the reference row {table.labels[table.reference]!r} has no score")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [0.6 + len(table.labels) for table in tables]
    figure = Figure(figsize=(7.2, 0.8 + 0.42 * sum(heights) + 0.35 * len(tables)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(tables), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axis, table in zip(grid[:, 0], tables, strict=True):
        series = [("ours", table.ours)]
        series += [("the paper's", table.paper)] if table.paper[table.reference] is not None else []
        width = 0.8 / len(series)
        for place, (name, values) in enumerate(series):
            base = values[table.reference]
            assert base is not None
            rows = [(i, value) for i, value in enumerate(values) if value is not None]
            at = [i + (place - (len(series) - 1) / 2) * width for i, _ in rows]
            bars = axis.barh(at, [value - base for _, value in rows], 0.9 * width, label=name, **_fill(place))
            axis.bar_label(bars, [f"{value:.2f}" for _, value in rows], padding=3, fontsize=7.5)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.plot(0, table.reference, "o", color="white", markeredgecolor="black", markersize=6, zorder=3)
        names = [f"{name}\n(reference)" if i == table.reference else name for i, name in enumerate(table.labels)]
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.margins(x=0.12)
        axis.grid(axis="y", visible=False)
        axis.tick_params("y", length=0)
        axis.set_title(table.title, loc="left", wrap=True)
        axis.set_xlabel(f"points above or below “{table.labels[table.reference]}”")
    handles = {name: handle for axis in grid[:, 0] for handle, name in zip(*axis.get_legend_handles_labels())}  # noqa: B905
    names = [f"ours, {unit}" if name == "ours" else f"{name} (other model, text and sets)" for name in handles]
    figure.legend(list(handles.values()), names, loc="outside lower center", ncols=2)
    return figure


def _look(place: int) -> dict[str, Any]:
    """Return colour, marker and line style of the line with this index."""
    index = place % len(COLOURS)
    return {"color": COLOURS[index], "marker": MARKERS[index], "linestyle": LINES[index], "linewidth": 1.4}


def _fill(place: int) -> dict[str, Any]:
    """Return colour and hatch of the bars with this index."""
    index = place % len(COLOURS)
    return {"color": COLOURS[index], "hatch": HATCHES[index], "edgecolor": "white", "linewidth": 0}
