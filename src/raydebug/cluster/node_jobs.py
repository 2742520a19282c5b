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


def submit_request(cluster: Cluster, prefix: str, request: dict[str, Any]) -> str:
    """Start on_nodes.py with a request, and return the id of its job."""
    argv = [cluster.python, SAFE_PATH, "-m", "raydebug.cluster.on_nodes", json.dumps(request)]
    entrypoint = f"cd / && exec {shlex.join(argv)}"
    return Dashboard(cluster).submit_job(entrypoint, submission_id=f"{prefix}{secrets.token_hex(4)}", env={})


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
        fix=f"install it on all nodes, in Python 3.11 or later; for an image: RUN pip install raydebug=={version} debugpy",
        code="joined.no-raydebug",
    )


def end_job(cluster: Cluster, job: str, limit_s: float = 15.0) -> bool:
    """Stop a job that still runs, remove it from Ray's table, and return whether it is gone."""
    dashboard, deadline = Dashboard(cluster), time.monotonic() + limit_s
    try:
        while dashboard.job(job)["status"] not in ENDED:
            if time.monotonic() > deadline:
                return False
            dashboard.stop_job(job)
            time.sleep(POLL_S)
        dashboard.delete_job(job)
    except RaydebugError as error:
        return error.code == "ray.refused" and "does not exist" in error.cause
    return True


def ask_nodes(cluster: Cluster, limit_s: float = ANSWER_LIMIT_S, **request: Any) -> list[dict[str, Any]]:
    """Have a request carried out on the nodes, and return the answer of each; nothing of the job is left.

    Raises:
        RaydebugError: there is no answer.
    """
    job = submit_request(cluster, NODES, request)
    try:
        nodes: list[dict[str, Any]] = wait_for_answer(cluster, job, limit_s)["nodes"]
        return nodes
    finally:
        _let_end(cluster, job)
        end_job(cluster, job)


def _let_end(cluster: Cluster, job: str) -> None:
    """Wait for the end of a job that has answered, so that Ray does not list it as stopped."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline and Dashboard(cluster).job(job)["status"] not in ENDED:
        time.sleep(POLL_S)
