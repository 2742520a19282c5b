"""A run as lanes: a group for the run, one for curves, one for each process; in each, lanes of events, and counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from raydebug.protocol.names import name_process
from raydebug.protocol.questions import REQUEST
from raydebug.runs.timeline import PARTS, STEP, Process, Recorded, Span

METRICS = re.compile(r"reward|score|loss|kl|grad_norm|entropy|response_length|throughput|seqlen|memory")
MOST_METRICS = 40
CURVES = "metrics and memory"
WEIGHTS = re.compile(r"update_weights|weight_sync|sync_.*weights|broadcast_to_vllm|rollout_mode")


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
    found = [_run(recorded), _curves(recorded), *map(_group, sorted(recorded.processes, key=_place))]
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
        free = (lane for lane in lanes if not lane[1] or (nested and end <= lane[1][-1]))
        if (found := next(free, None)) is None:
            found = Lane(title if not lanes else f"{title} ({len(lanes) + 1})"), []
            lanes.append(found)
        found[0].events.append(event)
        found[1].append(end)
    return [lane for lane, _ in lanes]


# The run


def _run(recorded: Recorded) -> Group:
    run, start = recorded.run, recorded.start

    def event(name: str, begin_s: float, end_s: float | None, **facts: str | None) -> Event:
        return Event(name, start + begin_s, recorded.end if end_s is None else start + end_s, facts)

    phases = [event(phase.name, phase.start_s, phase.end_s) for phase in run.phases]
    steps = [
        event(f"step {step['step']}", max(0.0, step["end_s"] - step["seconds"]), step["end_s"]) for step in run.steps
    ]
    pauses = [
        event(f"pause {p.id}: {p.where}", p.start_s, p.end_s, who=p.who, exception=p.exception) for p in run.pauses
    ]
    syncs = [Event(span.name, span.start, span.end, {"pid": process.about.get("pid")}) for process in recorded.processes
             for span in (*process.spans, *process.tasks) if WEIGHTS.search(span.name)]  # fmt: skip
    if any(span.name == STEP for process in recorded.processes for span in process.spans):
        steps = []  # the trainer's own lane has them, and has them exactly
    lanes = arrange("start and training", phases) + arrange("steps, as logged", steps) + arrange("pauses", pauses)
    lanes += arrange("weight syncs", syncs, nested=True) + arrange("findings", _marks(recorded))
    return Group("run", lanes)


def _marks(recorded: Recorded) -> list[Event]:
    """Return the hangs and other findings that have a moment, crashes, and ends of processes."""
    marks = []
    for finding in recorded.run.findings:
        if at := _number(finding.get("at_s")):
            word = "hang" if finding.get("code") == "run.hangs" else finding.get("severity", "finding")
            facts = {name: finding.get(name) for name in ("code", "why", "fix")}
            marks.append(Event(f"{word}: {finding.get('what', '')}", recorded.start + at, None, facts))
    for rows, word in ((recorded.run.snapshots, "crash"), (recorded.run.deaths, "end of a process")):
        for about in rows:
            if at := _number(about.get("at")):
                what = about.get("text") or f"{about.get('exception')} in {about.get('function')}"
                marks.append(Event(f"{word}: {what}", at, None, {"pid": about.get("pid"), "rank": about.get("rank")}))
    return marks


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0
    return number if abs(number) < 2**62 / 1e9 else 0.0


def _curves(recorded: Recorded) -> Group:
    run, start = recorded.run, recorded.start
    names = dict.fromkeys(name for step in run.steps for name in step["metrics"] if METRICS.search(name))
    counters = [
        Counter(
            name, "", [(start + step["end_s"], step["metrics"][name]) for step in run.steps if name in step["metrics"]]
        )
        for name in [*names][:MOST_METRICS]
    ]
    many = len({row.node for row in run.memory}) > 1
    shown = [(f"{row.process} on {row.node}" if many else row.process, "MiB", 1, row.samples) for row in run.memory]
    for gpu in run.gpus:
        shown += [(f"{gpu.name} on {gpu.node}: {word}", unit, column, gpu.samples)
                  for word, unit, column in (("memory", "MiB", 1), ("busy", "%", 2))]  # fmt: skip
    for title, unit, column, samples in shown:
        known = [(start + row[0], row[column]) for row in samples if row[column] == row[column]]  # no NaN
        counters.append(Counter(title, unit, known))
    return Group(CURVES, [], counters)


# Processes


def _place(process: Process) -> tuple[Any, ...]:
    """Return the place of a process: trainer, ranks, agents and rewards, engines, the rest."""
    names, rank = {span.name for span in process.spans}, process.about.get("rank")
    rank = rank if isinstance(rank, int) else -1
    kinds = (STEP in names, rank >= 0, names & PARTS.keys(), any("vllm" in name or name == REQUEST for name in names))
    return (
        *(not kind for kind in kinds),
        not names,
        str(process.about.get("actor")),
        rank,
        str(process.about.get("pid")),
    )


def title_of(process: Process) -> str:
    """Return what a process is called, with its pid."""
    return f"{name_process(process.about)} (pid {process.about.get('pid', '?')})"


def _group(process: Process) -> Group:
    group = Group(title_of(process))
    kinds: dict[str, list[Event]] = {}
    for one in process.spans:
        kinds.setdefault(_kind(one), []).append(_event(one))
    for kind in sorted(kinds, key=_KINDS.index):
        group.lanes += arrange(kind, kinds[kind], nested=kind == PHASES)
    tasks = [Event(task.name, task.start, task.end, {"task": task.of, "state": task.note}) for task in process.tasks]
    group.lanes += arrange("Ray tasks", tasks, nested=True)
    if requests := [span for span in process.spans if span.name == REQUEST]:
        changes = sorted([(request.start, 1) for request in requests] + [(request.end, -1) for request in requests])
        counts = accumulate(change for _, change in changes)
        points = [(at, float(count)) for (at, _), count in zip(changes, counts, strict=True)]
        group.counters.append(Counter("vLLM requests in flight", "", points))
    return group


PHASES = "phases"
_KINDS = (PHASES, "states", *(f"samples: {part}" for part in PARTS.values()), "vLLM requests")


def _kind(span: Span) -> str:
    if span.task is None:
        return PHASES
    return (
        "vLLM requests" if span.name == REQUEST else f"samples: {PARTS[span.name]}" if span.name in PARTS else "states"
    )


def _event(span: Span) -> Event:
    name, facts = span.name, {"of": span.of, "tools": span.note, **span.numbers}
    if name == REQUEST:
        name = f"{facts.get('tokens', 0)} tokens"
        if "first" in facts:
            facts["to the first output, ms"] = round((float(facts.pop("first")) - span.start) * 1e3, 1)
    elif span.note or name == STEP:
        name = f"{name}: {span.note}" if span.note else f"{name} {span.of}".strip()
    return Event(name, span.start, span.end, facts)
