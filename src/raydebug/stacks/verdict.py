"""The verdict on the stacks of a job: what a hanging job waits for, in one sentence, with the next command.

What is known of a stack is data: PATTERNS, rows of (file, function, kind, words). The rules below combine what the
processes wait for: a rank that is not in the collective of the others explains them, and not the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypedDict

from raydebug.protocol import messages
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.records import StackFrame, ThreadStack
from raydebug.render import runs
from raydebug.stacks.groups import active_thread, is_idle, place, users_frame

CERTAIN, LIKELY = "certain", "likely"
SEARCHED_FRAMES = 10  # innermost ones of a stack
COMPUTES_S = 0.5  # CPU time between two samples
COLLECTIVE = "collective"  # of a wait, not of a verdict

COLLECTIVES = r"^(all_|reduce|broadcast|barrier|gather|scatter|monitored|send|recv|batch_isend)"
# Most specific first. Sources: torch 2.11 and 2.13, ray 2.60.0, CPython 3.11 to 3.13, httpcore 1, aiohttp 3.
PATTERNS = (
    (r"/torch/distributed/distributed_c10d\.py$", COLLECTIVES, COLLECTIVE, "{function}"),
    (r"/torch/utils/data/dataloader\.py$", r"_get_data|_try_get_data", "data-loader", "a worker of its DataLoader"),
    (r"/ray/_private/worker\.py$", r"^(get|wait)$", "ray-get", "ray.{function}"),
    (r"/ray/util/queue\.py$|/multiprocessing/queues\.py$|/lib/python3\.\d+/queue\.py$|/asyncio/queues\.py$",
     r"(^|\.)(get|put)$", "queue", "a queue ({function})"),
    (r"/subprocess\.py$", r"(^|\.)(wait|_wait|communicate|_communicate)$", "subprocess", "a process that it started"),
    (r"/httpcore/|/aiohttp/|/http/client\.py$|/urllib3/|/requests/", r"", "network", "an HTTP response"),
    (r"/ssl\.py$|/lib/python3\.\d+/socket\.py$|/asyncio/streams\.py$", r"", "network", "a network connection"),
)  # fmt: skip
SLEEP = re.compile(r"\b(time\.)?sleep\(")


# States of a task that waits behind others at its actor: ray 2.60.0 src/ray/protobuf/common.proto TaskStatus.
QUEUED = ("SUBMITTED_TO_WORKER", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY")
UNPLACED = "PENDING_NODE_ASSIGNMENT"
TASK_ID_CHARS = 48  # an object's id begins with that of its task (ray 2.60.0 src/ray/common/id.h)


class Task(TypedDict):
    """A task of Ray that waits or runs."""

    task_id: str
    name: str
    state: str
    actor_id: str | None
    pid: int | None
    needs: str  # its resources, in words


class Verdict(TypedDict):
    """What the job waits for."""

    kind: str
    certainty: str
    text: str
    next: str | None
    pids: list[int]
    ranks: list[int]


@dataclass(frozen=True, eq=False)
class Wait:
    """What the active thread of a process waits for.

    Args:
        kind: a verdict's kind, or COLLECTIVE.
        what: in words.
        process: whose.
        at: the user's frame, or the innermost one.
        thread: the waiting thread.
    """

    kind: str
    what: str
    process: ListedStacks
    at: StackFrame
    thread: ThreadStack

    @property
    def who(self) -> str:
        """The process, in words."""
        return name_process(self.process)


def judge(
    samples: Sequence[Sequence[ListedStacks]],
    tasks: Sequence[Task] = (),
    source_line: Callable[[str, int], str] = lambda *_: "",
) -> Verdict:
    """Return the verdict on the stacks of a job.

    Args:
        samples: the stacks at one or more moments, seconds apart, oldest first.
        tasks: Ray's tasks that wait or run.
        source_line: returns a line of a file, or nothing where the file is not to be had.
    """
    processes = samples[-1]
    answered = [one for one in processes if one["threads"]]
    working = [one for one in answered if not is_idle(one)]
    if not processes:
        return _verdict("none", CERTAIN, "no process of a job runs", None)
    if paused := [one for one in processes if one.get("pauses")]:
        ids = [pause for one in paused for pause in one.get("pauses", [])]
        text = f"{_count(paused)} paused by raydebug; the others may wait for it"
        return _verdict("paused", CERTAIN, text, f"raydebug attach {ids[0]}", paused)
    waits = [_wait_of(one, source_line) for one in working]
    silent = [one for one in processes if one["state"] == messages.SILENT]
    moved = _moved(samples)
    rules = (
        _collectives(waits, processes, moved),
        _deadlock(working) or _deadlock_of_actors(waits, tasks),
        _gil(silent),
        _is_moving(moved),
        _ray_waits(waits, tasks),
        _own_waits(waits),
    )
    for found in rules:
        if found is not None:
            return found
    if not working:
        return _verdict("none", CERTAIN, f"all {len(answered)} processes are idle", None)
    first = waits[0]
    return _verdict(
        "unknown", LIKELY, f"{first.who} is at {place(first.at)}; nothing known is waited for", _attach(first.process),
        [one.process for one in waits],
    )  # fmt: skip


# Rules: each returns a verdict, or None


def _collectives(
    waits: Sequence[Wait], processes: Sequence[ListedStacks], moved: Sequence[ListedStacks]
) -> Verdict | None:
    inside = [one for one in waits if one.kind == COLLECTIVE]
    if not inside or any(one.process in moved for one in inside):
        return None
    role = inside[0].process["role"]
    names = sorted({one.what for one in inside})
    if len(names) > 1:
        by_name = [(name, [one for one in inside if one.what == name]) for name in names]
        by_name.sort(key=lambda one: len(one[1]))
        parts = [f"{_ranks(members)} in {name} at {place(members[0].at)}" for name, members in by_name]
        odd = [one.process for one in by_name[0][1]]
        return _verdict("collective-mismatch", LIKELY, f"ranks of {role} are in different collectives: "
                        + "; ".join(parts), _attach(odd[0]), odd)  # fmt: skip
    waiting = f"{_ranks(inside)} of {role} {'wait' if len(inside) > 1 else 'waits'} in {names[0]}"
    there = {one["rank"] for one in processes if one["role"] == role}
    world = max((one.process["world"] or 0 for one in inside), default=0)
    gone = [rank for rank in range(world) if rank not in there]
    if gone:
        text = f"the process of rank {','.join(runs(gone))} is gone; {waiting}"
        found = _verdict("crashed-peer", CERTAIN, text, "raydebug job logs --first-error")
        return {**found, "ranks": gone}
    outside = [one for one in waits if one.process["role"] == role and one.kind != COLLECTIVE]
    if outside:
        first = outside[0]
        doing = f", waiting for {first.what}" if first.kind != "unknown" else ""
        text = f"{_ranks(outside)} did not come to {names[0]}: it is at {place(first.at)}{doing}; {waiting}"
        return _verdict("missing-rank", LIKELY, text, _attach(first.process), [one.process for one in outside])
    return None


def _deadlock(processes: Sequence[ListedStacks]) -> Verdict | None:
    for process in processes:
        holder = {lock: thread for thread in process["threads"] for lock in thread.get("holds", [])}
        for thread in process["threads"]:
            circle: list[ThreadStack] = []
            current: ThreadStack | None = thread
            while current is not None and current not in circle:
                circle.append(current)
                current = holder.get(current.get("wants", ""))
            if current is not None and len(circle) > 1:
                circle = circle[circle.index(current) :]
                parts = [f"{one['name']} at {place(_at(one))}" for one in circle]
                text = f"threads of {name_process(process)} wait for each other's locks: {'; '.join(parts)}"
                return _verdict("deadlock", LIKELY, text, _attach(process), [process])
    return None


def _deadlock_of_actors(waits: Sequence[Wait], tasks: Sequence[Task]) -> Verdict | None:
    after = {id(one): found[0] for one in waits if (found := _awaited(one, waits, tasks))}
    for one in waits:
        circle: list[Wait] = []
        current: Wait | None = one
        while current is not None and current not in circle:
            circle.append(current)
            current = after[id(current)][1] if id(current) in after else None
        if current is not None and len(circle) > 1:
            circle = circle[circle.index(current) :]
            parts = [f"{each.who} waits for {after[id(each)][0]['name']} at {place(each.at)}" for each in circle]
            text = f"actors wait for each other: {'; '.join(parts)}"
            return _verdict("deadlock", CERTAIN, text, _attach(one.process), [each.process for each in circle])
    return None


def _awaited(one: Wait, waits: Sequence[Wait], tasks: Sequence[Task]) -> list[tuple[Task, Wait]]:
    """Return the unfinished tasks that a `ray.get` waits for, each with the process that runs it or has to."""
    return [
        (task, other)
        for task in _tasks_of(one, tasks)
        for other in waits
        if other is not one
        and (other.process["actor_id"] == task["actor_id"] if task["actor_id"] else other.process["pid"] == task["pid"])
    ]


def _tasks_of(one: Wait, tasks: Sequence[Task]) -> list[Task]:
    wanted = {name[:TASK_ID_CHARS] for name in one.thread.get("objects", [])}
    return [task for task in tasks if task["task_id"] in wanted] if one.kind == "ray-get" else []


def _ray_waits(waits: Sequence[Wait], tasks: Sequence[Task]) -> Verdict | None:
    """Return which task a process waits for that does not run: Ray cannot place it, or its actor is busy."""
    for one in waits:
        for task in _tasks_of(one, tasks):
            if task["state"] == UNPLACED:
                text = f"{one.who} waits for task {task['name']}, for which no node has room: it needs {task['needs']}"
                return _verdict("ray-get", CERTAIN, f"{text}; at {place(one.at)}", "raydebug ps", [one.process])
        for task, other in _awaited(one, waits, tasks):
            if task["state"] in QUEUED:
                text = f"{one.who} waits for {task['name']}, which waits in the mailbox of {other.who}"
                busy = f"that is at {place(other.at)}" + (f", waiting for {other.what}" if other.what else "")
                return _verdict("mailbox", CERTAIN, f"{text}; {busy}", _attach(other.process), [other.process])
    return None


def _gil(silent: Sequence[ListedStacks]) -> Verdict | None:
    if not silent:
        return None
    text = f"{_count(silent)} not answering: native code holds Python's lock (GIL) there, or the process is stopped"
    return _verdict("gil", LIKELY, text, f"py-spy dump --native --pid {silent[0]['pid']}", silent)


def _moved(samples: Sequence[Sequence[ListedStacks]]) -> list[ListedStacks]:
    """Return the processes that were at another line in an earlier sample, or that compute."""
    last = {one["instance"]: one for one in samples[-1]}
    before = [one for sample in samples[:-1] for one in sample if one["instance"] in last]
    changed = {one["instance"] for one in before if _differs(active_thread(one), active_thread(last[one["instance"]]))}
    return [one for one in samples[-1] if one["instance"] in changed]


def _is_moving(moved: Sequence[ListedStacks]) -> Verdict | None:
    if not moved:
        return None
    text = f"it is no hang: {_count(moved)} at another line than before, or computing"
    return _verdict("moving", CERTAIN, text, None, moved)


def _differs(before: ThreadStack, after: ThreadStack) -> bool:
    """Say whether a thread has moved: to another line, or it computes without being in a known wait."""
    if before.get("frames") != after.get("frames"):
        return True
    computes_s = after.get("cpu_s", 0.0) - before.get("cpu_s", 0.0)
    return computes_s > COMPUTES_S and next(_matches(after), None) is None


def _own_waits(waits: Sequence[Wait]) -> Verdict | None:
    """Return what a process waits for by itself; a `ray.get` counts only where nothing else explains it."""
    causes = [one for one in waits if one.kind not in ("unknown", "ray-get")] or [
        one for one in waits if one.kind == "ray-get"
    ]
    busy = [one for one in waits if one.kind == "unknown"]
    if not causes or (busy and all(one.kind == "ray-get" for one in causes)):
        return None
    first = causes[0]
    text = f"{first.who} waits for {first.what} at {place(first.at)}"
    return _verdict(first.kind, LIKELY, text, _attach(first.process), [one.process for one in causes])


# A single process


def _wait_of(process: ListedStacks, source_line: Callable[[str, int], str]) -> Wait:
    thread = active_thread(process)
    at = _at(thread)
    found = next(_matches(thread), None)
    if found is not None:
        return Wait(*found, process, at, thread)
    frames = thread.get("frames", [])
    if frames and SLEEP.search(source_line(frames[0].get("file", ""), frames[0].get("line", 0))):
        return Wait("sleep", "time.sleep", process, at, thread)
    return Wait("unknown", "", process, at, thread)


def _matches(thread: ThreadStack) -> Iterator[tuple[str, str]]:
    for path, function, kind, words in PATTERNS:
        for frame in thread.get("frames", [])[:SEARCHED_FRAMES]:
            name = frame.get("function", "")
            if re.search(path, frame.get("file", "")) and re.search(function, name.rpartition(".")[2]):
                yield kind, words.format(function=name.rpartition(".")[2]) + _detail(kind, thread)


def _detail(kind: str, thread: ThreadStack) -> str:
    if kind == "ray-get" and thread.get("objects"):
        return f" of object {', '.join(thread['objects'][:3])}"
    if kind == "network" and thread.get("host"):
        return f" from {thread['host']}"
    if kind == "subprocess" and thread.get("child"):
        return f" (pid {thread['child']})"
    return ""


def _at(thread: ThreadStack) -> StackFrame:
    frames = thread.get("frames", [])
    return users_frame(frames) or (frames[0] if frames else {})


# Words


def name_process(process: ListedStacks) -> str:
    """Name a process for people: `rank 1 of Trainer`, `driver (pid 7)`."""
    role = process["role"] if len(process["role"]) <= 40 else PurePath(process["role"].split()[0]).name
    return f"rank {process['rank']} of {role}" if process["rank"] is not None else f"{role} (pid {process['pid']})"


def _ranks(waits: Sequence[Wait]) -> str:
    ranks = [one.process["rank"] for one in waits if one.process["rank"] is not None]
    return f"rank {','.join(runs(ranks))}" if ranks else _count([one.process for one in waits])


def _count(processes: Sequence[ListedStacks]) -> str:
    if len(processes) == 1:
        return f"{name_process(processes[0])} is"
    return f"{len(processes)} processes are"


def _attach(process: ListedStacks) -> str:
    return f"raydebug attach --pid {process['pid']}"


def _verdict(
    kind: str, certainty: str, text: str, next_command: str | None, processes: Sequence[ListedStacks] = ()
) -> Verdict:
    return {
        "kind": kind,
        "certainty": certainty,
        "text": text,
        "next": next_command,
        "pids": [one["pid"] or 0 for one in processes],
        "ranks": sorted({one["rank"] for one in processes if one["rank"] is not None}),
    }
