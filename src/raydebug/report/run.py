"""The page of one run: outcome, first error, findings, timeline, pauses, steps, changes, what ran. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from raydebug import render
from raydebug.diagnose.answer import headline, origin
from raydebug.render import duration
from raydebug.report import curves, units
from raydebug.report.metrics import steps_section
from raydebug.report.page import Child, Markup, facts, page, section, span, table_row, tag, wide_table
from raydebug.report.plot import COLUMNS, Axis, covered, hatches, merge
from raydebug.report.waterfall import (
    bands,
    is_dense,
    pause_rows,
    phase_rows,
    rows_of,
    spans_of,
    task_rows,
    timeline,
)
from raydebug.runs.record import RUN, Change, Pause, Phase, Run

_MOST_READ = 2000  # phases that the program searches at each move of the cursor; with more, it shows none
FEW = 12  # pauses that need no summary by place
MOST_PLACES = 20
MOST_LISTED = 10_000
_SIGNS = {"succeeded": "\N{CHECK MARK}", "failed": "\N{MULTIPLICATION X}", "stopped": "\N{BLACK SQUARE}",
          "interrupted": "\N{BLACK SQUARE}", "running": "\N{BLACK RIGHT-POINTING TRIANGLE}"}  # fmt: skip
_SEVERITIES = ("error", "warning", "note")
_FINDING = (("why", "why"), ("see", "evidence"), ("fix", "fix"), ("run", "command"))
_SHORT = 8  # words of the command in the head; the last section has all
_WIDE = 100  # longest command on one line
_OPTION = re.compile(r"--\w|[\w.+~@/-]+=")
# A file beside the document: no path to another folder, and no URL scheme.
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def run_page(
    run: Run,
    folder: str = "",
    *,
    crashes: Sequence[Mapping[str, str]] = (),
    slow_step: str = "",
    tasks: Sequence[Phase] = (),
    reload_s: float | None = None,
) -> str:
    """Return the page of a run; what it does not have is left out.

    Args:
        run: from its record.
        crashes: what its snapshots are of (snapshot/load.py).
        slow_step: why its slowest step was slow (trace/why.py).
        tasks: Ray's, of a program that is no training.
        folder: the relative path from the page to the run's folder, with a final slash; empty if the page is in it.
        reload_s: the page reads itself again after so many seconds; None for one that stays as it is.
    """
    axis = Axis(run.length_s)
    parts = [
        _findings(run),
        _crashes(run.id, crashes),
        _timeline(run, tasks, axis),
        _pauses(run),
        steps_section(run, slow_step),
        _changes(run.changes, run.profile or "") if run.kind == RUN else None,  # a check changes nothing
        _environment(run),
    ]
    title = f"{run.status}: {' '.join(run.command)[:80] or run.id}"
    data = _cursor_data(run, axis) | ({} if reload_s is None else {"reload_s": reload_s})
    return page(title, _head(run, folder), tag("main", parts), data=data)


def _timeline(run: Run, tasks: Sequence[Phase], axis: Axis) -> Markup:
    rows = [
        *phase_rows(run, axis), *task_rows(tasks, axis), *pause_rows(run, axis), *curves.step_row(run, axis),
        *curves.memory_rows(run, axis), *(curves.gpu_row(gpu, axis) for gpu in run.gpus[: curves.MOST_GPUS]),
    ]  # fmt: skip
    if not rows:
        return section("Timeline", id="timeline", note="Nothing was recorded.")
    definitions = tag("svg", tag("defs", bands(run, axis), hatches()), class_="defs", aria_hidden="true")
    return section("Timeline", definitions, timeline(rows, axis), id="timeline", note=" ".join(_notes(run)))


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


def _cursor_data(run: Run, axis: Axis) -> dict[str, object]:
    """Return the data from which the page's program describes the moment under the cursor."""

    def moment(value: float) -> float:
        return round(value, 3)

    phases = [[p.name, moment(p.start_s), moment(axis.length if p.end_s is None else p.end_s)] for p in run.phases]
    pauses = merge(spans_of(run.pauses, axis.length))
    return {
        "length": moment(axis.length),
        "phases": phases if len(phases) <= _MOST_READ else [],
        "pauses": [[moment(start), moment(end)] for start, end in pauses],
        "steps": [[moment(step["end_s"]), step["step"], moment(step["seconds"])] for step in run.steps],
        "memory": [[moment(x), round(mib)] for x, mib in curves.memory_sum(run, axis)],
    }


def outcome(run: Run) -> str:
    """Return one sentence on how the run ended."""
    took = run.took_s
    after = "" if took is None else f" after {duration(took)}"
    code = "" if run.exit_code is None else f", exit code {run.exit_code}"
    if run.status == "running":
        return f"{run.kind.capitalize()} had not ended; known up to {duration(run.length_s)}"
    return f"{run.kind.capitalize()} {run.status}{after}{code}"


def log_link(run: Run, folder: str, title: str = "") -> Markup | None:
    """Return a link to the job's log, which begins with `folder`, the way from the page to the run's folder."""
    if not _FILE.fullmatch(run.log):
        return None
    return tag("a", title or run.log, href=quote(folder) + run.log)


def _head(run: Run, folder: str) -> Markup:
    """Return the head of the page: the run, its outcome, the first error."""
    about = [
        tag("span", f"raydebug {run.kind} ", tag("code", run.id)),
        tag("span", units.between(run.started, run.ended)),
    ]
    link = log_link(run, folder)
    sign = tag("span", _SIGNS.get(run.status, "?"), class_=f"sign {run.status}", aria_hidden="true")
    command = shlex.join(run.command[:_SHORT]) + (" \N{HORIZONTAL ELLIPSIS}" if run.command[_SHORT:] else "")
    return tag(
        "header",
        tag("p", about, tag("span", link) if link else None, class_="kicker"),
        tag("h1", sign, outcome(run)),
        tag("p", tag("code", command), class_="command"),
        first_error(run, folder),
    )


def first_error(run: Run, folder: str) -> Markup | None:
    """Return the first error, or a link to the log if it is unknown; None for a run that did not fail."""
    link = log_link(run, folder, f"read {run.log}")
    if run.first_error is None:
        if run.status != "failed":
            return None
        unknown = "No error was found in the output of its processes."
        return tag("section", tag("h2", "First error"), tag("p", unknown, " ", link), class_="error")
    error = run.first_error
    what, rest = headline(error)
    said = error.get("text", "")
    shown = f"{error.get('kind', '')}: {said}"
    return tag("section", tag("h2", "First error"), tag("p", tag("b", what), rest, class_="title"),
               tag("p", tag("code", shown), class_="note") if "title" in error and said not in what + rest else None,
               tag("p", origin(error), class_="note"),
               tag("p", link) if link else None, class_="error", aria_label="first error")  # fmt: skip


def _findings(run: Run) -> Markup | None:
    """Return the findings, the most severe first; None if there are none."""
    if not run.findings:
        return None
    order = {severity: index for index, severity in enumerate(_SEVERITIES)}
    ordered = sorted(run.findings, key=lambda finding: order.get(finding.get("severity", ""), len(order)))
    counts = [units.counted(count, word) for word in _SEVERITIES
              if (count := sum(finding.get("severity") == word for finding in ordered))]  # fmt: skip
    items = tag("ul", [_finding(finding) for finding in ordered], class_="findings")
    return section("Findings", items, id="findings", note=", ".join(counts))


def _finding(finding: Mapping[str, str]) -> Markup:
    severity = finding.get("severity", "note")
    stage = finding.get("stage", "")
    marks = [span(f"severity {severity}", severity), tag("span", f"stage {stage}") if stage else None]
    mark = tag("p", marks, tag("code", finding.get("code", "")), class_="mark")
    parts = [tag("div", tag("dt", word), tag("dd", finding[key])) for word, key in _FINDING if finding.get(key)]
    body = tag("div", tag("p", finding.get("what", ""), class_="title"), tag("dl", parts) if parts else None)
    return tag("li", mark, body)


def _crashes(run_id: str, crashes: Sequence[Mapping[str, str]]) -> Markup | None:
    """Return which processes crashed where, and how to open what they left; None if there are no snapshots."""
    if not crashes:
        return None
    rows = [
        table_row(
            _kind(crash.get("exception", ""), crash.get("message", "").partition("\n")[0]),
            tag("code", crash.get("where", "")),
            crash.get("who", ""),
            f"{crash.get('at', '')}{', first' if crash is crashes[0] else ''}",
            tag("code", render.command("raydebug", "open", run_id, "--pick", crash.get("pick", ""))),
            classes=["kind", "where", "who", "at", "open"],
        )
        for crash in crashes
    ]
    kinds = units.counted(len(crashes), "kind of crash", "kinds of crashes")
    note = f"{kinds}. Frames, locals and tensors were saved; they open on any machine, without Ray or torch."
    table = wide_table("crashes", "pauses", ["exception", "where", "who", "at", "open"], rows)
    return section("Crashes", table, id="crashes", note=note)


def _changes(changes: Sequence[Change], profile: str) -> Markup | None:
    """Return the changes of the profile; None without a profile."""
    if not changes and not profile:
        return None
    items = [
        tag("li", tag("code", c.key, class_="key"),
            span("move", tag("del", c.old), " \N{RIGHTWARDS ARROW} ", tag("ins", c.new)), span("why", c.why))
        for c in changes
    ]  # fmt: skip
    note = f"The profile {profile} " if profile else "A profile "
    note += f"changed {units.counted(len(changes), 'setting')} of the command below." if changes else "changed nothing."
    listed = tag("ul", items, class_="changes") if items else None
    return section("Changes of the profile", listed, id="changes", note=note)


def _environment(run: Run) -> Markup:
    """Return command, cluster, lock and variables of the run."""
    cluster = {"name": "cluster", "kind": "where", "flavour": "flavour", "debugger": "debugger"}
    known = [(word, run.cluster[key]) for key, word in cluster.items() if run.cluster.get(key)]
    if run.lock.get("sha256"):
        known.append(("lock", f"{run.lock.get('flavour', '')} {run.lock['sha256']}".strip()))
    variables = facts(((tag("code", name), run.variables[name]) for name in sorted(run.variables)), "facts variables")
    command = tag("pre", tag("code", " \\\n  ".join(command_lines(run.command))))
    return section(
        "What ran",
        facts(known),
        [tag("h3", "Command"), command] if run.command else None,
        [tag("h3", "Variables"), variables] if variables else None,
        id="environment",
    )


def command_lines(command: Sequence[str]) -> list[str]:
    """Return a command in shell syntax; a long one with one option or override per line."""
    whole = shlex.join(command)
    if len(whole) <= _WIDE:
        return [whole]
    lines: list[str] = []
    for word in command:
        if not lines or _OPTION.match(word):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines


def _pauses(run: Run) -> Markup | None:
    """Return where the run paused, how often and how long; None for a run without pauses."""
    if not run.pauses:
        return None
    length = run.length_s
    held = covered(spans_of(run.pauses, length))
    still = [pause for pause in run.pauses if pause.end_s is None]
    note = (
        f"{units.counted(len(run.pauses), 'pause')}; {duration(held)} of {duration(length)} had at least one"
        " process waiting for a debugger."
    )
    if still:
        note += f" {units.counted(len(still), 'pause was', 'pauses were')} not resumed."
    every = _list(run.pauses[:MOST_LISTED], length)
    if len(run.pauses) > FEW:
        left_out = len(run.pauses) - MOST_LISTED
        cut = tag("p", f"The first {MOST_LISTED:,} of {len(run.pauses):,}; run.json has all.", class_="note")
        said = f"{'All' if left_out <= 0 else 'Of'} {len(run.pauses):,} pauses, one by one"
        every = tag("details", tag("summary", said), cut if left_out > 0 else None, every)
    places = _places(run.pauses, length) if len(run.pauses) > FEW else None
    return section("Pauses", places, every, id="pauses", note=note)


def _places(pauses: Sequence[Pause], length: float) -> list[Markup | None]:
    groups: dict[tuple[str, str, str | None], list[Pause]] = {}
    for pause in pauses:
        groups.setdefault((pause.where, pause.kind, pause.exception), []).append(pause)
    rows = []
    for (where, kind, exception), same in sorted(groups.items(), key=lambda group: -len(group[1]))[:MOST_PLACES]:
        waited = [end - start for start, end in spans_of(same, length)]
        by = units.counted(len({pause.who for pause in same}), "process", "processes")
        times = [f"{len(same):,}", duration(sum(waited)), duration(max(waited))]
        rows.append([tag("code", where), _kind(kind, exception), *times, by])
    left_out = len(groups) - len(rows)
    more = tag("p", f"{units.counted(left_out, 'place')} with fewer are in the list below.", class_="note")
    table = _table("By place", rows, ["where", "kind", "count", "waited in all", "longest", "by"])
    return [table, more if left_out else None]


def _list(pauses: Sequence[Pause], length: float) -> Markup:
    rows: list[list[Child]] = []
    for p in pauses:
        still = span("state", f"{duration(length - p.start_s)}, not resumed")
        waited = still if p.end_s is None else duration(p.end_s - p.start_s)
        at = units.since_start(p.start_s)
        rows.append([p.id, tag("code", p.where), _kind(p.kind, p.exception), p.who, at, waited])
    return _table("One by one", rows, ["id", "where", "kind", "who", "at", "waited"])


def _kind(kind: str, exception: str | None) -> Markup | str:
    return tag("span", span("crash", kind), f": {exception}") if exception else kind


def _table(caption: str, rows: Sequence[Sequence[Child]], head: list[str]) -> Markup:
    classes = [word.partition(" ")[0] for word in head]
    shown = [table_row(*cells, classes=classes) for cells in rows]
    return wide_table(f"pauses, {caption.lower()}", "pauses", head, shown, caption=caption)
