"""Jobs of raydebug's own on a joined cluster: on_nodes.py runs there, its answer is read from the job's log."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from typing import Any

import raydebug
from raydebug.cluster.dashboard import ENDED, OWN_JOBS, Dashboard
from raydebug.cluster.on_nodes import MARK
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.process import SAFE_PATH

GATEWAY, NODES = OWN_JOBS
ANSWER_LIMIT_S = 120.0
POLL_S = 0.1
MONITORED_EVERY_S = 1.5


def submit_request(cluster: Cluster, prefix: str, request: dict[str, Any]) -> str:
    """Start on_nodes.py with a request, and return the id of its job."""
    argv = [cluster.python, SAFE_PATH, "-m", "raydebug.cluster.on_nodes", json.dumps(request)]
    name = f"{prefix}{cluster.id[:8]}-{secrets.token_hex(2)}"
    entrypoint = f"cd / && exec {shlex.join(argv)}"
    return Dashboard(cluster).submit_job(entrypoint, submission_id=name, env={})


def wait_for_answer(cluster: Cluster, job: str, limit_s: float = ANSWER_LIMIT_S) -> dict[str, Any]:
    """Return the answer in a job's log.

    Raises:
        RaydebugError: it has ended without, or gave none in time.
    """
    dashboard, deadline = Dashboard(cluster), time.monotonic() + limit_s
    while True:
        status = dashboard.job(job)["status"]
        log = dashboard.job_logs(job) if status != "PENDING" else ""
        found = [line for line in log.splitlines() if line.startswith(MARK)]
        if found:
            answer: dict[str, Any] = json.loads(found[-1].removeprefix(MARK))
            return answer
        if status in ENDED:
            raise _no_answer(cluster, job, log or str(dashboard.job(job).get("message")))
        if time.monotonic() > deadline:
            raise RaydebugError(
                f"the nodes of {cluster.dashboard} gave no answer within {limit_s:.0f} s",
                cause=f"job {job} is {status}",
                fix=f"look at it in Ray's dashboard, {cluster.dashboard}; try again on a quieter cluster",
                code="joined.no-answer",
                exit_code=Exit.TIMEOUT,
            )
        time.sleep(POLL_S)


def _no_answer(cluster: Cluster, job: str, log: str) -> RaydebugError:
    last = (log.strip().splitlines() or ["(it printed nothing)"])[-1]
    if "No module named" in last or "nknown option: -P" in log:
        return lacks_raydebug(f"{cluster.python} of the head says: {last}")
    return RaydebugError(
        f"raydebug's job {job} failed on the head", cause=last, fix="read what Ray says: its dashboard, Jobs",
        code="joined.job-failed",
    )  # fmt: skip


def lacks_raydebug(cause: str) -> RaydebugError:
    """Return the error that the Python of a node cannot be debugged as it is."""
    version = raydebug.__version__
    return RaydebugError(
        "raydebug is not usable in the Python of all nodes",
        cause=cause,
        fix=f"install it on all nodes, Python 3.11 or later; in an image: RUN pip install raydebug=={version} debugpy",
        code="joined.no-raydebug",
    )


def stop_job(cluster: Cluster, job: str, limit_s: float = 15.0) -> bool:
    """Stop a job that still runs, and return whether it does not any more."""
    dashboard, deadline = Dashboard(cluster), time.monotonic() + limit_s
    try:
        while dashboard.job(job)["status"] not in ENDED:
            if time.monotonic() > deadline:
                return False
            dashboard.stop_job(job)
            time.sleep(POLL_S)
    except RaydebugError as error:
        if error.code != "ray.refused":  # Ray does not know it
            raise
    return True


def clear_jobs(cluster: Cluster, *, also_the_last: bool = True, rounds: int = 4) -> None:
    """Remove raydebug's jobs of this cluster that have ended from Ray's table.

    Ray looks at a job once a second, and lists one again, as failed, that was removed just after its end
    (ray 2.60.0 job_manager.py `_monitor_job_internal`). So the last one waits, or is looked for again.
    """
    dashboard = Dashboard(cluster)
    for _ in range(rounds if also_the_last else 1):
        if also_the_last:
            time.sleep(MONITORED_EVERY_S)
        ended = [job for job in dashboard.own_jobs(cluster.id[:8]) if job["status"] in ENDED]
        ended.sort(key=lambda job: job.get("start_time") or 0)
        for job in ended if also_the_last else ended[:-1]:
            dashboard.delete_job(job["submission_id"])
        if not ended:
            return


def ask_nodes(cluster: Cluster, request: dict[str, Any], limit_s: float = ANSWER_LIMIT_S) -> list[dict[str, Any]]:
    """Have a request carried out on the nodes, and return the answer of each.

    Raises:
        RaydebugError: there is no answer.
    """
    job = submit_request(cluster, NODES, request)
    try:
        nodes: list[dict[str, Any]] = wait_for_answer(cluster, job, limit_s)["nodes"]
    except BaseException:
        stop_job(cluster, job)
        raise
    clear_jobs(cluster, also_the_last=False)
    return nodes
