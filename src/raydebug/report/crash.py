"""The page of one crash: its snapshot as one HTML file without scripts."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from raydebug.console.view import number, shape, who
from raydebug.errors import RaydebugError
from raydebug.protocol.snapshot import SUFFIX, SavedFrame, SnapshotDocument
from raydebug.render import moment
from raydebug.report.page import Child, Markup, facts, page, section, table_row, tag, wide_table
from raydebug.report.write import write_page
from raydebug.runs.folder import read_run
from raydebug.snapshot.console import exception_lines, raised_frames
from raydebug.snapshot.gpu_memory import gpu_memory_lines
from raydebug.snapshot.values import Values, tensor_facts

VALUE_CHARS = 1_000
RAY_WORKERS = "/ray/_private/workers/"  # ray 2.60.0: default_worker.py, setup_worker.py
_COLUMNS = ("min", "max", "mean", "nan", "inf")


def write_crash_page(document: SnapshotDocument, snapshot: Path, output: Path | None = None) -> Path:
    """Write the page of a snapshot, by default beside its file, and return its path, which is absolute.

    Raises:
        RaydebugError: the page cannot be written.
    """
    path = output or snapshot.with_name(snapshot.name.removesuffix(SUFFIX) + ".html")
    page = crash_page(document, _command(document, snapshot))
    return write_page(path, page, named=output is not None, fix="name another file: `raydebug open FILE --html OUT`")


def _command(document: SnapshotDocument, snapshot: Path) -> str:
    """Return the command of the job; without its record that of the process, unless that is Ray's worker."""
    with contextlib.suppress(RaydebugError):
        run = read_run(snapshot.absolute().parent.parent)
        if run.id == document["summary"].get("job"):
            return shlex.join(run.command)
    argv = document.get("argv", [])
    return "" if any(RAY_WORKERS in word for word in argv) else shlex.join(argv)


def crash_page(document: SnapshotDocument, command: str = "") -> str:
    """Return the page: the chain of exceptions, frames with source and locals, tensors, the process."""
    summary, values = document["summary"], Values(document["values"])
    lines = exception_lines(document)
    title = f"{summary.get('exception') or summary.get('kind', 'snapshot')} in {summary.get('function', '?')}"
    chain = tag("section", [tag("p", line, class_="title") for line in lines], class_="error") if lines else None
    known = {**document.get("process", {}), **summary, "thread": document.get("thread")}
    about = [
        tag("span", "raydebug snapshot ", tag("code", summary.get("id", ""))),
        tag("span", moment(summary.get("at"))),
    ]
    head = tag("header", tag("p", about, class_="kicker"), tag("h1", title), tag("p", ", ".join(who(known))), chain)
    shown, gpus = raised_frames(document), document.get("gpu_memory")
    others = sorted({*range(len(document["frames"]))} - {*shown})
    parts = [
        _frames(document, values, shown, "Frames", is_open=True),
        _frames(document, values, others, "Frames of the other exceptions") if others else None,
        _tensors(document, values),
        section("GPU memory", tag("pre", "\n".join(gpu_memory_lines(gpus)))) if gpus is not None else None,
        _process(document, command),
    ]
    return page(title, head, tag("main", parts))


def _frames(
    document: SnapshotDocument, values: Values, indices: Sequence[int], title: str, *, is_open: bool = False
) -> Markup:
    frames = [document["frames"][index] for index in indices]
    shown = [_frame(frame, values, is_open=is_open and at == 0) for at, frame in enumerate(frames)]
    return section(title, shown, note="Innermost first.")


def _frame(frame: SavedFrame, values: Values, *, is_open: bool) -> Markup:
    place = f"{frame.get('file', '?')}:{frame.get('line', 0)}"
    rows = [
        tag("tr", tag("td", tag("code", name)), tag("td", tag("code", values.text(at, VALUE_CHARS)), class_="value"))
        for name, at in frame.get("locals", {}).items()
    ]
    table = wide_table(f"locals of {frame.get('function', '?')}", "locals", ["name", "value"], rows)
    summary = tag("summary", tag("b", frame.get("function", "?")), " ", tag("code", place))
    return tag("details", summary, _source(frame), table if rows else None, open=is_open)


def _source(frame: SavedFrame) -> Markup | None:
    if not frame.get("source"):
        return None
    first, lines = frame.get("source_from", 1), []
    for at, line in enumerate(frame["source"], start=first):
        here = at == frame.get("line")
        text = f"{at:>5} {'->' if here else '  '} {line}\n"
        lines.append(tag("b", text) if here else text)
    return tag("pre", tag("code", lines))


def _tensors(document: SnapshotDocument, values: Values) -> Markup | None:
    """Return a table of all tensors that locals lead to, each under its first name; None if there are none."""
    rows: list[Child] = []
    seen = set[int]()
    for frame in document["frames"]:
        for name, index in values.tensors(frame.get("locals", {})).items():
            if index in seen:
                continue
            seen.add(index)
            saved = tensor_facts(values[index])
            kind = f"{shape(saved['shape'])} {saved['dtype']}"
            cells = [tag("code", name), frame.get("function", "?"), kind, saved["device"]]
            cells += [number(saved[column]) if column in saved else "" for column in _COLUMNS]
            rows.append(table_row(*cells, saved.get("storage", ""), saved.get("note", "")))
    if not rows:
        return None
    head = ["name", "in", "shape", "device", "min", "max", "mean", "NaN", "Inf", "memory", "note"]
    note = "Tensors with equal entries under memory share their memory."
    return section("Tensors", wide_table("tensors", "tensors", head, rows), note=note)


def _process(document: SnapshotDocument, command: str) -> Markup:
    known = [("job", document["summary"].get("job")), ("command", command), ("step", document.get("step"))]
    known += sorted(document.get("versions", {}).items())
    shown = facts((name, str(fact)) for name, fact in known if fact not in (None, ""))
    return section("Process", shown or tag("dl", class_="facts"))
