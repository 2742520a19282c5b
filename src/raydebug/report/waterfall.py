"""The waterfall: duration of each phase, and the times in which the run was paused. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from raydebug.render import duration
from raydebug.report import units
from raydebug.report.page import Child, Markup, percent, span, tag
from raydebug.report.plot import (
    Axis,
    Interval,
    columns_of,
    covered,
    density,
    gaps,
    merge,
    plot,
    stretched,
    time_axis,
)  # fmt: skip
from raydebug.runs.record import Pause, Phase, Run

MOST_ROWS, MOST_TASKS = 40, 20  # of phases by name, whose further ones are one sum; of tasks by name
KINDS = {
    "breakpoint": "at breakpoints",
    "post-mortem": "at crashes",
    "tripwire": "at tripwires",
}  # other kinds are shown by their name
_UNSEEN = 1 / 800  # of the width of a plot: spans closer together are drawn as one bar
_COUNTS = 0.01  # of the run: smallest time outside all phases that gets a row
_UNTRUE = 0.02  # of the width: largest uncovered time that bars may hide


@dataclass(frozen=True)
class Row:
    """All phases of one name."""

    name: str
    spans: list[Interval]  # an open one ends with the run
    is_open: bool  # the last one

    @property
    def took_s(self) -> float:
        """Their sum."""
        return sum(end - start for start, end in self.spans)


def rows_of(phases: Iterable[Phase], length_s: float) -> list[Row]:
    """Return phases by name, in order of first appearance."""
    named: dict[str, list[Phase]] = {}
    for phase in phases:
        named.setdefault(phase.name, []).append(phase)
    return [Row(name, spans_of(same, length_s), any(p.end_s is None for p in same)) for name, same in named.items()]


def spans_of(lasting: Iterable[Phase | Pause], length_s: float) -> list[Interval]:
    """Return start and end of phases or pauses; one without an end lasts as long as the run."""
    return [(each.start_s, length_s if each.end_s is None else each.end_s) for each in lasting]


def span_words(bar: Interval) -> str:
    """Return how long a span lasted, and from when."""
    return f"{duration(bar[1] - bar[0])}, from {units.since_start(bar[0])}"


def is_dense(spans: Sequence[Interval], length_s: float) -> bool:
    """Return whether spans are so dense that bars would show more time than they cover."""
    seen = merge(spans, _UNSEEN * length_s)
    return sum(end - start for start, end in seen) - covered(spans) > _UNTRUE * length_s


def draw_spans(
    spans: Sequence[Interval], axis: Axis, text: Callable[[Interval], tuple[str, str]], height: float = 0.6
) -> list[Markup]:
    """Return bars; for dense spans, columns whose height is the covered share of their time.

    `text` returns title and class of a bar; the `height` of bars is a fraction of the drawing.
    """
    if is_dense(spans, axis.length):
        path = tag("path", d=columns_of(density(spans, axis.length)), class_=text((0.0, 0.0))[1])
        return [stretched(path)]
    bars = []
    for bar in merge(spans, _UNSEEN * axis.length):
        title, class_ = text(bar)
        place = {"x": axis.at(bar[0]), "width": axis.span(*bar), "y": percent((1 - height) / 2)}
        bars.append(tag("rect", tag("title", title), **place, height=percent(height), class_=class_))
    return bars


def track(what: Child, drawing: Markup, how: Child, class_: str = "") -> Markup:
    """Return one row of the timeline: its name, its plot, and its figures."""
    return tag("li", tag("div", what, class_="what"), drawing, tag("div", how, class_="how"),
               class_=f"track {class_}".strip())  # fmt: skip


def timeline(rows: Sequence[Markup], axis: Axis) -> Markup:
    """Return rows below the labels of their axis."""
    ruler = tag("div", tag("div", "", class_="what"), tag("div", time_axis(axis), class_="ruler"),
                tag("div", "", class_="how"), class_="track top")  # fmt: skip
    return tag("div", ruler, tag("ul", rows, class_="tracks"), class_="timeline")


def phase_rows(run: Run, axis: Axis) -> list[Markup]:
    """Return a row for each phase by name, and one for the time outside all phases if it is long enough."""
    rows = rows_of(run.phases, run.length_s)
    rest: list[Row] = []
    if len(rows) > MOST_ROWS:
        longest = sorted(rows, key=lambda row: -row.took_s)[: MOST_ROWS - 1]
        rest = [row for row in rows if row not in longest]
        rows = [row for row in rows if row in longest]
    shown = [_phase_row(row, axis, row.name) for row in rows]
    if rest:
        every = Row("", [span for row in rest for span in row.spans], any(row.is_open for row in rest))
        shown.append(_phase_row(every, axis, f"{len(rest)} others, shorter"))
    missing = gaps((span for row in (*rows, *rest) for span in row.spans), run.length_s)
    missing_s = sum(end - start for start, end in missing)
    if (rows or rest) and missing_s > _COUNTS * run.length_s:
        bars = draw_spans(missing, axis, lambda bar: (f"in no phase: {span_words(bar)}", "gap"))
        drawing = plot(axis, bars, label="time in no phase", class_="bar")
        shown.append(track(tag("i", "in no phase"), drawing, took(missing_s, axis.length), "quiet"))
    return shown


def task_rows(tasks: Sequence[Phase], axis: Axis) -> list[Markup]:
    """Return a row for each function or method that Ray has run, the longest ones; several may run at once."""
    rows = sorted(rows_of(tasks, axis.length), key=lambda row: -row.took_s)[:MOST_TASKS]
    return [_phase_row(row, axis, row.name, covered(row.spans)) for row in rows]


def _phase_row(row: Row, axis: Axis, name: str, took_s: float | None = None) -> Markup:
    def text(bar: Interval) -> tuple[str, str]:
        is_open = row.is_open and bar[1] >= axis.length
        words = f"{name}: {span_words(bar)} to {units.since_start(bar[1])}"
        return (f"{words}, not ended", "phase open") if is_open else (words, "phase")

    first_s, last_s = row.spans[0][0], max(end for _, end in row.spans)
    label = f"{name}: from {units.since_start(first_s)} to {units.since_start(last_s)}"
    drawing = plot(axis, draw_spans(row.spans, axis, text), label=label, class_="bar")
    what = [name, times(len(row.spans)) if len(row.spans) > 1 else None]
    state = span("state", " not ended") if row.is_open else None
    return track([*what, state], drawing, took(row.took_s if took_s is None else took_s, axis.length))


def took(part_s: float, whole_s: float) -> list[Markup]:
    """Return a time span and its share, for the column beside a plot."""
    return [tag("b", duration(part_s)), span("share", units.share(part_s, whole_s))]


def times(count: int) -> Markup:
    """Return how many spans or steps a row has, for its name."""
    return span("times", f" \N{MULTIPLICATION SIGN}{count:,}")


def pause_rows(run: Run, axis: Axis) -> list[Markup]:
    """Return a row of pauses for each kind, on the same axis."""
    kinds: dict[str, list[Pause]] = {}
    for pause in run.pauses:
        kinds.setdefault(pause.kind, []).append(pause)
    return [_pause_row(kind, pauses, axis) for kind, pauses in sorted(kinds.items())]


def _pause_row(kind: str, pauses: Sequence[Pause], axis: Axis) -> Markup:
    spans = spans_of(pauses, axis.length)
    class_ = f"pause {'crash' if kind == 'post-mortem' else 'stop'}"

    def text(bar: Interval) -> tuple[str, str]:
        inside = [p for p, (start, end) in zip(pauses, spans, strict=True) if bar[0] <= start and end <= bar[1]]
        first = f", the first at {inside[0].where}" if inside else ""
        which = f"{units.counted(len(inside), 'pause')}{first}"
        if len(inside) == 1:
            which = f"{inside[0].where}, {inside[0].who}"
        return f"{which}: {span_words(bar)}", class_

    still = sum(pause.end_s is None for pause in pauses)
    title = f"paused {KINDS.get(kind, kind)}"
    held = covered(spans)
    label = f"{title}: {units.counted(len(pauses), 'pause')}, {duration(held)} in all"
    drawing = plot(axis, draw_spans(spans, axis, text, 0.72), label=label, class_="bar", bands=False)
    name = [title, times(len(pauses)), span("state", f" {still:,} not resumed") if still else None]
    return track(name, drawing, took(held, axis.length), "pauses")


def bands(run: Run, axis: Axis) -> Markup:
    """Return the spans in which any process was paused, drawn behind every plot.

    Of dense pauses, the columns are shaded of which at least half was paused.
    """
    spans = spans_of(run.pauses, axis.length)
    if is_dense(spans, axis.length):
        shares = density(spans, axis.length)
        width = axis.length / len(shares)
        spans = [(index * width, (index + 1) * width) for index, share in enumerate(shares) if share >= 0.5]
    shapes = [
        tag("rect", x=axis.at(start), width=axis.span(start, end), y="0", height="100%", class_="band")
        for start, end in merge(spans, _UNSEEN * axis.length)
    ]
    return tag("g", shapes, id="bands")
