"""The verdict on the stacks of a job: what a hanging job waits for, in one sentence, with the next command.

The rules combine what the processes wait for (waits.py). The rule on collectives (collectives.py) comes first: a rank
that is missing from a collective explains why the others wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from raydebug.protocol import messages
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.records import ThreadStack
from raydebug.render import command
from raydebug.stacks.collectives import all_inside, has_advanced, judge_collectives
from raydebug.stacks.groups import active_frames, active_thread, is_idle, place, place_of, users_frame
from raydebug.stacks.waits import (
    CERTAIN,
    COLLECTIVE,
    LIKELY,
    Verdict,
    Wait,
    attach,
    count,
    holds_gil,
    make_verdict,
    matches,
    name_process,
    wait_of,
)

COMPUTES_S = 0.5  # CPU time between two samples
DATA_LOADER_WORKER = "/torch/utils/data/_utils/worker.py"  # torch 2.11 and 2.13
# States of a task that is queued at its actor: ray 2.60.0 src/ray/protobuf/common.proto TaskStatus.
QUEUED = ("SUBMITTED_TO_WORKER", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY")
UNPLACED = "PENDING_NODE_ASSIGNMENT"
TASK_ID_CHARS = 48  # an object's id begins with that of its task (ray 2.60.0 src/ray/common/id.h)


class Task(TypedDict):
    """An unfinished task of Ray."""

    task_id: str
    name: str
    state: str
    actor_id: str | None
    pid: int | None
    needs: str  # its resources, in words


def judge(samples: Sequence[Sequence[ListedStacks]], tasks: Sequence[Task] = ()) -> Verdict:
    """Return the verdict on the stacks of a job, taken at one or more moments, oldest first; and on its Ray tasks."""
    processes = samples[-1]
    answered = [one for one in processes if one["threads"]]
    working = [one for one in answered if not is_idle(one)]
    if not processes:
        return make_verdict("none", CERTAIN, "no process of a job runs", None)
    if paused := [one for one in processes if one.get("pauses")]:
        ids = [pause for one in paused for pause in one.get("pauses", [])]
        text = f"{count(paused)} paused by raydebug; the others may wait for it"
        return make_verdict("paused", CERTAIN, text, command("raydebug", "attach", ids[0]), paused)
    waits = [wait_of(one) for one in working]
    stuck = [one for one in processes if one["state"] != messages.ANSWERED]
    moved = _moved(samples)
    rules = (
        judge_collectives(waits, processes, moved),
        _deadlock(working) or _deadlock_of_actors(waits, tasks),
        _data_loader(waits, processes, moved),
        _gil(stuck),
        _is_moving(moved),
        _ray_waits(waits, tasks),
        all_inside(waits),
        _own_waits(waits),
    )
    for found in rules:
        if found is not None:
            return found
    if not working:
        return make_verdict("none", CERTAIN, f"all {len(answered)} processes are idle", None)
    first = waits[0]
    return make_verdict(
        "unknown", LIKELY, f"{first.who} is at {place(first.at)}; it is in no known wait", attach(first.process),
        [one.process for one in waits],
    )  # fmt: skip


# Rules: each returns a verdict, or None


def _deadlock(processes: Sequence[ListedStacks]) -> Verdict | None:
    for process in processes:
        threads = process["threads"]
        holder = {lock: number for number, one in enumerate(threads) for lock in one.get("holds", [])}
        after = {n: holder.get(one.get("wants", ""), n) for n, one in enumerate(threads)}
        cycle = _cycle({n: other for n, other in after.items() if other != n})
        if cycle:
            parts = [f"{threads[n]['name']} at {place(place_of(threads[n].get('frames', [])))}" for n in cycle]
            text = f"threads of {name_process(process)} wait for each other's locks: {'; '.join(parts)}"
            return make_verdict("deadlock", LIKELY, text, attach(process), [process])
    return None


def _deadlock_of_actors(waits: Sequence[Wait], tasks: Sequence[Task]) -> Verdict | None:
    after = {n: found[0] for n, one in enumerate(waits) if (found := _awaited(one, waits, tasks))}
    cycle = _cycle({n: waits.index(other) for n, (_, other) in after.items()})
    if not cycle:
        return None
    parts = [f"{waits[n].who} waits for {after[n][0]['name']} at {place(waits[n].at)}" for n in cycle]
    text = f"actors wait for each other: {'; '.join(parts)}"
    processes = [waits[n].process for n in cycle]
    return make_verdict("deadlock", CERTAIN, text, attach(processes[0]), processes)


def _cycle(waits_for: Mapping[int, int]) -> list[int]:
    """Return those that wait for each other in a cycle; empty if there is none."""
    for first in waits_for:
        path = [first]
        while (after := waits_for.get(path[-1])) is not None:
            if after in path:
                return path[path.index(after) :]
            path.append(after)
    return []


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
    """Return the verdict on a wait for a task that does not run: Ray cannot place it, or its actor is busy."""
    for one in waits:
        for task in _tasks_of(one, tasks):
            if task["state"] == UNPLACED:
                text = f"{one.who} waits for task {task['name']}, for which no node has room: it needs {task['needs']}"
                return make_verdict("ray-get", CERTAIN, f"{text}; at {place(one.at)}", "raydebug ps", [one.process])
        for task, other in _awaited(one, waits, tasks):
            if task["state"] in QUEUED:
                text = f"{one.who} waits for {task['name']}, which waits in the mailbox of {other.who}"
                busy = f"that is at {place(other.at)}" + (f", waiting for {other.what}" if other.what else "")
                return make_verdict("mailbox", CERTAIN, f"{text}; {busy}", attach(other.process), [other.process])
    return None


def _data_loader(
    waits: Sequence[Wait], processes: Sequence[ListedStacks], moved: Sequence[ListedStacks]
) -> Verdict | None:
    """Return the verdict on a process that waits for its DataLoader, with the place of the worker."""
    for one in waits:
        if one.kind != "data-loader":
            continue
        children = [other for other in processes if other["child_of"] == one.process["pid"]]
        workers = [other for other in children if not other["threads"] or _is_loader_worker(other)]
        if one.process in moved or any(other in moved for other in workers):
            continue
        text = f"{one.who} waits for {one.what} at {place(one.at)}; "
        if not workers:
            text += "it has no worker process"
            return make_verdict("data-loader", LIKELY, text, attach(one.process), [one.process])
        frame = place_of(active_frames(workers[0]))
        where = f"is at {place(frame)}" if frame else "does not answer: it is stopped, or holds Python's lock (GIL)"
        text += f"the worker (pid {workers[0]['pid']}) {where}"
        return make_verdict("data-loader", LIKELY, text, attach(workers[0]), [one.process, *workers])
    return None


def _is_loader_worker(process: ListedStacks) -> bool:
    return any(frame.get("file", "").endswith(DATA_LOADER_WORKER) for frame in active_frames(process))


def _gil(stuck: Sequence[ListedStacks]) -> Verdict | None:
    """Return the verdict on processes that do not answer; a stack from outside shows which call holds Python's lock."""
    if not stuck:
        return None
    if stopped := [one for one in stuck if one.get("stopped")]:
        text = f"{count(stopped)} stopped: by SIGSTOP, or by a debugger of native code"
        return make_verdict("unknown", CERTAIN, text, command("kill", "-CONT", str(stopped[0]["pid"])), stopped)
    seen = any("gil" in thread for one in stuck for thread in one["threads"])  # raydebug could run py-spy on its node
    from_node = command("py-spy", "dump", "--native", "--pid", str(stuck[0]["pid"]))
    look = "raydebug stacks --native" if seen else from_node
    next_command = None if any("native" in one for one in stuck) else look
    holders = [(one, thread) for one in stuck for thread in one["threads"][:1] if holds_gil(one, thread)]
    if not holders:
        text = f"{count(stuck)} not answering: native code holds Python's lock (GIL) there, or the process is stopped"
        return make_verdict("gil", LIKELY, text, next_command, stuck)
    first, thread = holders[0]
    frames, own = thread.get("frames", []), users_frame(thread.get("frames", []))
    where = place(frames[0]) + (f", from {place(own)}" if own and own is not frames[0] else "") if frames else "?"
    inner = [one["frames"][0] for one in first.get("native", [])[:1] if one.get("frames")]
    certainty = CERTAIN if inner and inner != frames[:1] else LIKELY  # where Python runs it may only be slow
    who = count([one for one, _ in holders])
    text = f"{who} not answering: native code holds Python's lock (GIL), called at {where}"
    others = [one for one in stuck if one is not first]
    return make_verdict("gil", certainty, text, next_command, [first, *others])


def _moved(samples: Sequence[Sequence[ListedStacks]]) -> list[ListedStacks]:
    """Return the processes that were at another line in an earlier sample, or that compute."""
    last = {one["instance"]: one for one in samples[-1]}
    before = [one for sample in samples[:-1] for one in sample if one["instance"] in last]
    changed = {
        one["instance"]
        for one in before
        if one["state"] == last[one["instance"]]["state"]  # py-spy describes the same place in other words
        and (
            _differs(active_thread(one), active_thread(last[one["instance"]]))
            or has_advanced(one, last[one["instance"]])
        )
    }
    return [one for one in samples[-1] if one["instance"] in changed]


def _is_moving(moved: Sequence[ListedStacks]) -> Verdict | None:
    if not moved:
        return None
    text = f"it does not hang: {count(moved)} at another line than before, or computing"
    return make_verdict("moving", CERTAIN, text, None, moved)


def _differs(before: ThreadStack, after: ThreadStack) -> bool:
    """Return whether a thread is at another line, or computes without being in a known wait."""
    if before.get("frames") != after.get("frames"):
        return True
    computes_s = after.get("cpu_s", 0.0) - before.get("cpu_s", 0.0)
    return computes_s > COMPUTES_S and next(matches(after), None) is None


def _own_waits(waits: Sequence[Wait]) -> Verdict | None:
    """Return the verdict on the wait of one process; a `ray.get` counts only if no process has another wait."""
    causes = [one for one in waits if one.kind not in ("unknown", "ray-get")] or [
        one for one in waits if one.kind == "ray-get"
    ]
    busy = [one for one in waits if one.kind == "unknown"]
    if not causes or (busy and all(one.kind == "ray-get" for one in causes)):
        return None
    first = causes[0]
    if first.kind == COLLECTIVE:
        return None  # `all_inside` says it
    text = f"{first.who} waits for {first.what} at {place(first.at)}"
    return make_verdict(first.kind, LIKELY, text, attach(first.process), [one.process for one in causes])
