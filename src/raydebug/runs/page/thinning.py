"""Many measurements into as many as a screen has room for, without losing a peak or a gap. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

COLUMNS = 400  # over the width of a plot: about two pixels each
Point = tuple[float, float]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Thinned:
    """A curve that has room on a screen.

    Args:
        middle: the points as they are; where there were too many, the mean of each column.
        low: the lowest of each column; empty where the points are as they are.
        high: the highest of each column.
    """

    middle: list[Point]
    low: list[Point]
    high: list[Point]


def thin(points: Sequence[Point], columns: int = COLUMNS) -> Thinned:
    """Return the mean, the lowest and the highest value of each column; few points stay as they are.

    Args:
        points: ordered by x; y may be NaN or infinite. A column that has nothing else is NaN: a gap in the curve.
        columns: how many parts the width is cut into.
    """
    if len(points) <= 2 * columns:
        return Thinned(list(points), [], [])
    first = points[0][0]
    width = (points[-1][0] - first) / columns or 1.0
    middle, low, high = [], [], []
    for column, inside in groupby(points, lambda point: min(columns - 1, int((point[0] - first) / width))):
        known = [y for _, y in inside if math.isfinite(y)]
        x = first + (column + 0.5) * width
        middle.append((x, math.fsum(known) / len(known) if known else math.nan))
        low.append((x, min(known, default=math.nan)))
        high.append((x, max(known, default=math.nan)))
    return Thinned(middle, low, high)


def peak(samples: Sequence[tuple[float, ...]], column: int = 1) -> float:
    """Return the highest value of a column of samples; 0 where none is known."""
    return max((value for sample in samples if (value := sample[column]) >= 0), default=0.0)


def merge(intervals: Iterable[Interval], gap: float = 0.0) -> list[Interval]:
    """Return intervals with those joined that overlap, or are closer together than can be seen.

    Args:
        intervals: (start, end), in any order.
        gap: what cannot be seen, in the unit of the intervals.
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def covered(intervals: Iterable[Interval]) -> float:
    """Return how much of a line is under at least one interval."""
    return math.fsum(end - start for start, end in merge(intervals))


def gaps(intervals: Iterable[Interval], length: float) -> list[Interval]:
    """Return what of a line from 0 to `length` is under no interval."""
    edges = [0.0, *(edge for interval in merge(intervals) for edge in interval), length]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def density(intervals: Iterable[Interval], length: float, columns: int = COLUMNS) -> list[float]:
    """Return how much of each column is under at least one interval, from 0 to 1."""
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
    """Return what several series add up to: in each column, the moment at which their sum was highest.

    All values of a column are of one moment, so that peaks that were never there together do not add up. A series
    counts from its first sample until one sampling period after its last one.

    Args:
        series: points of each, ordered by x, without NaN.
        bands: the band that each series is added to, from 0.
        length: where the last column ends, on x.
        columns: how many there are.

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
        """Go on to the last moment before the limit, one moment at a time."""
        nonlocal moment
        while moment is not None and moment[0] < limit:
            for _, index, value in moment[1]:
                total[bands[index]] += value - now[index]
                now[index] = value
            moment = next(moments, None)
            yield

    for column in range(columns):
        for _ in advance(math.nextafter(width * column, math.inf)):  # what is exactly at its left edge is before it
            pass
        best = list(total)
        for _ in advance(width * (column + 1)):
            if sum(total) > sum(best):
                best = list(total)
        # What is left of sums and differences of floats is not memory.
        rows.append((width * (column + 0.5), [value if value > 1e-6 else 0.0 for value in best]))
    return rows


def _events(index: int, points: Sequence[Point], least: float) -> list[tuple[float, int, float]]:
    """Return the samples of a series, and its end."""
    apart = sorted(later[0] - earlier[0] for earlier, later in pairwise(points))
    period = max(least, apart[len(apart) // 2] if apart else 0.0)
    events = [(at, index, value) for at, value in points]
    return [*events, (points[-1][0] + period, index, 0.0)] if points else []
