"""Draw figures of embedding spaces: pure functions of arrays that return a matplotlib Figure and save nothing.

Shape suffixes: P pairs, M points.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from csekit.evaluation.clustering import TopicMap
from csekit.evaluation.geometry_scores import EDGES, rating_groups
from csekit.evaluation.plotting import (
    COLOURS,
    MARKERS,
    columns_for,
    drawing,
    explain,
    label_points,
    name_groups,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Labels that colours and markers can tell apart.
MOST_LABELS = len(COLOURS) * len(MARKERS)


@drawing
def cosine_violins(
    models: Mapping[str, tuple[np.ndarray, np.ndarray]],
    edges: Sequence[float] = EDGES,
    source: str = "STS-B test",
    columns: int | None = None,
) -> "Figure":
    """Draw the cosines of pairs by gold rating, one violin per group and one panel per model (DiffCSE, Fig. 2).

    Arguments:
        models: name to (cosines, gold), (P,) each, with the same gold.
        edges: edges of the groups of ratings.
        source: name of the pairs, for the axis.
        columns: panels in a row; None: as many as leave none alone in the last row.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    columns = columns or columns_for(len(models))
    figure, axes = panels(len(models), columns, 2.9, 2.7, sharex=True, sharey=True)
    names = [f"{low:g}–{high:g}" for low, high in pairwise(edges)]
    for index, (axis, (model, (cosines, gold))) in enumerate(zip(axes, models.items(), strict=True)):
        groups = [np.asarray(cosines)[places] for places in rating_groups(gold, edges)]
        for place, values in enumerate(groups):
            if len(values) > 1 and np.ptp(values) > 0:
                parts: Any = axis.violinplot(
                    [values], [place], orientation="horizontal", widths=0.85, showextrema=False, bw_method=0.2
                )
                for body in parts["bodies"]:
                    body.set(facecolor=COLOURS[5], edgecolor=COLOURS[0], alpha=0.9, linewidth=0.7)
            if len(values):
                low, middle, high = np.percentile(values, [25, 50, 75])
                axis.plot([low, high], [place, place], color=COLOURS[0], linewidth=2.5, solid_capstyle="butt")
                axis.plot(middle, place, "o", color="white", markeredgecolor=COLOURS[6], markersize=4)
        axis.set_title(model)
        axis.set_yticks(range(len(groups)), [f"{name}\nn = {len(v)}" for name, v in zip(names, groups, strict=True)])
        axis.tick_params("y", length=0)
        axis.tick_params("x", labelbottom=True)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("cosine similarity")
        if index % columns == 0:
            axis.set_ylabel(f"gold rating, {source}")
    handles = [
        Patch(facecolor=COLOURS[5], edgecolor=COLOURS[0]),
        Line2D([], [], color=COLOURS[0], linewidth=2.5),
        Line2D([], [], marker="o", color="white", markeredgecolor=COLOURS[6], markersize=2),
    ]
    explain(figure, axes, handles, ["density of the pairs", "middle half of them", "median"])
    return figure


@drawing
def alignment_uniformity(
    points: Mapping[str, tuple[float, float, float | None]],
    score: str = "STS-B test, Spearman × 100",
    source: str = "STS-B test",
) -> "Figure":
    """Plot encoders by alignment and uniformity, with their STS score as colour and number (InforMin-CL, Fig. 3).

    The colours spread over the scores without outliers, which have the colour of the scale's end.

    Arguments:
        points: name to (alignment, uniformity, score); None: the encoder has no correlation.
        score: label of the colour bar.
        source: name of the pairs, for the axes.
    """
    figure, (axis,) = panels(1, 1, 7.2, 4.4)
    table = np.array([points[name] for name in points], dtype=np.float64)
    scores = table[np.isfinite(table[:, 2]), 2]
    scores = scores if len(scores) else np.zeros(1)
    low, high = _without_outliers(scores)
    drawn = axis.scatter(
        table[:, 1],
        table[:, 0],
        c=table[:, 2],
        cmap="cividis",
        vmin=low,
        vmax=high,
        s=70,
        edgecolors="black",
        linewidths=0.8,
        zorder=3,
        plotnonfinite=True,
    )
    ends = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    extend = ends[bool(low > scores.min()), bool(high < scores.max())]
    bar = figure.colorbar(drawn, ax=axis, location="top", shrink=0.6, aspect=40, extend=extend)
    bar.set_label(score)
    bar.outline.set_visible(False)
    axis.margins(0.08, 0.1)
    axis.set_xlabel(f"uniformity, {source} (lower: more uniform)")
    axis.set_ylabel(f"alignment, {source} (lower: closer)")
    values = ["–" if np.isnan(value) else f"{value:.1f}" for value in table[:, 2]]
    names = [f"{name}: {value}" for name, value in zip(points, values, strict=True)]
    label_points(axis, table[:, 1].tolist(), table[:, 0].tolist(), names)
    return figure


def _without_outliers(values: np.ndarray) -> tuple[float, float]:
    """Return the lowest and the highest value within 1.5 interquartile ranges of the quartiles (Tukey's fences)."""
    first, third = np.percentile(values, [25, 75])
    reach = 1.5 * (third - first)
    inside = values[(values >= first - reach) & (values <= third + reach)]
    return float(inside.min()), float(inside.max())


@drawing
def topic_maps(
    maps: Mapping[str, TopicMap], by: str = "clusters", columns: int | None = None, legend: bool = False
) -> "Figure":
    """Draw t-SNE maps side by side, coloured by cluster (InforMin-CL, Fig. 2; MSSE, Fig. 4) or by label.

    Each group has a colour and a marker; a label has the same ones on every map. A label's name is written where most
    of its titles are, unless another name is there.

    Arguments:
        maps: model to its map.
        by: ``clusters`` or ``labels``.
        columns: panels in a row; None: as many as leave none alone in the last row.
        legend: explain the labels in a legend instead of names on the maps.

    Raises:
        ValueError: another ``by``; more labels than colours and markers can tell apart.
    """
    if by not in ("clusters", "labels"):
        raise ValueError(f"by must be 'clusters' or 'labels', got {by!r}")
    if by == "labels":
        check_labels(max(len(map_.names) for map_ in maps.values()))
    figure, axes = panels(len(maps), columns or columns_for(len(maps)), 2.9, 2.9)
    shown: dict[str, Any] = {}  # not by matplotlib's labels, which leave out those that begin with "_"
    for axis, (model, map_) in zip(axes, maps.items(), strict=True):
        groups = map_.clusters if by == "clusters" else map_.labels
        order = _around_middle(map_.points, groups) if by == "clusters" else list(range(len(map_.names)))
        for place, group in enumerate(order):
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place // len(COLOURS) % len(MARKERS)]
            xs, ys = map_.points[groups == group].T
            name = map_.names[group] if by == "labels" else f"cluster {group}"
            drawn = axis.scatter(xs, ys, s=9, c=colour, marker=marker, linewidths=0, alpha=0.75)
            if axis is axes[0]:
                shown[name] = drawn
        axis.set(xticks=[], yticks=[])
        for side in ("top", "right"):
            axis.spines[side].set_visible(True)
        axis.set_title(model)
    if by == "labels" and legend:
        explain(figure, axes, list(shown.values()), list(shown))
    elif by == "labels":
        for axis, map_ in zip(axes, maps.values(), strict=True):
            name_groups(axis, map_.points, map_.labels, map_.names)
    return figure


def check_labels(count: int) -> None:
    """Raise ValueError for more labels than colours and markers can tell apart."""
    if count > MOST_LABELS:
        raise ValueError(f"labels must be at most {MOST_LABELS} to have a colour and a marker each, got {count}")


def _around_middle(points: np.ndarray, groups: np.ndarray) -> list[Any]:
    """Order groups by their angle around the middle of the map, so that neighbours get different colours."""
    names = np.unique(groups)
    middles = np.stack([np.median(points[groups == name], axis=0) for name in names]) - np.median(points, axis=0)
    return [names[i] for i in np.argsort(np.arctan2(middles[:, 1], middles[:, 0]), kind="stable")]
