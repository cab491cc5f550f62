"""Draw without a display and without global state: style, colours, markers, saving. matplotlib is loaded on use.

Colours are those of Okabe & Ito (2008), which people with any colour vision can tell apart; their yellow is left out
because it is faint on white. Colour is never the only difference: each item also has a marker, a hatch, a line style
or a name.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from csekit.encoding.provenance import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "savefig.dpi": 150,
    "text.parse_math": False,
}
#: Maximum bytes of a picture: pictures are committed with the documents.
MAX_BYTES = 300_000


def load_matplotlib() -> Any:
    """Import matplotlib. Raises ImportError that names the extra if it is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'csekit[plots]'") from error
    return matplotlib


def drawing(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that it draws in the style of this module."""

    @wraps(function)
    def styled(*args: P.args, **kwargs: P.kwargs) -> R:
        with load_matplotlib().rc_context(STYLE):
            return function(*args, **kwargs)

    return styled


def columns_for(count: int) -> int:
    """Return the number of columns in which ``count`` panels leave no panel alone in the last row."""
    if count <= 3:
        return count
    return 2 if count == 4 else 3 if count in (5, 6, 9) else 4


def explain(figure: "Figure", axes: "Sequence[Axes]", handles: Sequence[Any], names: Sequence[str]) -> None:
    """Put a legend into the free cells of the last row of panels, or below them if there is none."""
    grid: Any = axes[0].get_gridspec()
    free = grid.nrows * grid.ncols - len(axes)
    if not free:
        columns = min(4, len(names))
        figure.legend(handles, names, loc="outside lower center", ncols=columns, markerscale=2)
        return
    cell = figure.add_subplot(grid[-1, -free:])
    cell.axis("off")
    columns = min(2 * free, -(-len(names) // 10))
    cell.legend(handles, names, loc="center", ncols=columns, markerscale=2, fontsize=9.5).set_in_layout(False)


def panels(count: int, columns: int, width: float, height: float, **kwargs: Any) -> "tuple[Figure, list[Axes]]":
    """Make a figure with ``count`` panels in rows of ``columns``; ``width`` and ``height`` of a panel are in inches.

    Raises:
        ValueError: no panel.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if count < 1:
        raise ValueError("a figure needs at least one panel, got none")
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, **kwargs)
    axes = list(grid.flat)
    for extra in axes[count:]:
        extra.remove()
    return figure, axes[:count]


def save_figure(figure: "Figure", path: str | Path, max_bytes: int | None = MAX_BYTES) -> Path:
    """Write a PNG atomically, with 256 colours; the same figure gives the same bytes.

    Raises:
        ValueError: another suffix than ``.png``, or more than ``max_bytes``.
    """
    from PIL import Image

    path = Path(path)
    if path.suffix != ".png":
        raise ValueError(f"path must end in .png, got {path.name!r}")
    drawn, packed = BytesIO(), BytesIO()
    with load_matplotlib().rc_context(STYLE):
        figure.savefig(drawn, format="png", facecolor="white")
    drawn.seek(0)
    image = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(packed, format="png", optimize=True)
    data = packed.getvalue()
    if max_bytes is not None and len(data) > max_bytes:
        raise ValueError(f"{path.name} must have at most {max_bytes:,} bytes, got {len(data):,}")
    write_atomically(path, data)
    return path


def label_points(axes: "Axes", xs: list[float], ys: list[float], names: list[str]) -> None:
    """Write the names of points in a column at the right of the axes, in the order of their heights, each with a thin
    line to its point."""
    low, high = axes.get_ylim()
    order = sorted(range(len(names)), key=lambda i: (-ys[i], xs[i]))
    step = min(0.09, 1 / max(1, len(names) - 1))
    wanted = [(ys[i] - low) / (high - low) for i in order]
    heights: list[float] = []
    for height in wanted:
        heights.append(min(height, heights[-1] - step) if heights else min(height, 1.0))
    lift = max(0.0, -heights[-1])  # names that ran out at the bottom push the others up
    for place in reversed(range(len(heights))):
        below = heights[place + 1] + step if place + 1 < len(heights) else 0.0
        heights[place] = max(heights[place], below) if lift else heights[place]
    for i, height in zip(order, heights, strict=True):
        axes.annotate(
            names[i],
            (xs[i], ys[i]),
            (1.04, height),
            textcoords="axes fraction",
            ha="left",
            va="center",
            fontsize=8.5,
            annotation_clip=False,
            arrowprops=_LEADER,
        )


_LEADER = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkA": 2, "shrinkB": 5, "relpos": (0, 0.5)}


def name_groups(axes: "Axes", points: np.ndarray, groups: np.ndarray, names: Sequence[str]) -> None:
    """Write the name of each group on one of its points: the one in the densest part of the group where the name
    covers no earlier name. The narrowest groups come first; a name without a free place is left out.

    Arguments:
        points: (M, 2).
        groups: (M,) indices into ``names``.
    """
    figure: Any = axes.figure
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    reach = np.ptp(points, axis=0).mean() / 12
    crowded = {}
    for group in np.unique(groups):
        own = points[groups == group]
        near = np.exp(-((own[:, None] - own[None]) ** 2).sum(-1) / (2 * reach**2)).mean(1)
        crowded[group] = (float(near.max()), own[np.argsort(-near, kind="stable")])
    taken: list[Any] = []
    for group in sorted(crowded, key=lambda group: -crowded[group][0]):
        for point in crowded[group][1]:
            text = axes.annotate(names[group], point, ha="center", va="center", fontsize=6.5, bbox=_BOX)
            box = text.get_window_extent(renderer)
            if box.x0 < axes.bbox.x0 or box.x1 > axes.bbox.x1:  # at the border: move the name to the inner side
                text.set_horizontalalignment("left" if box.x0 < axes.bbox.x0 else "right")
                box = text.get_window_extent(renderer)
            if not any(_shared(box.padded(2), other) for other in taken):
                taken.append(box.padded(2))
                break
            text.remove()


_BOX = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}


def _shared(a: Any, b: Any) -> float:
    """Return the area that two boxes share, in square pixels."""
    return max(0.0, min(a.x1, b.x1) - max(a.x0, b.x0)) * max(0.0, min(a.y1, b.y1) - max(a.y0, b.y0))
