"""A run as lanes: a group for the run, one for memory, one for each process; in each, lanes of events, and counters."""

from __future__ import annotations

import re
from collections import Counter as Count
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raydebug.protocol.spans import REQUEST
from raydebug.trace.record import PARTS, STEP, Process, Recorded, Span, Task

METRICS = re.compile(r"reward|score|loss|kl|grad_norm|entropy|response_length|throughput|seqlen|memory")
MOST_METRICS = 40
WEIGHTS = re.compile(r"update_weights|weight_sync|sync_.*weights|broadcast_to_vllm|rollout_mode")
_RANK = re.compile(r"WorkerDict_\d+:(\d+)")  # verl's name of an actor


class Event(NamedTuple):
    """Something that took from `start` to `end`, or a mark at `start`; seconds since the epoch."""

    name: str
    start: float
    end: float | None
    facts: Mapping[str, Any]


@dataclass
class Lane:
    """Events that are drawn in one line: each ends before the next one begins, or is inside of the one before."""

    title: str
    events: list[Event] = field(default_factory=list)


class Counter(NamedTuple):
    """A value that changes."""

    title: str
    unit: str
    points: list[tuple[float, float]]


@dataclass
class Group:
    """A top lane."""

    title: str
    lanes: list[Lane] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)


def groups_of(recorded: Recorded) -> list[Group]:
    """Return the groups of a run in their order, each with its number: viewers sort them by name."""
    found = [_run(recorded), _memory(recorded), *_processes(recorded)]
    found = [group for group in found if group.lanes or group.counters]
    width = len(str(len(found)))
    for number, group in enumerate(found, 1):
        group.title = f"{number:0{max(2, width)}} {group.title}"
    return found


def arrange(title: str, events: Iterable[Event], *, nested: bool = False) -> list[Lane]:
    """Return lanes for events that may overlap: each goes to the first lane that is free.

    Args:
        title: of the first lane; the others have a number after it.
        events: in any order.
        nested: an event may also lie inside of another one of its lane.
    """
    lanes: list[tuple[Lane, list[float]]] = []  # and the ends of what goes on there, the innermost last
    for event in sorted(events, key=lambda one: (one.start, -(one.end or one.start))):
        end = event.start if event.end is None else event.end
        for _, ends in lanes:
            while ends and ends[-1] <= event.start:
                ends.pop()
        free = (one for one in lanes if not one[1] or (nested and end <= one[1][-1]))
        if (found := next(free, None)) is None:
            found = Lane(title if not lanes else f"{title} ({len(lanes) + 1})"), []
            lanes.append(found)
        found[0].events.append(event)
        found[1].append(end)
    return [lane for lane, _ in lanes]


# The run


def _run(recorded: Recorded) -> Group:
    run, start = recorded.run, recorded.start
    last = recorded.end
    group = Group("run")
    phases = [Event(one.name, start + one.start_s, last if one.end_s is None else start + one.end_s, {})
              for one in run.phases]  # fmt: skip
    pauses = [
        Event(f"pause {one.id}: {one.where}", start + one.start_s, last if one.end_s is None else start + one.end_s,
              {"who": one.who, "kind": one.kind, "exception": one.exception})
        for one in run.pauses
    ]  # fmt: skip
    steps = [Event(f"step {one.step}", start + max(0.0, one.end_s - one.seconds), start + one.end_s, {})
             for one in run.steps]  # fmt: skip
    group.lanes += arrange("start and training", phases)
    group.lanes += arrange("steps, as logged", steps) + arrange("pauses", pauses)
    group.lanes += arrange("weight syncs", _syncs(recorded))
    group.lanes += [Lane("findings", marks)] if (marks := _marks(recorded)) else []
    names = list(dict.fromkeys(name for one in run.steps for name in one.metrics if METRICS.search(name)))
    for name in names[:MOST_METRICS]:
        points = [(start + one.end_s, one.metrics[name]) for one in run.steps if name in one.metrics]
        group.counters.append(Counter(name, "", points))
    return group


def _syncs(recorded: Recorded) -> list[Event]:
    found = [(one.name, one.start, one.end, process.about.get("pid"))
             for process in recorded.processes.values() for one in process.spans]  # fmt: skip
    last = recorded.end
    found += [(one.name, one.start, last if one.end is None else one.end, one.pid) for one in recorded.tasks]
    return [Event(name, start, end, {"pid": pid}) for name, start, end, pid in found if WEIGHTS.search(name)]


def _marks(recorded: Recorded) -> list[Event]:
    """Return the hangs and other findings that have a moment, crashes, and ends of processes."""
    marks = []
    for one in recorded.run.findings:
        if (at := _number(one.get("at_s"))) is not None:
            word = "hang" if one.get("code") == "run.hangs" else one.get("severity", "finding")
            facts = {"code": one.get("code"), "why": one.get("why"), "fix": one.get("fix")}
            marks.append(Event(f"{word}: {one.get('what', '')}", recorded.start + at, None, facts))
    for kind, word in (("snapshots", "crash"), ("deaths", "end of a process")):
        found = recorded.document.get(kind)
        for about in found if isinstance(found, list) else ():
            if isinstance(about, dict) and (at := _number(about.get("at"))) is not None:
                what = about.get("text") or f"{about.get('exception')} in {about.get('function')}"
                marks.append(Event(f"{word}: {what}", at, None, {"pid": about.get("pid"), "rank": about.get("rank")}))
    return sorted(marks, key=lambda one: one.start)


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if abs(number) < 2**62 / 1e9 else None


def _memory(recorded: Recorded) -> Group:
    group = Group("memory")
    nodes = {one.node for one in recorded.run.memory}
    for one in recorded.run.memory:
        where = f" on {one.node}" if len(nodes) > 1 else ""
        group.counters.append(_samples(f"{one.name}{where}", "MiB", one.samples, 1, recorded.start))
    for gpu in recorded.run.gpus:
        for column, word, unit in ((1, "memory", "MiB"), (2, "busy", "%")):
            group.counters.append(
                _samples(f"{gpu.name} on {gpu.node}: {word}", unit, gpu.samples, column, recorded.start)
            )
    return group


def _samples(title: str, unit: str, samples: Sequence[tuple[float, ...]], column: int, start: float) -> Counter:
    return Counter(title, unit, [(start + one[0], one[column]) for one in samples if one[column] == one[column]])


# Processes


def _processes(recorded: Recorded) -> list[Group]:
    tasks: dict[tuple[int, str], list[Task]] = {}
    nodes = {(int(one.about.get("pid", 0)), str(one.about["node_id"])) for one in recorded.processes.values()
             if "node_id" in one.about}  # fmt: skip
    for task in recorded.tasks:
        node = task.node or next((node for pid, node in nodes if pid == task.pid), "")  # unknown of a creation
        tasks.setdefault((task.pid, node), []).append(task)
    known = []
    for process in recorded.processes.values():
        if process.spans:
            key = (int(process.about.get("pid", 0)), str(process.about.get("node_id", "")))
            known.append((process, tasks.pop(key, [])))
    for (pid, node), same in tasks.items():
        known.append((Process({"pid": pid, "node_id": node}), same))
    named = [(*_place(process, same), _group(process, same, recorded.end)) for process, same in known]
    for _, title, group in sorted(named, key=lambda one: one[0]):
        group.title = title
    return [group for _, _, group in sorted(named, key=lambda one: one[0])]


def _place(process: Process, tasks: Sequence[Task]) -> tuple[tuple[Any, ...], str]:
    """Return the place of a process, and its title: trainer, ranks, agents and rewards, engines, the rest."""
    classes = Count(task.kind.partition(".")[0] for task in tasks if "." in task.kind)
    about = process.about
    actor = str(about.get("actor") or (classes.most_common(1)[0][0] if classes else ""))
    names = {one.name for one in process.spans}
    rank = about.get("rank")
    if rank is None:
        rank = next((int(found[1]) for task in tasks if (found := _RANK.search(task.name))), None)
    order = (
        STEP not in names,
        not (isinstance(rank, int) or "Worker" in actor),
        not names & PARTS.keys(),
        not (REQUEST in names or any(name.startswith("vllm") for name in names)),
        not process.spans,
    )
    who = actor or str(about.get("title") or ("driver" if about.get("is_driver") else "process"))[:60]
    title = f"{who}{'' if rank is None else f' rank {rank}'} (pid {about.get('pid', '?')})"
    return (*order, who, rank if isinstance(rank, int) else -1, str(about.get("pid"))), title


def _group(process: Process, tasks: Sequence[Task], last: float) -> Group:
    group = Group("")
    kinds: dict[str, list[Span]] = {}
    for span in process.spans:
        kinds.setdefault(_kind(span), []).append(span)
    for kind, spans in sorted(kinds.items(), key=lambda one: _KINDS.index(one[0])):
        if kind == "phases":
            threads: dict[int, list[Event]] = {}
            for one in spans:
                threads.setdefault(one.thread, []).append(_event(one))
            for number, events in enumerate(threads.values(), 1):
                group.lanes += arrange("phases" if number == 1 else f"phases of thread {number}", events, nested=True)
        else:
            group.lanes += arrange(kind, map(_event, spans))
    group.lanes += arrange("Ray tasks", [
        Event(one.name, one.start, last if one.end is None else one.end, {"task": one.id, "state": one.state})
        for one in tasks
    ], nested=True)  # fmt: skip
    requests = kinds.get("vLLM requests", [])
    if requests:
        changes = sorted([(one.start, 1) for one in requests] + [(one.end, -1) for one in requests])
        points, now = [], 0
        for at, change in changes:
            now += change
            points.append((at, float(now)))
        group.counters.append(Counter("vLLM requests in flight", "", points))
    return group


_KINDS = ("phases", "states", *(f"samples: {part}" for part in PARTS.values()), "vLLM requests")


def _kind(span: Span) -> str:
    if span.name == REQUEST:
        return "vLLM requests"
    if span.task is not None and span.name in PARTS:
        return f"samples: {PARTS[span.name]}"
    return "phases" if span.task is None else "states"


def _event(span: Span) -> Event:
    if span.name == REQUEST:
        facts: dict[str, Any] = {"request": span.of, **span.request}
        if "first" in facts:
            facts["to the first output, ms"] = round((facts.pop("first") - span.start) * 1e3, 1)
        return Event(f"{span.request.get('tokens', 0)} tokens", span.start, span.end, facts)
    if span.name == STEP and span.of:
        return Event(f"step {span.of}", span.start, span.end, {})
    facts = {name: value for name, value in (("sample", span.of), ("tools", span.note)) if value}
    return Event(f"{span.name}: {span.note}" if span.note else span.name, span.start, span.end, facts)
