"""Pauses of a cluster without a gateway: what Ray's own worker table knows of them.

Ray counts the threads that wait for a client, and knows neither where nor since when. While a debugger holds a
session the count is 0, so that sessions of others cannot be listed. Source: ray 2.60.0 util/debugpy.py:62-95 and
_private/worker.py:666; both seen by running it.
"""

from __future__ import annotations

from typing import Any

from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.state import Cluster

ID_CHARS = 8  # of Ray's worker id: enough to tell them apart, short enough to type
# What the gateway's pauses have, and Ray does not know.
UNKNOWN = ("kind", "file", "line", "function", "thread", "exception", "where", "rank", "step", "since_s")


def fetch_stock_pauses(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the paused workers of a cluster in the form of the gateway's pauses; what Ray does not know is None.

    Raises:
        RaydebugError: the dashboard does not answer, or refuses the token.
    """
    dashboard = Dashboard(cluster)
    workers = dashboard.paused_workers()
    tasks = {row.get("worker_id"): row for row in dashboard.running_tasks()} if workers else {}
    return [_describe(worker, tasks.get(worker["worker_id"]) or {}) for worker in workers]


def _describe(worker: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    name = str(task.get("func_or_class_name") or task.get("name") or "") or None
    actor = name.partition(".")[0] if name and task.get("actor_id") else None
    return {
        "id": str(worker["worker_id"])[:ID_CHARS],
        **dict.fromkeys(UNKNOWN),
        "pid": worker.get("pid"),
        "ip": worker.get("ip"),
        "node_id": worker.get("node_id"),
        "worker_id": worker["worker_id"],
        "job_id": task.get("job_id"),
        "task": name,
        "task_id": task.get("task_id"),
        "actor": actor,
        "actor_id": task.get("actor_id"),
        "is_driver": worker.get("worker_type") == "DRIVER",
        "threads": worker["num_paused_threads"],
        "debugger_port": worker.get("debugger_port"),
        "state": "waiting",
    }
