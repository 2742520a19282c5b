"""The page that compares two runs: which took longer, in which phase, and what was configured differently. Pure."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raydebug.render import MINUS, duration, moment
from raydebug.report import units
from raydebug.report.curves import memory_sum
from raydebug.report.document import SECONDS, Run, read_run
from raydebug.report.metrics import charts, metric_names
from raydebug.report.page import Markup, page, section, span, tag, wide_table
from raydebug.report.plot import (
    Axis,
    Interval,
    Points,
    ceiling,
    covered,
    draw_curve,
    peak,
    plot,
    round_mib,
    scale_labels,
    stretched,
)  # fmt: skip
from raydebug.report.run import first_error, log_link, outcome, sign
from raydebug.report.waterfall import MOST_ROWS, Row, draw_spans, rows_of, span_words, spans_of, timeline, track

LETTERS = "AB"
# Hydra overrides and options: the text before = names a setting, at any position of the command.
_SETTING = re.compile(r"(?P<key>[\w.+~@/-]+)=(?P<value>.*)", re.DOTALL)


def comparison_page(
    first: Mapping[str, object], second: Mapping[str, object], folders: tuple[str, str] = ("", "")
) -> str:
    """Return the page that compares two runs; `folders` are the ways to their folders, with a final slash."""
    runs = [read_run(first), read_run(second)]
    axis = Axis(max(run.length_s for run in runs))
    sections = [_figures(runs), _differences(runs), _phases(runs, axis), _curves(runs, axis), _metrics(runs)]
    title = f"{runs[0].id} and {runs[1].id} compared"
    return page(title, _head(runs, folders), tag("main", sections))


def _head(runs: Sequence[Run], folders: tuple[str, str]) -> Markup:
    columns = [_column(letter, run, folder) for letter, run, folder in zip(LETTERS, runs, folders, strict=True)]
    return tag("header", tag("p", "raydebug, two runs", class_="kicker"), tag("h1", _verdict(runs)),
               tag("div", columns, class_="pair"))  # fmt: skip


def _column(letter: str, run: Run, folder: str) -> Markup:
    link = log_link(run, folder)
    return tag(
        "div",
        tag("h2", _mark(letter), tag("code", run.id)),
        tag("p", sign(run), outcome(run)),
        tag("p", moment(run.started), [" \N{MIDDLE DOT} ", link] if link else None, class_="note"),
        tag("p", tag("code", shlex.join(run.command)), class_="command short"),
        first_error(run, folder),
    )


def _verdict(runs: Sequence[Run]) -> str:
    first, second = runs
    if first.status != second.status:
        return f"A {first.status}, B {second.status}"
    if first.took_s is None or second.took_s is None:
        return f"A and B: {first.status}"
    apart = second.took_s - first.took_s
    if abs(apart) < max(0.01 * first.took_s, 0.1):
        return "B took as long as A"
    by = units.change(first.took_s, second.took_s)
    return f"B took {duration(abs(apart))} {'more' if apart > 0 else 'less'} than A" + (f" ({by})" if by else "")


def _differences(runs: Sequence[Run]) -> Markup:
    found = find_differences(*runs)
    if not found:
        nothing = "Nothing that was recorded: command, cluster, profile, changes, lock and variables are the same."
        return section("What differs", id="differences", note=nothing)
    groups = list(dict.fromkeys(one.group for one in found))
    same = [word for word in ("command", "cluster", "profile", "changes", "lock", "variables") if word not in groups]
    note = f"The same in both: {', '.join(same)}." if same else None
    lists = [
        [tag("h3", group), tag("ul", [_difference(one) for one in found if one.group == group], class_="differences")]
        for group in groups
    ]
    return section("What differs", lists, id="differences", note=note)


def _difference(one: Difference) -> Markup:
    sides = [
        tag("div", _mark(letter), tag("code", value or "(empty)") if value is not None else tag("i", "not there"))
        for letter, value in zip(LETTERS, (one.first, one.second), strict=True)
    ]
    return tag("li", tag("code", one.key, class_="key") if one.key else tag("i", "words", class_="key"), sides)


def _metrics(runs: Sequence[Run]) -> Markup | None:
    names = metric_names([step for run in runs for step in run.steps])
    if not names:
        return None
    drawn = charts(names, [run.steps for run in runs])
    return section("Metrics", drawn, id="metrics", note="By step. A is solid, B is dashed.")


@dataclass(frozen=True)
class Difference:
    """One difference between two runs."""

    group: str  # command, cluster, profile, changes, lock or variables
    key: str  # empty for words of a command without a name
    first: str | None  # None if it is absent there
    second: str | None


def find_differences(first: Run, second: Run) -> list[Difference]:
    """Return the differences, in the order of the settings in the documents."""
    found = _commands(first.command, second.command)
    found += _values("cluster", first.cluster, second.cluster)
    found += _values("profile", {"profile": first.profile or "none"}, {"profile": second.profile or "none"})
    found += _values("changes", _changes(first), _changes(second))
    found += _values("lock", first.lock, second.lock)
    return found + _values("variables", first.variables, second.variables)


def _changes(run: Run) -> dict[str, str]:
    return {change.key: f"{change.old} \N{RIGHTWARDS ARROW} {change.new}" for change in run.changes}


def _commands(first: Sequence[str], second: Sequence[str]) -> list[Difference]:
    plain = [[word for word in command if not _SETTING.fullmatch(word)] for command in (first, second)]
    found = []
    matcher = difflib.SequenceMatcher(a=plain[0], b=plain[1], autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        if kind != "equal":
            sides = plain[0][start:end], plain[1][other_start:other_end]
            found.append(Difference("command", "", *(" ".join(side) if side else None for side in sides)))
    settings = [{match["key"]: match["value"] for word in command if (match := _SETTING.fullmatch(word))}
                for command in (first, second)]  # fmt: skip
    return found + _values("command", *settings)


def _values(group: str, first: Mapping[str, str], second: Mapping[str, str]) -> list[Difference]:
    pairs = ((key, first.get(key), second.get(key)) for key in dict.fromkeys([*first, *second]))
    return [Difference(group, key, *sides) for key, *sides in pairs if sides[0] != sides[1]]


def _mark(letter: str) -> Markup:
    """Return the letter of a run, in its colour."""
    return span(f"mark-{letter.lower()}", letter)


def _figures(runs: Sequence[Run]) -> Markup:
    """Return the table of key figures."""
    memory = [[y for _, y in memory_sum(run, Axis(run.length_s))] for run in runs]
    gpus = [[peak(gpu.samples) for gpu in run.gpus] for run in runs]
    bad = [[finding for finding in run.findings if finding.get("severity") in ("error", "warning")] for run in runs]
    rows: list[tuple[str, list[float | None], Callable[[float | None], str]]] = [
        ("took", [run.took_s for run in runs], duration),
        ("of it paused", [covered(spans_of(run.pauses, run.length_s)) for run in runs], duration),
        ("pauses", [float(len(run.pauses)) for run in runs], _count),
        ("steps", [float(run.step_count) for run in runs], _count),
        ("median step", [run.median_step_s for run in runs], duration),
        ("memory, at most", [max(values, default=None) for values in memory], units.mebibytes),
        ("memory of a GPU, at most", [max(peaks, default=None) for peaks in gpus], units.mebibytes),
        ("errors and warnings found", [float(len(findings)) for findings in bad], _count),
    ]
    body = [
        tag("tr", tag("th", name, scope="row"), [tag("td", show(value)) for value in values], _apart(values, show))
        for name, values, show in rows
        if any(values)
    ]
    table = wide_table("figures of both runs", "figures", ["figure", *LETTERS, "B against A"], body, last_spans=2)
    return section("In figures", table, id="figures")


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _apart(values: Sequence[float | None], show: Callable[[float | None], str]) -> list[Markup]:
    first, second = values
    if first is None or second is None:
        return [tag("td", ""), tag("td", "")]
    if show(first) == show(second):
        return [tag("td", "same"), tag("td", "")]
    sign = "+" if second > first else MINUS
    return [tag("td", sign + show(abs(second - first))), tag("td", units.change(first, second))]


def _phases(runs: Sequence[Run], axis: Axis) -> Markup | None:
    """Return each phase of both runs with their difference; None without phases."""
    named = [{row.name: row for row in rows_of(run.phases, run.length_s)} for run in runs]
    names = list(dict.fromkeys([*named[0], *named[1]]))
    if not names:
        return None
    longest = sorted(names, key=lambda name: -max(side[name].took_s for side in named if name in side))[:MOST_ROWS]
    left_out = len(names) - len(longest)
    names = [name for name in names if name in longest]
    rows = [_phase(name, [side.get(name) for side in named], axis) for name in names]
    note = "Each from its own start, on one scale: A is the upper bar, B the lower one."
    note += f" {left_out:,} shorter phases are not shown." if left_out else ""
    return section("Phases", timeline(rows, axis), id="phases", note=note)


def _phase(name: str, sides: Sequence[Row | None], axis: Axis) -> Markup:
    bars = []
    for letter, top, row in zip(LETTERS, (0.12, 0.54), sides, strict=True):
        if row is not None:
            bars += draw_spans(row.spans, axis, _describer(letter, name), top=top, height=0.34)
    took = [None if row is None else row.took_s for row in sides]
    known = [(letter, value) for letter, value in zip(LETTERS, took, strict=True) if value is not None]
    shown = [tag("span", span("unit", f"{letter} "), tag("b", duration(value))) for letter, value in known]
    if took[0] is not None and took[1] is not None:
        apart = took[1] - took[0]
        sign = "+" if apart > 0 else ""
        change = units.change(took[0], took[1])
        shown.append(span("apart", f"{sign}{duration(apart)}", f" ({change})" if change else ""))
    else:
        shown.append(span("apart", f"only in {'A' if took[1] is None else 'B'}"))
    still = [letter for letter, row in zip(LETTERS, sides, strict=True) if row is not None and row.is_open]
    if still:
        shown.append(span("state", f"not ended in {' and '.join(still)}"))
    label = f"{name}: A {duration(took[0])}, B {duration(took[1])}"
    return track(name, plot(axis, bars, label=label, class_="bar two", bands=False), shown, "compared")


def _describer(letter: str, name: str) -> Callable[[Interval], tuple[str, str]]:
    def describe(bar: Interval) -> tuple[str, str]:
        return f"{letter}: {name}, {span_words(bar)}", f"phase {letter.lower()}"

    return describe


def _curves(runs: Sequence[Run], axis: Axis) -> Markup | None:
    """Return memory over time, and the duration of steps by their number."""
    rows = []
    memory = [memory_sum(run, axis) for run in runs]
    if any(memory):
        high = round_mib(max(y for points in memory for _, y in points))
        most = [max((y for _, y in points), default=None) for points in memory]
        drawn = _two([[point for point in points if point[1] > 0] for points in memory], axis, high)
        label = f"memory: at most A {units.mebibytes(most[0])}, B {units.mebibytes(most[1])}"
        scale = scale_labels(units.round_size(high))
        drawing = plot(axis, stretched(drawn), scale, label=label, class_="curves", bands=False)
        rows.append(track("memory of all processes", drawing, _key(most, units.mebibytes), "curved tall"))
    took = [
        [(float(step.step), step.seconds, *step.spreads.get(SECONDS, ())[:2])
         for step in sorted(run.steps, key=lambda s: s.step)]
        for run in runs
    ]  # fmt: skip
    if any(took):
        steps = Axis(max(1.0, *(point[0] for points in took for point in points)))
        high = ceiling(max(max(point[1:]) for points in took for point in points))
        medians = [run.median_step_s for run in runs]
        label = f"duration of steps, by number: median A {duration(medians[0])}, B {duration(medians[1])}"
        drawn = _two(took, steps, high)
        drawing = plot(steps, stretched(drawn), scale_labels(duration(high)), label=label, class_="curves", bands=False)
        name = ["step duration", span("where", f" by number, 0 to {steps.length:,.0f}")]
        rows.append(track(name, drawing, _key(medians, duration, "median"), "curved tall"))
    if not rows:
        return None
    note = f"Memory over the time since the start, {duration(axis.length)} wide. A is solid, B is dashed."
    return section("Curves", tag("ul", rows, class_="tracks timeline"), id="curves", note=note)


def _two(curves_of: Sequence[Points], axis: Axis, high: float) -> list[list[Markup]]:
    return [draw_curve(axis, points, 0.0, high, which)
            for points, which in zip(curves_of, ("s1", "s2 dashed"), strict=True)]  # fmt: skip


def _key(values: Sequence[float | None], show: Callable[[float | None], str], what: str = "at most") -> list[Markup]:
    known = [(letter, value) for letter, value in zip(LETTERS, values, strict=True) if value is not None]
    return [tag("span", _mark(letter), tag("b", show(value)), span("unit", f" {what}")) for letter, value in known]
