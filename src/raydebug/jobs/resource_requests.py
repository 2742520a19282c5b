"""Resource requests of a job that its cluster can never satisfy, by Ray's State API."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from raydebug.cluster.dashboard import Dashboard, GroupRow, NodeRow, TaskRow
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError

SHOWN = ("CPU", "GPU", "memory")  # shown of a node; a request is shown whole
NODE_MAY_RETURN_S = 120.0  # a container that restarts takes this long at most
GIB = 1024**3

Resources = Mapping[str, float]


class Unsatisfiable(RaydebugError):
    """A job waits for resources that its cluster does not have."""


def find_unsatisfiable(dashboard: Dashboard, job_id: str) -> tuple[str, str] | None:
    """Return a pending request of a job that no node will ever satisfy, and what the cluster has; None without one.

    Args:
        dashboard: of the cluster.
        job_id: Ray's own id of the job.

    Raises:
        RaydebugError: the dashboard does not answer.
    """
    groups, tasks = dashboard.pending_groups(job_id), dashboard.pending_tasks(job_id)
    if not groups and not tasks:
        return None
    return judge(groups, tasks, dashboard.nodes(), now_s=time.time())


def judge(
    groups: Sequence[GroupRow],
    tasks: Sequence[TaskRow],
    nodes: Sequence[NodeRow],
    *,
    now_s: float,
) -> tuple[str, str] | None:
    """Return the first request that cannot be satisfied, and what the cluster has. Pure.

    Args:
        groups: rows of pending placement groups.
        tasks: rows of tasks, and of actors' creations, that have no node yet.
        nodes: rows of the node table.
        now_s: seconds since the epoch. A node that died shortly before may come back: until then nothing is reported.
    """
    totals = [node["resources_total"] for node in nodes if node["state"] == "ALIVE"]
    ended = [float(node.get("end_time_ms") or 0) / 1000 for node in nodes if node["state"] != "ALIVE"]
    if not totals or any(now_s - at_s < NODE_MAY_RETURN_S for at_s in ended):
        return None
    wanted = next(chain(_groups(groups, totals), _tasks(tasks, totals)), None)
    if not wanted:
        return None
    of_nodes = Counter(describe_resources({name: total.get(name, 0.0) for name in SHOWN}) for total in totals)
    return wanted, "; ".join(f"{count} node{'s' * (count > 1)} with {text}" for text, count in of_nodes.items())


def _groups(groups: Sequence[GroupRow], totals: Sequence[Resources]) -> Iterator[str]:
    """Yield the placement groups that do not fit.

    Ray says INFEASIBLE where a bundle fits no node, or a STRICT strategy cannot hold, but not where all bundles
    together are more than all nodes (Ray 2.60: NO_RESOURCES, as for a group that waits for others to end).
    """
    for group in groups:
        bundles = [bundle["unit_resources"] for bundle in group["bundles"] or []]
        together: Counter[str] = Counter()
        for bundle in bundles:
            together.update(bundle)
        whole: Counter[str] = Counter()
        for total in totals:
            whole.update(total)
        infeasible = (group.get("stats") or {}).get("scheduling_state") == "INFEASIBLE"
        if infeasible or not _fits(together, whole) or not all(_fits_one(bundle, totals) for bundle in bundles):
            kinds = Counter(describe_resources(bundle) for bundle in bundles)
            yield "a placement group of " + ", ".join(f"{count} x ({kind})" for kind, count in kinds.items())


def _tasks(tasks: Sequence[TaskRow], totals: Sequence[Resources]) -> Iterator[str]:
    for task in tasks:
        needed = task.get("required_resources") or {}
        # Inside of a placement group resources carry its id, and exist once the group does.
        if any("_group_" in name for name in needed) or _fits_one(needed, totals):
            continue
        kind = "actor" if task.get("type") == "ACTOR_CREATION_TASK" else "task"
        yield f"{kind} {str(task.get('name', '')).removesuffix('.__init__')} with {describe_resources(needed)}"


def _fits(needed: Resources, total: Resources) -> bool:
    return all(total.get(name, 0.0) + 1e-6 >= amount for name, amount in needed.items())


def _fits_one(needed: Resources, totals: Sequence[Resources]) -> bool:
    return any(_fits(needed, total) for total in totals)


def describe_resources(resources: Resources) -> str:
    """Return resources as words in a fixed order, which Ray's answers do not have: `3 CPUs, 1 GPU`."""

    def one(name: str, amount: float) -> str:
        if name in ("memory", "object_store_memory"):
            return f"{amount / GIB:.1f} GiB {name}"
        return f"{amount:g} {name}{'s' * (name in ('CPU', 'GPU') and amount != 1)}"

    return ", ".join(one(name, amount) for name, amount in sorted(resources.items()))


def unsatisfiable(cluster: Cluster, wanted: str, there: str) -> Unsatisfiable:
    """Return the error for a request that was found."""
    up = "raydebug up --gpus N --cpus N"
    # One that `run` has started for the job ends with it.
    anew = f"{up}, then the same command again" if cluster.owner else f"raydebug down, then {up}"
    return Unsatisfiable(
        f"the job asks for {wanted}, which cluster '{cluster.name}' can never give",
        cause=f"it has {there}",
        fix=f"let the program ask for less, or make the cluster larger: {anew}",
        code="run.resources",
        exit_code=Exit.USAGE,
    )
