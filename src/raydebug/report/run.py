"""The page of one run: outcome, findings, timeline, pauses, steps, changes, what ran. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydebug.jobs.run_folder import RUN
from raydebug.render import duration
from raydebug.report import curves, sections
from raydebug.report.document import Run, read_run
from raydebug.report.downsample import COLUMNS, merge
from raydebug.report.metrics import steps_section
from raydebug.report.page import Markup, page, tag
from raydebug.report.plot import Axis, hatches, time_axis
from raydebug.report.sections import pauses_section
from raydebug.report.waterfall import bands, is_dense, pause_rows, phase_rows, rows_of, spans_of

_MOST_READ = 2000  # phases that the program searches at each move of the cursor; with more, it shows none


def run_page(document: Mapping[str, Any], folder: str = "") -> str:
    """Return the page of a run.

    Args:
        document: run.json, version 1; missing parts are left out.
        folder: relative path from the page to the run's folder, with a final slash; empty if the page is in it.
    """
    run = read_run(document)
    axis = Axis(run.length_s)
    parts = [
        sections.findings_section(run),
        _timeline(run, axis),
        pauses_section(run),
        steps_section(run),
        sections.changes_section(run.changes, run.profile) if run.kind == RUN else None,  # a check changes nothing
        sections.environment_section(run),
    ]
    title = f"{run.status}: {' '.join(run.command)[:80] or run.id}"
    return page(title, sections.head(run, folder), tag("main", parts), data=_cursor_data(run, axis))


def _timeline(run: Run, axis: Axis) -> Markup:
    rows = [
        *phase_rows(run, axis), *pause_rows(run, axis), *curves.step_row(run, axis),
        *curves.memory_rows(run, axis), *curves.gpu_rows(run, axis),
    ]  # fmt: skip
    if not rows:
        return tag("section", tag("h2", "Timeline", id="timeline"), tag("p", "Nothing was recorded.", class_="note"))
    definitions = tag("svg", tag("defs", bands(run, axis), hatches()), class_="defs", aria_hidden="true")
    ruler = tag("div", tag("div", "", class_="what"), tag("div", time_axis(axis), class_="ruler"),
                tag("div", "", class_="how"), class_="track top")  # fmt: skip
    return tag(
        "section",
        tag("h2", "Timeline", id="timeline"),
        tag("p", " ".join(_notes(run)), class_="note"),
        definitions,
        tag("div", ruler, tag("ul", rows, class_="tracks"), class_="timeline"),
    )


def _notes(run: Run) -> list[str]:
    """Return the notes that explain the plots."""
    notes = [f"{duration(run.length_s)} from left to right, the same in every row."]
    if run.pauses:
        spans = spans_of(run.pauses, run.length_s)
        which = "of which at least half is paused" if is_dense(spans, run.length_s) else "in which anything is paused"
        notes.append(f"Shaded are times {which}; they are included in all durations.")
    if run.memory:
        notes.append("Memory is resident memory, stacked by process; shared pages count in each process.")
        nodes = len({process.node for process in run.memory})
        if nodes > curves.MOST_NODES:
            notes.append(f"The {curves.MOST_NODES} nodes with most of {nodes} are shown.")
    if len(run.gpus) > curves.MOST_GPUS:
        notes.append(f"The first {curves.MOST_GPUS} of {len(run.gpus)} GPUs are shown.")
    each = duration(run.length_s / COLUMNS)
    rows = [row.spans for row in rows_of(run.phases, run.length_s)] + [spans_of(run.pauses, run.length_s)]
    if any(is_dense(spans, run.length_s) for spans in rows):
        notes.append(f"Where spans are too many to be drawn, the height says how much of each {each} they fill.")
    most = max(len(run.steps), *(len(samples) for samples in run.samples), 0)
    if most > 2 * COLUMNS:
        shaded = "shaded from lowest to highest; memory as the moment of its highest sum"
        notes.append(f"A curve of up to {most:,} values is drawn as the mean of each {each}, {shaded}.")
    return notes


def _cursor_data(run: Run, axis: Axis) -> dict[str, Any]:
    """Return the data from which the page's program describes the moment under the cursor."""

    def moment(value: float) -> float:
        return round(value, 3)

    phases = [[p.name, moment(p.start_s), moment(axis.length if p.end_s is None else p.end_s)] for p in run.phases]
    pauses = merge(spans_of(run.pauses, axis.length), 0.0)
    return {
        "length": moment(axis.length),
        "phases": phases if len(phases) <= _MOST_READ else [],
        "pauses": [[moment(start), moment(end)] for start, end in pauses],
        "steps": [[moment(step.end_s), step.step, moment(step.seconds)] for step in run.steps],
        "memory": [[moment(x), round(mib)] for x, mib in curves.memory_sum(run, axis)],
    }
