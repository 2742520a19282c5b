"""What was recorded of a run: its document, the spans of its processes, Ray's tasks; all times in the run's clock.

A run that was cut off leaves files that end in the middle. What cannot be read is left out and counted.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from raydebug.errors import UsageError
from raydebug.jobs.run_folder import RECORD_BYTES_MAX, SPANS, TASKS
from raydebug.jobs.span_log import ABOUT, VERSION
from raydebug.report.document import Run, read_run
from raydebug.settings.files import NotPlainText, read_bounded, read_json

STEP = "step"  # the trainer's timer of a whole step
PARTS = {"generate_sequences": "generate", "compute_score": "reward", "tool_calls": "tool"}  # of a sample, verl's names
MOST_S = 10 * 365 * 86_400.0  # from the run's start; a later moment is a broken measurement


class Span(NamedTuple):
    """A span of a process; times are seconds since the epoch."""

    name: str
    start: float
    end: float
    thread: int
    task: int | None
    of: str
    note: str
    request: Mapping[str, int | float]  # first output in seconds since the epoch, tokens; empty for other spans


@dataclass
class Process:
    """A process of the run.

    Args:
        about: what it has said of itself (span_log.ABOUT).
    """

    about: dict[str, Any]
    spans: list[Span] = field(default_factory=list)
    lost: int = 0
    clocks: list[tuple[int, int]] = field(default_factory=list)  # a moment of its clock, and what is added to it


class Task(NamedTuple):
    """A row of Ray's task table; times are seconds since the epoch, `end` is None for one that had not ended."""

    name: str
    kind: str
    pid: int
    node: str
    start: float
    end: float | None
    id: str
    state: str


@dataclass(frozen=True)
class Recorded:
    """All that is known of a run.

    Args:
        document: its run.json.
        run: the same as values.
        start: of the run, in seconds since the epoch.
        processes: by instance.
        notes: what is missing, for people.
    """

    document: Mapping[str, Any]
    run: Run
    start: float
    processes: dict[str, Process]
    tasks: list[Task]
    notes: list[str]

    @property
    def end(self) -> float:
        """The last moment that is known of the run."""
        ends = [one.end for process in self.processes.values() for one in process.spans]
        return max([self.start + self.run.length_s, *ends])


def read_recorded(document: Mapping[str, Any]) -> Recorded:
    """Return what the folder of a run has.

    Raises:
        RaydebugError: its spans or tasks are of another version, or no such files.
    """
    folder, notes = Path(str(document["folder"])), list[str]()
    run = read_run(document)
    start = run.started or 0.0
    processes = _read_spans(folder / SPANS, start, notes)
    return Recorded(document, run, start, processes, _read_tasks(folder / TASKS, start, notes), notes)


def _bad(path: Path, why: object) -> UsageError:
    return UsageError(
        f"the record of run '{path.parent.name}' cannot be read", cause=f"{path}: {why}",
        fix="use the raydebug that has recorded it, or name another run: `raydebug report --list`",
        code="run.bad-record",
    )  # fmt: skip


def _lines(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    try:
        lines = read_bounded(path, bytes_max=RECORD_BYTES_MAX, what="a file of spans").split(b"\n")
    except NotPlainText as error:
        if path.exists():
            raise _bad(path, error) from error
        notes.append("no spans were recorded (run --no-spans or --debugger off, or an earlier raydebug)")
        return
    broken = 0
    for line in lines:
        try:
            found = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            yield found
        else:
            broken += 1
    if broken:
        notes.append(
            f"{broken} {'line' if broken == 1 else 'lines'} of {SPANS} cannot be read: the recorder was cut off"
        )


def _read_spans(path: Path, start: float, notes: list[str]) -> dict[str, Process]:
    processes: dict[str, Process] = {}
    rows: list[tuple[Process, Any]] = []
    broken = 0
    for line in _lines(path, notes):
        if "version" in line and line["version"] != VERSION:
            raise _bad(path, f"it is of version {line['version']!r}, and this raydebug reads {VERSION}")
        instance = next((str(line[kind]) for kind in ("process", "spans", "clock", "lost") if kind in line), None)
        if instance is None:
            continue
        process = processes.setdefault(instance, Process({}))
        try:
            if "process" in line:
                process.about = {name: line[name] for name in ABOUT if isinstance(line.get(name), int | str)}
                if not process.clocks and int(line["wall_ns"]):
                    process.clocks.append((-1, int(line["wall_ns"])))
            elif "clock" in line:
                process.clocks = [one for one in process.clocks if one[0] >= 0]  # its own word counts only without
                process.clocks.append((int(line["at_ns"]), int(line["offset_ns"])))
            elif "lost" in line:
                process.lost += int(line["count"])
            else:
                rows += [(process, row) for row in list(line["rows"])]
        except (LookupError, TypeError, ValueError, OverflowError):
            broken += 1
    for process in processes.values():
        process.clocks.sort()
    for process, row in rows:
        try:
            span = _span(process, row)
            if not start - MOST_S < span.start <= span.end < start + MOST_S:
                raise ValueError("no moment of the run")
            process.spans.append(span)
        except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
            broken += 1
    for process in processes.values():
        process.spans.sort(key=lambda one: (one.start, -one.end))
    if broken:
        notes.append(f"{broken} records of {SPANS} are malformed and left out")
    if lost := sum(one.lost for one in processes.values()):
        notes.append(f"{lost:,} spans were lost: a process made more than its ring holds between two questions")
    return processes


def _span(process: Process, row: Mapping[str, Any]) -> Span:
    began = int(row["began_ns"])
    at = max(0, bisect_right(process.clocks, (began, 2**63)) - 1)
    ahead = process.clocks[at][1]  # for both ends: a later comparison must not change how long it took
    start, end = ((int(row[name]) + ahead) / 1e9 for name in ("began_ns", "ended_ns"))
    request: dict[str, int | float] = {name: int(row[name]) for name in ("prompt", "tokens") if name in row}
    if "first_ns" in row:
        request["first"] = (int(row["first_ns"]) + ahead) / 1e9
    task = row.get("task")
    of, note = (str(row.get(name, ""))[:200] for name in ("of", "note"))
    thread, in_task = int(row.get("thread", 0)), None if task is None else int(task)
    return Span(str(row["name"])[:200], start, end, thread, in_task, of, note, request)


def _read_tasks(path: Path, start: float, notes: list[str]) -> list[Task]:
    if not path.exists():
        notes.append("Ray's table of tasks was not recorded")
        return []
    try:
        document = read_json(path, bytes_max=RECORD_BYTES_MAX, what="a table of tasks")
        if document["version"] != VERSION:
            raise _bad(path, f"it is of version {document['version']!r}, and this raydebug reads {VERSION}")
        columns, rows, is_cut = list(document["columns"]), list(document["rows"]), document["cut"]
    except (ValueError, LookupError, TypeError) as error:
        raise _bad(path, error) from error
    tasks = [
        one for row in rows if isinstance(row, list) if (one := _task(dict(zip(columns, row, strict=False)), start))
    ]
    if is_cut:
        notes.append(f"Ray has cut its table of tasks: {len(rows):,} are drawn, others are missing")
    return tasks


def _task(row: Mapping[str, Any], start: float) -> Task | None:
    try:
        began, ended = float(row["start_time_ms"]) / 1e3, row.get("end_time_ms")
        end = max(began, float(ended) / 1e3) if ended else None
        if abs(began - start) > MOST_S or (end or 0.0) > start + MOST_S:
            return None
        pid = int(row["worker_pid"])
    except (LookupError, TypeError, ValueError, OverflowError):
        return None  # it has not begun
    kind, name = str(row.get("func_or_class_name") or ""), str(row.get("name") or "?")[:200]
    return Task(
        name, kind, pid, str(row.get("node_id") or ""), began, end, str(row.get("task_id")), str(row.get("state"))
    )
