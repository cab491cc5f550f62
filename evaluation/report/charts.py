"""Draw line charts as SVG text, without a library and without scripts."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

#: A colour and a dash for each run; the colours differ in lightness too (Okabe & Ito 2008).
COLOURS = ("#0072b2", "#d55e00", "#007a5e", "#a8467f", "#5b5b5b", "#8a6d00", "#2a9fd6", "#7b3294")
DASHES = ("", "7 3", "2 3", "9 3 2 3")

_WIDTH, _HEIGHT = 400, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 12, 40
_TITLE, _SIGN = 30, 6.8  # pixels of the axis title and of a label's sign
_DECIMALS = 4  # a label has at most these; beyond them the axis has a power of ten


def style(i: int) -> tuple[str, str]:
    """Return (colour, dash) of the i-th run; the first 32 all differ."""
    return COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    styles: Mapping[str, tuple[str, str]],
    title: str,
    y_label: str = "",
    marks: Mapping[str, float] | None = None,
    may_be_log: bool = False,
) -> str:
    """Return an SVG element with one line per series over training steps.

    Arguments:
        series: name to (step, value); values that are not finite break the line.
        styles: name to (colour, dash).
        title: title for screen readers.
        y_label: name and unit of the values; empty if the title names them.
        marks: name to the step that gets a ring (the checkpoint that was kept).
        may_be_log: use a logarithmic vertical axis, and label it so, if all values are positive and span more than a
            factor of 50.

    Returns:
        the element, or an empty string if no value is finite.
    """
    points = [p for line in series.values() for p in line if math.isfinite(p[1])]
    if not points:
        return ""
    values = [value for _, value in points]
    log = may_be_log and min(values) > 0 and max(values) / min(values) > 50
    ticks = _decades(min(values), max(values)) if log else nice_ticks(min(values), max(values))
    labels, power = (_decade_labels(ticks), "") if log else tick_labels(ticks)
    left = max(_LEFT, round(_TITLE + _SIGN * max(map(len, labels))))
    last = max(step for step, _ in points) or 1
    steps = [tick for tick in nice_ticks(0, last, 5) if tick <= last and tick == round(tick)]
    x = _Scale(0, last, left, _WIDTH - _RIGHT, False)
    low, high = min(ticks[0], min(values)), max(ticks[-1], max(values))
    y = _Scale(low, high, _HEIGHT - _BOTTOM, _TOP, log)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)} over training steps: '
        f'{escape(", ".join(series))}">'
    ]
    y_title = f"{y_label} (log scale)" if log else f"{y_label} {power}"
    parts += _axes(dict(zip(labels, ticks, strict=True)), steps, x, y, y_title.strip())
    for name, line in series.items():
        parts += _line(name, line, styles[name], x, y, (marks or {}).get(name))
    return "".join([*parts, "</svg>"])


def _axes(ticks: Mapping[str, float], steps: Sequence[float], x: "_Scale", y: "_Scale", y_label: str) -> list[str]:
    parts = []
    left = round(x.start)
    for label, value in ticks.items():
        at = f"{y(value):.1f}"
        parts.append(f'<line class="grid" x1="{left}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{left - 6}" y="{at}" dy="4" text-anchor="end">{label}</text>')
    for step in steps:
        at = f"{x(step):.1f}"
        anchor = "end" if x(step) > _WIDTH - _RIGHT - 12 else "middle"
        parts.append(f'<text x="{at}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="{anchor}">{step:.0f}</text>')
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text class="axis" x="{(left + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">step</text>'
    )
    parts.append(
        f'<text class="axis" x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">'
        f"{escape(y_label)}</text>"
    )
    return parts


def _line(
    name: str,
    line: Sequence[tuple[float, float]],
    look: tuple[str, str],
    x: "_Scale",
    y: "_Scale",
    mark: float | None,
) -> list[str]:
    colour, dash = look
    runs: list[list[tuple[float, float]]] = [[]]
    for step, value in line:
        if math.isfinite(value):
            runs[-1].append((step, value))
        elif runs[-1]:
            runs.append([])
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    parts = []
    for run in runs:
        if len(run) > 1:
            path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in run)
            parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.8"{dashes} points="{path}"/>')
    finite = [point for run in runs for point in run]
    if len(finite) <= 40:
        parts += [
            f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="2.6" fill="{colour}"><title>{escape(name)}, step '
            f"{step:g}: {value:.5g}</title></circle>"
            for step, value in finite
        ]
    parts += [
        f'<circle class="mark" cx="{x(step):.1f}" cy="{y(value):.1f}" r="6" fill="none" stroke="{colour}" '
        f'stroke-width="1.8"><title>{escape(name)}: kept, step {step:g}: {value:.5g}</title></circle>'
        for step, value in finite
        if step == mark
    ]
    return parts


class _Scale:
    """Map values between two numbers to pixels between two others."""

    def __init__(self, low: float, high: float, start: float, stop: float, log: bool) -> None:
        self.log, self.start, self.stop = log, start, stop
        self.low, self.high = (math.log10(low), math.log10(high)) if log else (low, high)

    def __call__(self, value: float) -> float:
        if self.log:
            value = math.log10(value)
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + share * (self.stop - self.start)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most ``most`` + 1 round numbers from at most ``low`` to at least ``high``."""
    if high <= low:
        margin = abs(low) * 0.1
        low, high = (low - margin, high + margin) if margin else (0.0, 1.0)
    raw = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    width = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9)
    return [i * width for i in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    every = max(1, math.ceil((last - first) / 6))
    return [10.0**i for i in range(first, last + every, every)]


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def tick_labels(ticks: Sequence[float]) -> tuple[list[str], str]:
    """Return the labels of evenly spaced ticks, all with the same decimals, and the power of ten that they are to be
    multiplied with: an empty text, or such as ``× 10⁻³``."""
    width = min((b - a for a, b in pairwise(ticks)), default=1.0)
    largest = max(map(abs, ticks))
    power, decimals = 0, _decimals(width)
    if largest >= 1e5 or decimals > _DECIMALS:
        power = math.floor(math.log10(largest) + 1e-9)
        decimals = _decimals(width / 10.0**power)
    texts = [f"{value / 10.0**power:.{decimals}f}" for value in ticks]
    labels = ["0" if not float(text) else text.replace("-", "−") for text in texts]
    return labels, f"× 10{str(power).translate(_RAISED)}" if power else ""


def _decimals(width: float) -> int:
    return next((d for d in range(15) if abs(round(width, d) - width) < 1e-6 * width), 15)


def _decade_labels(ticks: Sequence[float]) -> list[str]:
    return [f"10{str(round(math.log10(tick))).translate(_RAISED)}" for tick in ticks]
