"""Reduce many samples to the columns of a plot, without losing a peak or a gap. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

COLUMNS = 400  # over the width of a plot: about two pixels each
Point = tuple[float, float]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Downsampled:
    """A curve with a limited number of points.

    Args:
        middle: the original points, or the mean of each column.
        low: the lowest value of each column; empty for the original points.
        high: the highest value of each column; empty for the original points.
    """

    middle: list[Point]
    low: list[Point]
    high: list[Point]


def downsample(points: Sequence[Point], columns: int = COLUMNS) -> Downsampled:
    """Return mean, lowest and highest value of each column; up to two points a column stay as they are.

    Args:
        points: ordered by x; y may be NaN or infinite. A column without a finite y is NaN: a gap in the curve.
        columns: their number.
    """
    if len(points) <= 2 * columns:
        return Downsampled(list(points), [], [])
    first = points[0][0]
    width = (points[-1][0] - first) / columns or 1.0
    middle, low, high = [], [], []
    for column, inside in groupby(points, lambda point: min(columns - 1, int((point[0] - first) / width))):
        known = [y for _, y in inside if math.isfinite(y)]
        x = first + (column + 0.5) * width
        middle.append((x, math.fsum(known) / len(known) if known else math.nan))
        low.append((x, min(known, default=math.nan)))
        high.append((x, max(known, default=math.nan)))
    return Downsampled(middle, low, high)


def peak(samples: Sequence[tuple[float, ...]], column: int = 1) -> float:
    """Return the highest value in a column of samples; 0 if none is known."""
    return max((value for sample in samples if (value := sample[column]) >= 0), default=0.0)


def merge(intervals: Iterable[Interval], gap: float = 0.0) -> list[Interval]:
    """Return intervals, with those joined that overlap or have a smaller distance than `gap`.

    Args:
        intervals: (start, end), in any order.
        gap: largest invisible distance, in the unit of the intervals.
    """
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
        columns: their number.

    Returns:
        The middle of each column, and the value of each band.
    """
    width = length / columns
    events = [event for index, points in enumerate(series) for event in _events(index, points, width)]
    events.sort(key=lambda event: event[0])
    now = [0.0] * len(series)
    total = [0.0] * (max(bands, default=-1) + 1)
    rows: list[tuple[float, list[float]]] = []
    moments = groupby(events, lambda event: event[0])
    moment = next(moments, None)

    def advance(limit: float) -> Iterator[None]:
        """Advance to the last moment before the limit, one moment at a time."""
        nonlocal moment
        while moment is not None and moment[0] < limit:
            for _, index, value in moment[1]:
                total[bands[index]] += value - now[index]
                now[index] = value
            moment = next(moments, None)
            yield

    for column in range(columns):
        for _ in advance(math.nextafter(width * column, math.inf)):  # at the left edge: of the column before
            pass
        best = list(total)
        for _ in advance(width * (column + 1)):
            if sum(total) > sum(best):
                best = list(total)
        # Rounding errors of the running sums are not memory.
        rows.append((width * (column + 0.5), [value if value > 1e-6 else 0.0 for value in best]))
    return rows


def _events(index: int, points: Sequence[Point], least: float) -> list[tuple[float, int, float]]:
    """Return the samples of a series and its end, as events."""
    apart = sorted(later[0] - earlier[0] for earlier, later in pairwise(points))
    period = max(least, apart[len(apart) // 2] if apart else 0.0)
    events = [(at, index, value) for at, value in points]
    return [*events, (points[-1][0] + period, index, 0.0)] if points else []
