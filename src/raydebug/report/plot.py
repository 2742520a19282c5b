"""Plots that share one time axis: samples reduced to columns, marks in percent of the width, curves in a box. Pure.

Text is never scaled: an outer `svg` without viewBox holds lines, bars and labels by percentages, and an inner one with
a viewBox of 1000 x 100, which stretches, holds the curves. One plot fits a phone and a wide screen, without a program.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from raydebug.report import units
from raydebug.report.page import Child, Markup, join, number, percent, tag

COLUMNS = 400  # over the width of a plot: about two pixels each
Point = tuple[float, ...]  # x and y
Points = Sequence[Point]
Interval = tuple[float, float]
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_WIDTH, _HEIGHT = 1000.0, 100.0  # of the inner box


@dataclass(frozen=True)
class Axis:
    """The horizontal axis: from 0 to `length`, in seconds or in steps."""

    length: float

    def at(self, value: float) -> str:
        """Return the position of a value."""
        return percent(min(1.0, max(0.0, value / self.length)))

    def span(self, start: float, end: float) -> str:
        """Return the width of a span."""
        return percent(min(1.0, max(0.0, (min(end, self.length) - start) / self.length)))

    def ticks(self, most: int = 8) -> tuple[float, list[float]]:
        """Return the distance of the ticks, and the ticks."""
        rough = self.length / most
        if rough < 1:
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        elif rough > _STEPS[-1]:
            step = math.ceil(rough / _STEPS[-1]) * _STEPS[-1]
        else:
            step = next(step for step in _STEPS if step >= rough)
        return step, [step * i for i in range(int(self.length / step * 1.0001) + 1)]


def ceiling(value: float) -> float:
    """Return the next round number, such as 1, 2, 2.5, 5 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if power * factor >= value * 0.9999)


def round_mib(value: float) -> float:
    """Return the next round size, in MiB."""
    return 1024 * ceiling(value / 1024) if value > 1024 else ceiling(value)


def plot(axis: Axis, *marks: Child, label: str, class_: str = "", bands: bool = True) -> Markup:
    """Return a plot: grid, behind it the pauses that the page defines once with the id `bands`, and marks.

    `label` is its text alternative, `class_` sets its height.
    """
    grid = [tag("line", x1=axis.at(at), x2=axis.at(at), y1="0", y2="100%") for at in axis.ticks()[1]]
    behind = tag("use", href="#bands") if bands else None
    return tag("svg", tag("g", grid, class_="grid"), behind, *marks,
               class_=f"plot {class_}".strip(), role="img", aria_label=label)  # fmt: skip


def stretched(*marks: Child) -> Markup:
    """Return the inner box, whose 1000 x 100 units fill the plot."""
    return tag("svg", *marks, viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}", preserveAspectRatio="none", y="0",
               width="100%", height="100%")  # fmt: skip


def draw_curve(axis: Axis, points: Points, low: float, high: float, class_: str, columns: int = COLUMNS
               ) -> list[Markup]:  # fmt: skip
    """Return a curve for the inner box; of too many points, the mean over the range of each column."""
    reduced = downsample(points, columns)
    shapes = [tag("path", d=curve(axis, reduced.middle, low, high), class_=f"curve {class_}")]
    pairs = zip(reduced.low, reduced.high, strict=True)
    for is_known, part in groupby(pairs, lambda pair: math.isfinite(pair[0][1])):
        if is_known:  # else it is a gap
            lower, upper = zip(*part, strict=True)
            shapes.insert(0, tag("path", d=area(axis, lower, upper, low, high), class_=f"range-of {class_}"))
    return shapes


def curve(axis: Axis, points: Iterable[Point], low: float, high: float) -> str:
    """Return the path of a curve in the inner box; NaN and infinity are gaps."""
    pieces: list[str] = []
    pen_down = False
    for x, y in points:
        if not math.isfinite(y):
            pen_down = False
            continue
        pieces.append(f"{'L' if pen_down else 'M'}{number(_WIDTH * x / axis.length)} {_y(y, low, high)}")
        pen_down = True
    if len(pieces) == 1:  # a dot: a line of length 0 with round ends
        pieces.append("h0")
    return "".join(pieces)


def area(axis: Axis, lower: Sequence[Point], upper: Sequence[Point], low: float, high: float) -> str:
    """Return the path of the area between two curves with the same x."""
    if not upper:
        return ""
    forth = [f"{number(_WIDTH * x / axis.length)} {_y(y, low, high)}" for x, y in upper]
    back = [f"{number(_WIDTH * x / axis.length)} {_y(y, low, high)}" for x, y in reversed(lower)]
    return f"M{'L'.join(forth + back)}Z"


def columns_of(heights: Sequence[float]) -> str:
    """Return the path of columns side by side, each as high as its value from 0 to 1."""
    width = _WIDTH / len(heights)
    tops = "".join(f"V{_y(height, 0.0, 1.0)}H{number((i + 1) * width)}" for i, height in enumerate(heights))
    return f"M0 {number(_HEIGHT)}{tops}V{number(_HEIGHT)}Z"


def _y(value: float, low: float, high: float) -> str:
    return number(_HEIGHT * (1 - (value - low) / ((high - low) or 1.0)))


def scale_labels(top: str) -> Markup:
    """Return labels for the upper and the lower edge of a plot."""
    return join([
        tag("text", top, x="4", y="13", class_="scale"),
        tag("text", "0", x="4", y="100%", dy="-4", class_="scale"),
    ])  # fmt: skip


def time_axis(axis: Axis) -> Markup:
    """Return the ticks of the time axis with labels."""
    step, ticks = axis.ticks()
    marks = []
    for index, at in enumerate(ticks):
        side = "start" if index == 0 else "end" if at > 0.97 * axis.length else "middle"
        every = "" if index % 2 == 0 else " every-other"
        marks.append(tag("text", units.tick(at, step), x=axis.at(at), y="15", class_=f"tick {side}{every}"))
    lines = [tag("line", x1=axis.at(at), x2=axis.at(at), y1="20", y2="100%") for at in ticks]
    return tag("svg", tag("g", lines, class_="grid"), marks, class_="axis", aria_hidden="true")


def hatches() -> list[Markup]:
    """Return the fill patterns that distinguish pauses without colour: stripes for breakpoints, a net for crashes."""
    stripe = tag("rect", width="2.5", height="6", class_="ink-pause")
    across = tag("rect", width="6", height="2.5", class_="ink-pause")
    half = tag("rect", width="3", height="6", class_="ink-phase")
    patterns = {"stripes": [stripe], "net": [stripe, across], "going-on": [half]}
    place = {"width": "6", "height": "6", "patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    return [tag("pattern", shapes, id=name, **place) for name, shapes in patterns.items()]


# Samples and spans, reduced to the columns of a plot without losing a peak or a gap


@dataclass(frozen=True)
class Downsampled:
    """A curve with a limited number of points."""

    middle: Points  # the original points, or the mean of each column
    low: Points  # the lowest value of each column; empty for the original points
    high: Points


def downsample(points: Points, columns: int = COLUMNS) -> Downsampled:
    """Return mean, lowest and highest value of each column; up to two points a column stay as they are.

    Points are ordered by x; y may be NaN or infinite. A column without a finite y is NaN: a gap in the curve.
    """
    if len(points) <= 2 * columns:
        return Downsampled(list(points), [], [])
    first = points[0][0]
    width = (points[-1][0] - first) / columns or 1.0
    middle, low, high = [], [], []
    for column, inside in groupby(points, lambda point: min(columns - 1, int((point[0] - first) / width))):
        known = [point for point in inside if math.isfinite(point[1])]
        x = first + (column + 0.5) * width
        middle.append((x, math.fsum(point[1] / len(known) for point in known) if known else math.nan))
        low.append((x, min((y for _, y in known), default=math.nan)))
        high.append((x, max((y for _, y in known), default=math.nan)))
    return Downsampled(middle, low, high)


def peak(samples: Sequence[tuple[float, ...]]) -> float:
    """Return the highest value of samples, which follows their time; 0 if none is known."""
    return max((value for sample in samples if (value := sample[1]) >= 0), default=0.0)


def merge(intervals: Iterable[Interval], gap: float = 0.0) -> list[Interval]:
    """Return intervals in order, with those joined that overlap or have a smaller distance than `gap`."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def covered(intervals: Iterable[Interval]) -> float:
    """Return the length that at least one interval covers."""
    return math.fsum(end - start for start, end in merge(intervals))


def gaps(intervals: Iterable[Interval], length: float) -> list[Interval]:
    """Return the parts of 0 to `length` that no interval covers."""
    edges = [0.0, *(edge for interval in merge(intervals) for edge in interval), length]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def density(intervals: Iterable[Interval], length: float, columns: int = COLUMNS) -> list[float]:
    """Return the covered share of each column, from 0 to 1."""
    width = length / columns
    filled = [0.0] * columns
    for start, end in merge(intervals):
        first, last = (min(columns - 1, int(edge / width)) for edge in (start, end))
        for column in range(first, last + 1):
            filled[column] += max(0.0, min(end, (column + 1) * width) - max(start, column * width))
    return [min(1.0, part / width) for part in filled]


def stack(
    series: Sequence[Sequence[Point]], bands: Sequence[int], length: float, columns: int = COLUMNS
) -> list[tuple[float, list[float]]]:
    """Return the sum of several series: for each column, the values at the moment of the highest sum.

    All values of a column belong to one moment, so peaks of different moments do not add up. A series counts from its
    first sample until one sampling period after its last one.

    Args:
        series: points of each, ordered by x, without NaN.
        bands: the band that each series is added to, from 0.
        length: the end of the last column, on x.
        columns: their number; returned is the middle of each, and the value of each band.
    """
    width = length / columns
    events = [event for index, points in enumerate(series) for event in _events(index, points, width)]
    events.sort(key=lambda event: event[0])
    now = [0.0] * len(series)
    total = [0.0] * (max(bands, default=-1) + 1)
    states = [(-math.inf, total)]  # each from its moment on
    for moment, inside in groupby(events, lambda event: event[0]):
        total = [*total]
        for _, index, value in inside:
            total[bands[index]] += value - now[index]
            now[index] = value
        states.append((moment, total))
    moments = [moment for moment, _ in states]
    rows: list[tuple[float, list[float]]] = []
    for column in range(columns):
        first = bisect_right(moments, width * column) - 1  # at the left edge: of the column before
        _, best = max(states[first : bisect_left(moments, width * (column + 1))], key=lambda state: sum(state[1]))
        # Rounding errors of the running sums are not memory.
        rows.append((width * (column + 0.5), [value if value > 1e-6 else 0.0 for value in best]))
    return rows


def _events(index: int, points: Sequence[Point], least: float) -> list[tuple[float, int, float]]:
    """Return the samples of a series and its end, as events."""
    apart = sorted(later[0] - earlier[0] for earlier, later in pairwise(points))
    period = max(least, apart[len(apart) // 2] if apart else 0.0)
    events = [(at, index, value) for at, value in points]
    return [*events, (points[-1][0] + period, index, 0.0)] if points else []
