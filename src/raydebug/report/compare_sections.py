"""The sections of the comparison of two runs: figures, phases, memory and steps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raydebug.render import MINUS, duration
from raydebug.report import units
from raydebug.report.curves import memory_sum
from raydebug.report.document import Run
from raydebug.report.downsample import Interval, Point, covered, peak
from raydebug.report.page import Child, Markup, tag
from raydebug.report.plot import Axis, ceiling, draw_curve, plot, round_mib, scale_labels, stretched, time_axis
from raydebug.report.waterfall import MOST_ROWS, Row, draw_spans, rows_of, spans_of, track

LETTERS = "AB"


def mark(letter: str) -> Markup:
    """Return the letter of a run, in its colour."""
    return tag("span", letter, class_=f"mark-{letter.lower()}")


def figures_section(runs: Sequence[Run]) -> Markup:
    """Return the table of key figures."""

    def paused(run: Run) -> float:
        return covered(spans_of(run.pauses, run.length_s))

    def median_step(run: Run) -> float | None:
        took = sorted(step.seconds for step in run.steps)
        return took[len(took) // 2] if took else None

    def most_memory(run: Run) -> float | None:
        return max((y for _, y in memory_sum(run, Axis(run.length_s))), default=None)

    rows: list[tuple[str, list[float | None], Callable[[float | None], str]]] = [
        ("took", [run.took_s for run in runs], duration),
        ("of it paused", [paused(run) for run in runs], duration),
        ("pauses", [float(len(run.pauses)) for run in runs], _count),
        ("steps", [float(len(run.steps)) for run in runs], _count),
        ("median step", [median_step(run) for run in runs], duration),
        ("memory, at most", [most_memory(run) for run in runs], units.mebibytes),
        *_gpu_figures(runs),
        ("errors and warnings found", [_bad(run) for run in runs], _count),
    ]
    body = [
        tag("tr", tag("th", name, scope="row"), [tag("td", show(value)) for value in values], _apart(values, show))
        for name, values, show in rows
        if any(values)
    ]
    head = [tag("th", "figure", scope="col"), [tag("th", letter, scope="col") for letter in LETTERS],
            tag("th", "B against A", scope="col", colspan="2")]  # fmt: skip
    return tag("section", tag("h2", "In figures", id="figures"),
               _wide("figures of both runs", tag("thead", tag("tr", head)), body, "figures"))  # fmt: skip


def _gpu_figures(runs: Sequence[Run]) -> list[tuple[str, list[float | None], Callable[[float | None], str]]]:
    most = [max((peak(gpu.samples) for gpu in run.gpus), default=None) for run in runs]
    return [("memory of a GPU, at most", most, units.mebibytes)]


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _bad(run: Run) -> float:
    return float(sum(finding.get("severity") in ("error", "warning") for finding in run.findings))


def _apart(values: Sequence[float | None], show: Callable[[float | None], str]) -> list[Markup]:
    first, second = values
    if first is None or second is None:
        return [tag("td", ""), tag("td", "")]
    if show(first) == show(second):
        return [tag("td", "same"), tag("td", "")]
    sign = "+" if second > first else MINUS
    return [tag("td", sign + show(abs(second - first))), tag("td", units.change(first, second))]


def _wide(label: str, head: Child, body: Child, class_: str) -> Markup:
    table = tag("table", head, tag("tbody", body), class_=class_)
    return tag("div", table, class_="wide", tabindex="0", role="region", aria_label=label)


def phases_section(runs: Sequence[Run], axis: Axis) -> Markup | None:
    """Return each phase of both runs with their difference; None without phases."""
    named = [{row.name: row for row in rows_of(run.phases, run.length_s)} for run in runs]
    names = list(dict.fromkeys([*named[0], *named[1]]))
    if not names:
        return None
    longest = sorted(names, key=lambda name: -max(side[name].took_s for side in named if name in side))[:MOST_ROWS]
    left_out = len(names) - len(longest)
    names = [name for name in names if name in longest]
    rows = [_phase(name, [side.get(name) for side in named], axis) for name in names]
    ruler = tag("div", tag("div", "", class_="what"), tag("div", time_axis(axis), class_="ruler"),
                tag("div", "", class_="how"), class_="track top")  # fmt: skip
    note = "Each from its own start, on one scale: A is the upper bar, B the lower one."
    note += f" {left_out:,} shorter phases are not shown." if left_out else ""
    return tag("section", tag("h2", "Phases", id="phases"), tag("p", note, class_="note"),
               tag("div", ruler, tag("ul", rows, class_="tracks"), class_="timeline"))  # fmt: skip


def _phase(name: str, sides: Sequence[Row | None], axis: Axis) -> Markup:
    bars = []
    for letter, top, row in zip(LETTERS, (0.12, 0.54), sides, strict=True):
        if row is not None:
            bars += draw_spans(row.spans, axis, _describer(letter, name), top=top, height=0.34)
    took = [None if row is None else row.took_s for row in sides]
    shown = [tag("span", tag("span", f"{letter} ", class_="unit"), tag("b", duration(value)))
             for letter, value in zip(LETTERS, took, strict=True) if value is not None]  # fmt: skip
    if took[0] is not None and took[1] is not None:
        apart = took[1] - took[0]
        sign = "+" if apart > 0 else ""
        change = units.change(took[0], took[1])
        shown.append(tag("span", f"{sign}{duration(apart)}", f" ({change})" if change else "", class_="apart"))
    else:
        shown.append(tag("span", f"only in {'A' if took[1] is None else 'B'}", class_="apart"))
    still = [letter for letter, row in zip(LETTERS, sides, strict=True) if row is not None and row.is_open]
    if still:
        shown.append(tag("span", f"not ended in {' and '.join(still)}", class_="state"))
    label = f"{name}: A {duration(took[0])}, B {duration(took[1])}"
    return track(name, plot(axis, bars, label=label, class_="bar two", bands=False), shown, "compared")


def _describer(letter: str, name: str) -> Callable[[Interval], tuple[str, str]]:
    def describe(bar: Interval) -> tuple[str, str]:
        span = f"{duration(bar[1] - bar[0])}, from {units.since_start(bar[0])} to {units.since_start(bar[1])}"
        return f"{letter}: {name}, {span}", f"phase {letter.lower()}"

    return describe


def curves_section(runs: Sequence[Run], axis: Axis) -> Markup | None:
    """Return memory over time, and the duration of steps by their number."""
    rows = []
    memory = [memory_sum(run, axis) for run in runs]
    if any(memory):
        high = round_mib(max(y for points in memory for _, y in points))
        most = [max((y for _, y in points), default=None) for points in memory]
        drawn = _two([[point for point in points if point[1] > 0] for points in memory], axis, high)
        label = f"memory: at most A {units.mebibytes(most[0])}, B {units.mebibytes(most[1])}"
        drawing = plot(
            axis, stretched(drawn), scale_labels(units.round_size(high)), label=label, class_="curves", bands=False
        )
        rows.append(track("memory of all processes", drawing, _key(most, units.mebibytes), "curved tall"))
    took = [[(float(step.step), step.seconds) for step in sorted(run.steps, key=lambda s: s.step)] for run in runs]
    if any(took):
        steps = Axis(max(1.0, *(x for points in took for x, _ in points)))
        high = ceiling(max(y for points in took for _, y in points))
        medians = [sorted(y for _, y in points)[len(points) // 2] if points else None for points in took]
        label = f"duration of steps, by number: median A {duration(medians[0])}, B {duration(medians[1])}"
        drawn = _two(took, steps, high)
        drawing = plot(steps, stretched(drawn), scale_labels(duration(high)), label=label, class_="curves", bands=False)
        name = ["step duration", tag("span", f" by number, 0 to {steps.length:,.0f}", class_="where")]
        rows.append(track(name, drawing, _key(medians, duration, "median"), "curved tall"))
    if not rows:
        return None
    note = f"Memory over the time since the start, {duration(axis.length)} wide. A is solid, B is dashed."
    return tag("section", tag("h2", "Curves", id="curves"), tag("p", note, class_="note"),
               tag("ul", rows, class_="tracks timeline"))  # fmt: skip


def _two(curves_of: Sequence[list[Point]], axis: Axis, high: float) -> list[list[Markup]]:
    return [draw_curve(axis, points, 0.0, high, which)
            for points, which in zip(curves_of, ("s1", "s2 dashed"), strict=True)]  # fmt: skip


def _key(values: Sequence[float | None], show: Callable[[float | None], str], what: str = "at most") -> list[Markup]:
    return [tag("span", mark(letter), tag("b", show(value)), tag("span", f" {what}", class_="unit"))
            for letter, value in zip(LETTERS, values, strict=True) if value is not None]  # fmt: skip
