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
    """Write names beside points, where each covers neither a point nor an earlier name."""
    figure: Any = axes.figure
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    taken = [_around(axes.transData.transform((x, y)), 7) for x, y in zip(xs, ys, strict=True)]
    for x, y, name in zip(xs, ys, names, strict=True):
        best: tuple[float, Any, Any] | None = None
        for across, up, ha, va in _PLACES:
            text = axes.annotate(
                name,
                (x, y),
                (across, up),
                textcoords="offset points",
                ha=ha,
                va=va,
                fontsize=8.5,
                annotation_clip=False,
            )
            box = text.get_window_extent(renderer)
            outside = 0.0 if axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1 else 1e6
            cost = outside + sum(_shared(box, other) for other in taken)
            if best is not None and cost >= best[0]:
                text.remove()
                continue
            if best is not None:
                best[1].remove()
            best = (cost, text, box)
        assert best is not None
        taken.append(best[2])


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
_PLACES = (
    (8, 0, "left", "center"),
    (-8, 0, "right", "center"),
    (0, 8, "center", "bottom"),
    (0, -8, "center", "top"),
    (8, 9, "left", "bottom"),
    (8, -9, "left", "top"),
    (-8, 9, "right", "bottom"),
    (-8, -9, "right", "top"),
    (0, 20, "center", "bottom"),
    (0, -20, "center", "top"),
)


def _around(point: Any, radius: float) -> Any:
    from matplotlib.transforms import Bbox

    return Bbox.from_extents(point[0] - radius, point[1] - radius, point[0] + radius, point[1] + radius)


def _shared(a: Any, b: Any) -> float:
    """Return the area that two boxes share, in square pixels."""
    return max(0.0, min(a.x1, b.x1) - max(a.x0, b.x0)) * max(0.0, min(a.y1, b.y1) - max(a.y0, b.y0))
