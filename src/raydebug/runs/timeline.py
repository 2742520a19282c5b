"""The spans of a run's processes and Ray's tasks, as they were recorded beside run.json; all times in the run's clock.

A run that was cut off leaves files that end in the middle. What cannot be read is left out and counted.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from raydebug.errors import UsageError
from raydebug.runs.folder import RECORD_BYTES_MAX, SPANS, TASKS, VERSION
from raydebug.runs.record import MOST_S, Run
from raydebug.settings.files import NotPlainText, read_bounded, read_json

STEP = "step"  # the trainer's timer of a whole step
ABOUT = ("pid", "child_of", "ip", "node_id", "rank", "actor", "title", "is_driver")  # what is kept of a process
_RANK = re.compile(r"(\S*WorkerDict)_(\d+):(\d+)")
PARTS = {"generate_sequences": "generate", "compute_score": "reward", "tool_calls": "tool"}  # of a sample, verl's names


class Span(NamedTuple):
    """A span of a process, or a call that Ray has listed; times are seconds since the epoch."""

    name: str
    start: float
    end: float
    thread: int
    task: int | None
    of: str
    note: str
    numbers: Mapping[str, int | float]  # of a request: first output (seconds since the epoch), prompt, tokens


@dataclass
class Process:
    """A process of the run; `about` is what it has said of itself (ABOUT)."""

    about: dict[str, Any]
    spans: list[Span] = field(default_factory=list)
    tasks: list[Span] = field(default_factory=list)
    clocks: list[tuple[int, int]] = field(default_factory=list)  # a moment of its clock, and what is added to it
    wall_ns: int | None = None  # what the clock of its node is ahead of its own
    is_timed: bool = True  # whether its times can be compared with those of other nodes

    @property
    def ahead_s(self) -> float | None:
        """What the clock of its node is ahead of the run's; None where they were not compared."""
        if self.wall_ns is None or not self.clocks or self.clocks[0][0] < 0:
            return None
        return (self.wall_ns - self.clocks[0][1]) / 1e9


@dataclass(frozen=True)
class Recorded:
    """A run with its processes, and what is missing, for people."""

    run: Run
    start: float  # seconds since the epoch
    end: float  # the last moment that is known
    processes: list[Process]
    notes: list[str]


def read_recorded(run: Run) -> Recorded:
    """Return what the folder of a run has.

    Raises:
        RaydebugError: its spans or tasks are of another version, or no such files.
    """
    folder, notes = run.folder, list[str]()
    start = run.started or 0.0
    if run.started is None:
        notes.append(
            "run.json does not say when the run began: its spans and Ray's tasks have no place and are left out"
        )
    processes = _read_spans(folder / SPANS, start, notes)
    clocks = ((process.about.get("node_id"), process.ahead_s) for process in processes)
    timed = {node: ahead_s for node, ahead_s in clocks if node and ahead_s is not None}  # of nodes, as ahead_s
    end = max([start + run.length_s, *(span.end for process in processes for span in process.spans)])
    _add_tasks(folder / TASKS, start, end, timed, processes, notes)
    processes = [process for process in processes if process.spans or process.tasks]
    _set_ranks(processes)
    one_node = len({node for process in processes if (node := process.about.get("node_id"))}) < 2
    for one in processes:
        one.is_timed = one_node or one.ahead_s is not None or one.about.get("node_id") in timed
    return Recorded(run, start, end, processes, notes)


def _bad(path: Path, why: object) -> UsageError:
    return UsageError(
        f"the record of run '{path.parent.name}' cannot be read", cause=f"{path}: {why}",
        fix="use the raydebug that has recorded it, or name another run: `raydebug report --list`",
        code="run.bad-record",
    )  # fmt: skip


def _require_version(document: Mapping[str, Any], path: Path) -> None:
    if document["version"] != VERSION:
        raise _bad(path, f"it is of version {document['version']!r}, and this raydebug reads {VERSION}")


def _lines(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    try:
        lines = read_bounded(path, bytes_max=RECORD_BYTES_MAX, what="a file of spans").split(b"\n")
    except NotPlainText as error:
        if path.exists():
            raise _bad(path, error) from error
        notes.append("no spans were recorded (run --no-spans or --debugger off, or an earlier raydebug)")
        return
    broken = 0
    for line in filter(bytes.strip, lines):
        try:
            found = json.loads(line)
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


def _read_spans(path: Path, start: float, notes: list[str]) -> list[Process]:
    processes: dict[str, Process] = {}
    rows: list[tuple[Process, Any]] = []
    broken, lost, ended = 0, 0, ""
    for line in _lines(path, notes):
        if "version" in line:
            _require_version(line, path)
            continue
        if "ended" in line:
            ended = f"the record of spans ends before the run: {SPANS} has its most, {line['ended']}"
            continue
        instance = next((str(line[kind]) for kind in ("process", "spans", "clock", "lost") if kind in line), "")
        process = processes.setdefault(instance, Process({}))
        try:
            if "process" in line:
                process.about = {name: line[name] for name in ABOUT if isinstance(line.get(name), int | str)}
                process.wall_ns = _ns(line["wall_ns"])
                process.clocks = process.clocks or [(-1, process.wall_ns)]
            elif "clock" in line:
                # Its own word counts only without.
                process.clocks = [clock for clock in process.clocks if clock[0] >= 0]
                process.clocks.append((_ns(line["at_ns"]), _ns(line["offset_ns"])))
            elif "lost" in line:
                lost += int(line["count"])
            else:
                rows += [(process, row) for row in list(line["rows"])]
        except (LookupError, TypeError, ValueError, OverflowError):
            broken += 1
    for process in processes.values():
        process.clocks.sort()
    for process, row in rows if start else ():
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
    notes += filter(None, [ended])
    if lost:
        notes.append(f"{lost:,} spans were lost: a process made more than it keeps, or its connection ended")
    return [process for process in processes.values() if process.spans or process.clocks]


def _ns(value: Any) -> int:
    if abs(found := int(value)) >= 2**63:
        raise ValueError("no time")
    return found


def _span(process: Process, row: Mapping[str, Any]) -> Span:
    at = max(0, bisect_right(process.clocks, (int(row["began_ns"]), 2**63)) - 1)
    ahead = process.clocks[at][1]  # for all of its times: a later comparison must not change how long it took
    start, end = ((int(row[name]) + ahead) / 1e9 for name in ("began_ns", "ended_ns"))
    numbers: dict[str, int | float] = {name: int(row[name]) for name in ("prompt", "tokens") if name in row}
    if "first_ns" in row:
        numbers["first"] = (int(row["first_ns"]) + ahead) / 1e9
    task = None if row.get("task") is None else int(row["task"])
    of, note = (str(row.get(name, ""))[:200] for name in ("of", "note"))
    return Span(str(row["name"])[:200], start, end, int(row.get("thread", 0)), task, of, note, numbers)


def _add_tasks(
    path: Path, start: float, last: float, ahead_s: Mapping[Any, float], processes: list[Process], notes: list[str]
) -> None:
    """Add Ray's tasks to the processes that ran them, and those processes that have nothing else."""
    if not path.exists():
        notes.append("Ray's table of tasks was not recorded")
        return
    try:
        document = read_json(path, bytes_max=RECORD_BYTES_MAX, what="a table of tasks")
        _require_version(document, path)
        columns, rows = list(document["columns"]), list(document["rows"])
        if document["cut"]:
            notes.append(f"Ray has cut its table of tasks: {len(rows):,} are drawn, others are missing")
    except (ValueError, LookupError, TypeError) as error:
        raise _bad(path, error) from error
    known = [dict(zip(columns, row, strict=False)) for row in rows if isinstance(row, list)]
    nodes = [(process.about.get("pid"), process.about.get("node_id")) for process in processes]
    nodes += [(task.get("worker_pid"), task.get("node_id")) for task in known]
    node_of = {pid: node for pid, node in nodes if node}
    by_place = {}
    for one in processes:  # one that has ended soon has not said its node
        pid = one.about.get("pid")
        by_place[pid, one.about.get("node_id") or node_of.get(pid)] = one
    for task in known if start else ():
        try:
            pid = int(task["worker_pid"])
            node = task.get("node_id") or node_of.get(pid)  # the row that creates an actor has none
            ahead = ahead_s.get(node, 0.0)  # Ray's times are those of the node's clock
            began = float(task["start_time_ms"]) / 1e3 - ahead
            ended = max(began, float(task["end_time_ms"]) / 1e3 - ahead if task["end_time_ms"] else last)
            if abs(began - start) > MOST_S or ended > start + MOST_S:
                raise ValueError("no moment of the run")
        except (LookupError, TypeError, ValueError, OverflowError):
            continue  # it has not begun
        process = by_place.get((pid, node))
        if process is None:
            process = by_place[pid, node] = Process({"pid": pid, "node_id": node})
            processes.append(process)
        kind = str(task.get("func_or_class_name") or "")
        process.about.setdefault("actor", kind.partition(".")[0] if "." in kind else None)
        name, number = str(task.get("name") or "?")[:200], str(task.get("task_id"))
        process.tasks.append(Span(name, began, ended, 0, None, number, str(task.get("state")), {}))


def _set_ranks(processes: Sequence[Process]) -> None:
    """Give verl's ranks that have not said theirs the one in the name of their actor.

    Source: verl 0.5 single_controller/ray/base.py numbers them over all its placement groups (nodes), and names each
    `{prefix}WorkerDict_{group}:{number in the group}`.
    """
    places: dict[str, dict[int, dict[int, Process]]] = {}
    for process in processes:
        found = next((found for task in process.tasks if (found := _RANK.search(task.name))), None)
        if found:
            places.setdefault(found[1], {}).setdefault(int(found[2]), {})[int(found[3])] = process
    for groups in places.values():
        before = 0
        for number, group in enumerate(sorted(groups)):
            if group != number:  # of a table that was cut
                break
            for place, process in groups[group].items():
                if not isinstance(process.about.get("rank"), int):
                    process.about["rank"] = before + place
            before += max(groups[group]) + 1
