"""Collect the stacks of a job: from the processes themselves, and from outside where they do not answer."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raydebug import render
from raydebug.client.gateway_client import ask_processes, fetch_stacks, one_of_pid
from raydebug.cluster.dashboard import MOST_TASKS
from raydebug.cluster.kinds import kind_of
from raydebug.cluster.runner import run_on_each
from raydebug.errors import RaydebugError, UsageError
from raydebug.process import answer_in
from raydebug.protocol.messages import SILENT
from raydebug.protocol.questions import STACKS, StacksBody
from raydebug.stacks.training_words import fetch_words

if TYPE_CHECKING:
    from raydebug.cluster.runner import Runner
    from raydebug.cluster.state import Cluster
    from raydebug.protocol.listings import ListedStacks
    from raydebug.protocol.questions import TrainingWords
    from raydebug.stacks.graph import Task
    from raydebug.stacks.spy import Seen

FIRST_S, ALL_S, LOCALS_S, SAMPLES_APART_S = 0.3, 1.0, 3.0, 2.0
SPY_TIMEOUT_S = 120.0
RAY_TITLE = "ray::"  # of a worker that runs `ray::Actor.method` or `ray::task` (ray 2.60.0 _raylet.pyx, `setproctitle`)


class Observation(NamedTuple):
    """What was seen of jobs: their processes at one or more moments, Ray's unfinished tasks, words of the training."""

    samples: list[list[ListedStacks]]
    tasks: list[Task]
    words: dict[str, TrainingWords]


def observe(
    cluster: Cluster,
    job: str | None,
    *,
    samples: int = 1,
    native: bool = False,
    say: Callable[[str], None] = render.say,
) -> Observation:
    """Ask for all that a verdict needs; with several samples, some seconds apart.

    Raises:
        RaydebugError: as in `take`.
    """
    taken = [take(cluster, job, native=native and samples == 1, say=say)]
    tasks = fetch_tasks(cluster, taken[-1])
    for number in range(2, samples + 1):
        say(f"sample {number} of {samples} in {SAMPLES_APART_S:g} s")
        time.sleep(SAMPLES_APART_S)
        taken.append(take(cluster, job, native=native and number == samples, say=say))
        tasks = fetch_tasks(cluster, taken[-1], before=tasks)
    return Observation(taken, tasks, fetch_words(cluster, job, taken[-1]))


def take(
    cluster: Cluster, job: str | None, *, native: bool = False, say: Callable[[str], None] = render.say
) -> list[ListedStacks]:
    """Return the stacks of a job. Processes that do not answer within a second are read from outside.

    Raises:
        RaydebugError: the gateway does not answer, or C frames cannot be read on the nodes of this cluster.
    """
    if native and kind_of(cluster).runner_at(None) is None:
        raise UsageError(
            f"C frames cannot be read on the nodes of cluster '{cluster.name}'",
            cause="raydebug has no way to run py-spy there: it has not started this cluster",
            fix="leave out --native, or run on the node: py-spy dump --native --pid PID",
            code="stacks.native",
        )  # fmt: skip
    processes = fetch_stacks(cluster, job=job, timeout_s=FIRST_S)
    if silent := [process["instance"] for process in processes if process["state"] == SILENT]:
        say(f"{len(silent)} of {len(processes)} processes have not answered yet; asking them again")
        late = fetch_stacks(cluster, job=job, only=silent, timeout_s=ALL_S - FIRST_S)
        answers = {process["instance"]: process for process in late}
        processes = [answers.get(process["instance"], process) for process in processes]
    for line in look_from_outside(cluster, processes, native=native):
        say(render.visible(line))
    return processes


def take_locals(cluster: Cluster, job: str | None, pid: str) -> ListedStacks:
    """Return the stacks of one process with the locals of its frames; errors are those of `take` and `one_of_pid`."""
    processes = fetch_stacks(cluster, job=job, timeout_s=FIRST_S)
    process = one_of_pid(pid, [(process, process) for process in processes])
    only = [process["instance"]]
    for said in ask_processes(cluster, STACKS, StacksBody(locals=True), only=only, timeout_s=LOCALS_S):
        process["threads"], process["state"] = (said["answer"] or process)["threads"], said["state"]
    for line in look_from_outside(cluster, [process], native=False, with_locals=True):
        render.say(render.visible(line))
    return process


def look_from_outside(
    cluster: Cluster, processes: Iterable[ListedStacks], *, native: bool, with_locals: bool = False
) -> list[str]:
    """Add the stacks of processes that do not answer, and C frames, as py-spy sees them on the processes' nodes.

    Returns:
        Why processes could not be read, in lines.
    """
    wanted = [process for process in processes if process["pid"] and (native or process["state"] == SILENT)]
    refused: dict[tuple[str, str], list[int]] = {}
    by_node: dict[str, dict[int, ListedStacks]] = {}
    for process in sorted(wanted, key=lambda process: str(process["ip"])):
        by_node.setdefault(str(process["ip"]), {})[process["pid"] or 0] = process
    for ip, answer in _ask_nodes(cluster, by_node, native=native, locals=with_locals).items():
        here = by_node[ip]
        for pid, seen in answer.items():
            _add(here[int(pid)], seen, native=native)
            if "threads" not in seen and not seen.get("gone"):
                refused.setdefault((seen["cause"], seen["fix"]), []).append(int(pid))
    name_by_peers(processes)
    what = "no C frames" if native else "no stack"
    return [f"{what} of pid {', '.join(map(str, pids[:8]))}: {cause}; {fix}" for (cause, fix), pids in refused.items()]


def _ask_nodes(cluster: Cluster, by_node: Mapping[str, Iterable[int]], **what: bool) -> dict[str, dict[str, Seen]]:
    """Return what py-spy sees of processes, by node and pid."""
    programs: dict[str, tuple[Runner, list[str]]] = {}
    for ip, pids in by_node.items():
        if (runner := kind_of(cluster).runner_at(ip)) is not None:
            request = json.dumps({"pids": list(pids), **what})
            programs[ip] = (runner, ["-m", "raydebug.stacks.spy", request])
    # It needs no folder, and other nodes may not have this one.
    folder = Path(cluster.project or ("/" if cluster.is_of_nodes else Path.cwd()))
    found: dict[str, dict[str, Seen]] = {}
    for ip, printed in run_on_each(programs, folder, timeout_s=SPY_TIMEOUT_S).items():
        try:
            if isinstance(printed, RaydebugError):
                raise printed
            found[ip] = answer_in(printed)
        except (RaydebugError, ValueError, IndexError) as error:
            cause = error.cause if isinstance(error, RaydebugError) else f"py-spy's answer on {ip} cannot be read"
            found[ip] = {str(pid): {"cause": cause, "fix": "see `raydebug ps`"} for pid in by_node[ip]}
    return found


def _add(process: ListedStacks, seen: Seen, *, native: bool) -> None:
    threads, title = seen.get("threads", []), seen.get("title", "")
    if process["actor"] is None and title.startswith(RAY_TITLE):  # it could not report its actor
        process["role"] = title.removeprefix(RAY_TITLE).partition(".")[0].partition("(")[0]
    if native and threads:
        process["native"] = threads
    if process["state"] != SILENT:
        return
    process["stopped"], process["gone"] = seen.get("stopped", False), seen.get("gone", False)
    process["cpu_s"] = seen.get("cpu_s", 0.0)
    if "asleep" in seen:
        process["asleep"] = seen["asleep"]
    if "cause" in seen:
        process["unread"] = f"{seen['cause']}; {seen['fix']}"
    elif threads:
        process["threads"] = [
            {**thread, "frames": [f for f in thread["frames"] if is_python(f["file"])]} for thread in threads
        ]
        process["age_s"] = 0.0


def name_by_peers(processes: Iterable[ListedStacks]) -> None:
    """Give a silent process that has never said its rank the one that its peers lack, where nothing else can be meant.

    One that has not said its role either is of the only role of its job that lacks a rank.
    """
    processes = list(processes)
    ranks: dict[tuple[str | None, str], set[int]] = {}
    worlds: dict[tuple[str | None, str], int] = {}
    for process in processes:
        if process["rank"] is not None:
            team = process["job"], process["role"]
            ranks.setdefault(team, set()).add(process["rank"])
            worlds[team] = max(worlds.get(team, 0), process["world"] or 0)
    lacking = [(team, rank) for team in ranks for rank in range(worlds[team]) if rank not in ranks[team]]
    unnamed = [process for process in processes if process["state"] == SILENT and process["rank"] is None]
    for process in unnamed:
        job, role = process["job"], process["role"]
        has_role = (job, role) in ranks
        teams = [(job, role)] if has_role else [team for team in ranks if team[0] == job]
        open_ranks = [(team, rank) for team, rank in lacking if team in teams]
        rivals = [other for other in unnamed if other["job"] == job and (other["role"] == role or not has_role)]
        if len(open_ranks) == len(rivals) == 1 and (has_role or process["actor"] is None):
            ((_, process["role"]), process["rank"]) = open_ranks[0]


def is_python(file: str) -> bool:
    """Return whether a file has Python code, and is no native library."""
    return file.endswith(".py") or file.startswith("<")


def fetch_tasks(cluster: Cluster, processes: Iterable[ListedStacks], before: Iterable[Task] = ()) -> list[Task]:
    """Return Ray's unfinished tasks if a process waits for one; none if Ray's dashboard does not answer in time.

    Ray hears of a task's state some seconds late, so each state counts the looks in which it was seen.

    Args:
        cluster: where.
        processes: the stacks.
        before: the tasks of an earlier look.
    """
    if not any(
        thread.get(name) for process in processes for thread in process["threads"] for name in ("objects", "polls")
    ):
        return []
    from raydebug.cluster.dashboard import UNPLACED, Dashboard
    from raydebug.jobs.resource_requests import describe_resources

    unknown = "Ray's tasks are unknown, so who waits for whom in ray.get is too"
    try:
        listed = (dashboard := Dashboard(cluster)).unfinished_tasks()
    except RaydebugError as error:
        render.say(f"{unknown}: {error.cause}")
        return []
    rows = [row for row in listed if all(isinstance(row.get(name), str) for name in ("task_id", "name", "state"))]
    if len(rows) < len(listed):
        render.say(f"{unknown}: {len(listed) - len(rows)} of {len(listed)} rows have no task_id, name and state")
    if len(rows) >= MOST_TASKS:
        render.say(f"of Ray's unfinished tasks {MOST_TASKS:,} are read; a wait for another one is not followed")
    free: dict[str, float] = {}
    if any(row["state"] == UNPLACED and row.get("required_resources") for row in rows):
        with contextlib.suppress(RaydebugError, TypeError, ValueError):
            free = dashboard.free_resources()
    seen = {(task["task_id"], task["state"]): task.get("looks", 1) for task in before}
    return [
        {
            "task_id": row["task_id"],
            "name": row["name"],
            "state": row["state"],
            "actor_id": row.get("actor_id"),
            "pid": row.get("worker_pid"),
            "needs": describe_resources(row.get("required_resources") or {}),
            "is_free": all(
                free.get(name, -1.0) >= needed for name, needed in (row.get("required_resources") or {}).items()
            ),
            "node_id": row.get("node_id"),
            "job_id": row.get("job_id"),
            "type": row.get("type") or "",
            "looks": 1 + seen.get((row["task_id"], row["state"]), 0),
        }
        for row in rows
    ]
