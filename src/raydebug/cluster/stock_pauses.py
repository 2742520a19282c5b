"""The pauses of a cluster without a gateway, which Ray's own debugger holds: what Ray's worker table knows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from raydebug.cluster.dashboard import Dashboard, TaskRow, WorkerRow

if TYPE_CHECKING:
    from raydebug.cluster.state import Cluster
    from raydebug.protocol.listings import ListedPause

STOCK_ID_CHARS = 8  # of Ray's worker id: enough to tell them apart, short enough to type


def fetch_stock_pauses(cluster: Cluster) -> list[ListedPause]:
    """Return the paused workers of a cluster without a gateway, in the form of the gateway's pauses.

    Ray's worker table counts the threads that wait for a debugger, without place and time; unknown fields are None.
    While a debugger holds a session the count is 0, so sessions of other users are not listed. Source: ray 2.60.0
    util/debugpy.py:62-95 and _private/worker.py:666; both observed.

    Raises:
        RaydebugError: the dashboard does not answer, or refuses the token.
    """
    dashboard = Dashboard(cluster)
    workers = dashboard.paused_workers()
    tasks = {row.get("worker_id"): row for row in dashboard.running_tasks()} if workers else {}
    return [_describe_stock_pause(worker, tasks.get(worker["worker_id"], TaskRow())) for worker in workers]


def _describe_stock_pause(worker: WorkerRow, task: TaskRow) -> ListedPause:
    from raydebug.protocol.listings import PauseFacts  # milliseconds that no other verb has to pay

    name = str(task.get("func_or_class_name") or task.get("name") or "") or None
    actor = name.partition(".")[0] if name and task.get("actor_id") else None
    return {
        "id": str(worker["worker_id"])[:STOCK_ID_CHARS],
        **cast(PauseFacts, dict.fromkeys(PauseFacts.__annotations__)),
        "since_s": None,
        "expires_in_s": None,
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
