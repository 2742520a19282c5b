"""The waterfall: what took how long, and when the run stood still for a debugger. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from raydebug.runs.page import words
from raydebug.runs.page.document import Pause, Phase, Run
from raydebug.runs.page.markup import Child, Markup, percent, tag
from raydebug.runs.page.plot import Axis, columns_of, plot, stretched
from raydebug.runs.page.thinning import Interval, covered, density, gaps, merge

MOST_ROWS = 40  # of names of phases; more are one sum
KINDS = {"breakpoint": "at breakpoints", "post-mortem": "at crashes"}  # the rest comes under its own name
_UNSEEN = 1 / 800  # of the width of a plot: what lies closer together is one bar
_COUNTS = 0.01  # of the run: time in no phase that is worth a row
_UNTRUE = 0.02  # of the width: so much that is not covered may look so, where spans are too close to be told apart


@dataclass(frozen=True)
class Row:
    """All phases of one name.

    Args:
        name: theirs.
        spans: start and end of each; the end of one that has not ended is that of the run.
        is_open: whether the last one had not ended.
    """

    name: str
    spans: list[Interval]
    is_open: bool

    @property
    def took_s(self) -> float:
        """Their sum."""
        return sum(end - start for start, end in self.spans)


def rows_of(phases: Iterable[Phase], length_s: float) -> list[Row]:
    """Return phases by name, in the order in which each name comes first."""
    named: dict[str, list[Phase]] = {}
    for phase in phases:
        named.setdefault(phase.name, []).append(phase)
    return [
        Row(
            name,
            [(p.start_s, length_s if p.end_s is None else p.end_s) for p in same],
            any(p.end_s is None for p in same),
        )
        for name, same in named.items()
    ]


def spans_of(pauses: Iterable[Pause], length_s: float) -> list[Interval]:
    """Return start and end of pauses; the end of one that was not let go is that of the run."""
    return [(pause.start_s, length_s if pause.end_s is None else pause.end_s) for pause in pauses]


def is_dense(spans: Sequence[Interval], length_s: float) -> bool:
    """Tell whether spans are so many and so close that bars would show more time than they take."""
    seen = merge(spans, _UNSEEN * length_s)
    return sum(end - start for start, end in seen) - covered(spans) > _UNTRUE * length_s


def draw_spans(
    spans: Sequence[Interval], axis: Axis, told: Callable[[Interval], tuple[str, str]], *, top: float, height: float
) -> list[Markup]:
    """Return bars; for dense spans, columns whose height says how much of their time is covered.

    Args:
        spans: start and end of each.
        axis: the time axis.
        told: what a bar says of itself, and its class.
        top: of the lane in the drawing, from 0 to 1.
        height: of the lane.
    """
    if is_dense(spans, axis.length):
        path = tag("path", d=columns_of(density(spans, axis.length)), class_=told((0.0, 0.0))[1])
        return [stretched(path) if height > 0.5 else stretched(path, y=percent(top), height=percent(height))]
    bars = []
    for bar in merge(spans, _UNSEEN * axis.length):
        words_, class_ = told(bar)
        bars.append(tag("rect", tag("title", words_), x=axis.at(bar[0]), width=axis.span(*bar), y=percent(top),
                        height=percent(height), class_=class_))  # fmt: skip
    return bars


def track(what: Child, drawing: Markup, how: Child, class_: str = "") -> Markup:
    """Return one row of the timeline: what it is, its drawing, and the figures."""
    return tag("li", tag("div", what, class_="what"), drawing, tag("div", how, class_="how"),
               class_=f"track {class_}".strip())  # fmt: skip


def phase_rows(run: Run, axis: Axis) -> list[Markup]:
    """Return a row for each name of a phase, and one for the time in none, where that is worth it."""
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
        shown.append(_gap_row(missing, missing_s, axis))
    return shown


def _phase_row(row: Row, axis: Axis, name: str) -> Markup:
    def told(bar: Interval) -> tuple[str, str]:
        is_open = row.is_open and bar[1] >= axis.length
        span = f"{words.seconds(bar[1] - bar[0])}, from {words.since_start(bar[0])} to {words.since_start(bar[1])}"
        return f"{name}: {span}" + (", not ended" if is_open else ""), "phase open" if is_open else "phase"

    drawing = plot(axis, draw_spans(row.spans, axis, told, top=0.2, height=0.6), label=_label(row, name), class_="bar")
    times = tag("span", f" \N{MULTIPLICATION SIGN}{len(row.spans):,}", class_="times") if len(row.spans) > 1 else None
    state = tag("span", " not ended", class_="state") if row.is_open else None
    return track([name, times, state], drawing, took(row.took_s, axis.length))


def _label(row: Row, name: str) -> str:
    last = max(end for _, end in row.spans)
    return f"{name}: from {words.since_start(row.spans[0][0])} to {words.since_start(last)}"


def took(part_s: float, whole_s: float) -> list[Markup]:
    """Return a time span and its share, as they stand beside a drawing."""
    return [tag("b", words.seconds(part_s)), tag("span", words.share(part_s, whole_s), class_="share")]


def _gap_row(missing: Sequence[Interval], missing_s: float, axis: Axis) -> Markup:
    def told(bar: Interval) -> tuple[str, str]:
        return f"in no phase: {words.seconds(bar[1] - bar[0])}, from {words.since_start(bar[0])}", "gap"

    drawing = plot(axis, draw_spans(missing, axis, told, top=0.2, height=0.6), label="time in no phase", class_="bar")
    return track(tag("i", "in no phase"), drawing, took(missing_s, axis.length), "quiet")


def pause_rows(run: Run, axis: Axis) -> list[Markup]:
    """Return a row of pauses for each kind, on the same axis."""
    kinds: dict[str, list[Pause]] = {}
    for pause in run.pauses:
        kinds.setdefault(pause.kind, []).append(pause)
    return [_pause_row(kind, pauses, axis) for kind, pauses in sorted(kinds.items())]


def _pause_row(kind: str, pauses: Sequence[Pause], axis: Axis) -> Markup:
    spans = spans_of(pauses, axis.length)
    class_ = f"pause {'crash' if kind == 'post-mortem' else 'stop'}"

    def told(bar: Interval) -> tuple[str, str]:
        inside = [p for p, (start, end) in zip(pauses, spans, strict=True) if bar[0] <= start and end <= bar[1]]
        span = f"{words.seconds(bar[1] - bar[0])}, from {words.since_start(bar[0])}"
        if len(inside) == 1:
            return f"{inside[0].where}, {inside[0].who}: {span}", class_
        first = f", the first at {inside[0].where}" if inside else ""
        return f"{words.counted(len(inside), 'pause')}{first}: {span}", class_

    still = sum(pause.end_s is None for pause in pauses)
    said = f"paused {KINDS.get(kind, kind)}"
    held = covered(spans)
    label = f"{said}: {words.counted(len(pauses), 'pause')}, {words.seconds(held)} in all"
    drawing = plot(axis, draw_spans(spans, axis, told, top=0.14, height=0.72), label=label, class_="bar", bands=False)
    name = [said, tag("span", f" \N{MULTIPLICATION SIGN}{len(pauses):,}", class_="times"),
            tag("span", f" {still:,} not let go", class_="state") if still else None]  # fmt: skip
    return track(name, drawing, took(held, axis.length), "pauses")


def bands(run: Run, axis: Axis) -> Markup:
    """Return the spans in which anything was paused, for every drawing to show behind its own.

    Of dense pauses, those columns are shaded of which at least half was paused.
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
