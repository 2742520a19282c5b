"""The host's client of a cluster's gateway: pauses, processes and breakpoints over HTTP, and their wording.

What asks a gateway raises the errors of `request`; a docstring names only what there is beside them.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import socket
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar
from urllib.parse import quote

import h11

from raydebug.cluster.known_folders import copies_on, with_local_names
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.protocol import messages
from raydebug.protocol.client_handshake import MAX_BYTES, ClientHandshake, NotProven, is_whole
from raydebug.protocol.listings import (
    GatewayTask,
    ListedAnswer,
    ListedBreakpoint,
    ListedPause,
    ListedProcess,
    ListedStacks,
    with_frames,
)
from raydebug.protocol.names import name_process
from raydebug.protocol.questions import Answer, Body, Question
from raydebug.protocol.records import MAX_ITEMS, BreakpointSpec
from raydebug.protocol.snapshot import IS_ID, SnapshotSummary
from raydebug.protocol.snapshot import MAX_BYTES as SNAPSHOT_BYTES

TIMEOUT_S = 5.0
PROCESSES_TIMEOUT_S = 30.0  # beside what the processes may take; a busy gateway needs seconds for thousands of them
RECEIVE_BYTES = 64 * 1024
REPORTS_WITHIN_S = 2.0
_BREAK_STATES = {
    messages.SET: "set in {}",
    messages.WAITING: "not loaded yet in {}",
    messages.SENT: "sent to {}",
    messages.FAILED: "failed in {}",
}


class GatewayStatus(TypedDict):
    """The state of a gateway: its tasks, or the problem if it does not answer."""

    tasks: list[GatewayTask]
    problem: str | None


# Requests


def request(
    cluster: Cluster, method: str, path: str, body: Mapping[str, object] | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Send one request, once each side has proved to hold the token, and return the JSON document of the response.

    The limit is for each part of the response.

    Raises:
        RaydebugError: the gateway does not answer, does not hold the token, or refuses.
    """
    where = f"{cluster.gateway_host}:{cluster.gateway_port}"
    try:
        sent = None if body is None else json.dumps(body).encode("ascii")
        status, text = _exchange(cluster, method, path, sent, timeout_s)
        document: dict[str, Any] = json.loads(with_local_names(cluster, text.decode(), is_json=True))
    except NotProven as error:
        raise unproven(error, f"{where} (cluster '{cluster.name}')") from error
    except (OSError, h11.ProtocolError, ValueError) as error:
        raise RaydebugError(
            f"the gateway of cluster '{cluster.name}' does not answer",
            cause=f"{method} http://{where}{path}: {error or type(error).__name__}",
            fix="see what is wrong with `raydebug ps`" + (f"; {cluster.repair}" if cluster.repair else ""),
            code="gateway.no-answer",
            exit_code=Exit.SESSION_LOST,
        ) from error
    if status != 200:
        refused = document.get("error", {})
        up = f"raydebug up --join {cluster.remote.join_url}" if cluster.is_joined else "raydebug up"
        restart = f"if its version differs, restart it with `raydebug down` and `{up}`"
        raise RaydebugError(
            f"the gateway of cluster '{cluster.name}' refused a request",
            cause=f"{method} {path}: {refused.get('message', status)}",
            fix=refused.get("fix", restart),
            code="gateway.refused",
        )
    return document


def _exchange(cluster: Cluster, method: str, path: str, body: bytes | None, timeout_s: float) -> tuple[int, bytes]:
    """Send one request and return the status and body of the response.

    h11 instead of httpx or http.client: `raydebug run` asks all the time, and every shell completion once.
    http.client alone imports email and ssl, 20 ms where h11 takes 8 ms.
    """
    http = h11.Connection(h11.CLIENT)
    token = cluster.token  # where its file is gone, that is the error, whether or not the gateway runs
    headers = [("Host", f"{cluster.gateway_host}:{cluster.gateway_port}"), ("Content-Length", str(len(body or b"")))]
    with socket.create_connection((cluster.gateway_host, cluster.gateway_port), timeout=TIMEOUT_S) as connection:
        proof = _prove(connection, token)
        connection.settimeout(timeout_s)
        head = h11.Request(method=method, target=path, headers=headers)
        parts = [http.send(part) or b"" for part in (head, h11.Data(data=body or b""), h11.EndOfMessage())]
        connection.sendall(proof + b"".join(parts))
        status = 0
        received: list[bytes] = []  # thousands of stacks are megabytes
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                data = connection.recv(RECEIVE_BYTES)
                if not data and not status:
                    raise ConnectionResetError("it closed the connection without a response")
                http.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                received.append(bytes(event.data))
    return status, b"".join(received)


def _prove(connection: socket.socket, token: str) -> bytes:
    """Have the gateway prove that it holds the token, and return our own proof, to be sent before the request.

    Raises:
        NotProven: what answers there does not hold it.
    """
    handshake, answer, until_s = ClientHandshake(token), b"", time.monotonic() + TIMEOUT_S
    connection.sendall(handshake.hello)
    while not is_whole(answer) and (data := connection.recv(MAX_BYTES - len(answer))):
        answer += data
        connection.settimeout(max(0.01, until_s - time.monotonic()))
    return handshake.prove(answer)


def unproven(error: NotProven, where: str) -> RaydebugError:
    """Return the error that what answers at the gateway's address does not hold the token."""
    refused = error.code == "auth.wrong-token"
    what = f"the gateway at {where} refused the token"
    return RaydebugError(
        what if refused else f"no gateway that can be trusted answers at {where}",
        cause=str(error),
        fix=error.fix,
        code=error.code,
        exit_code=Exit.USAGE if refused else Exit.SESSION_LOST,
    )


def fetch_pauses(cluster: Cluster) -> list[ListedPause]:
    """Return the cluster's pauses, oldest first, as `raydebug paused --json` shows them.

    Raises:
        RaydebugError: the gateway (without one, the dashboard) does not answer, or refuses the token.
    """
    if not cluster.has_gateway:
        from raydebug.cluster.stock_pauses import fetch_stock_pauses

        return fetch_stock_pauses(cluster)
    pauses: list[ListedPause] = request(cluster, "GET", "/pauses")["pauses"]
    return pauses


def fetch_processes(cluster: Cluster) -> list[ListedProcess]:
    """Return the processes of the cluster's jobs that can be paused while they run."""
    processes: list[ListedProcess] = request(cluster, "GET", "/processes", None, PROCESSES_TIMEOUT_S)["processes"]
    return processes


def ask_processes(
    cluster: Cluster,
    question: Question[Body, Answer],
    body: Body,
    *,
    job: str | None = None,
    only: Sequence[str] = (),
    timeout_s: float,
) -> list[ListedAnswer[Answer]]:
    """Return what processes answer to a question, a row of protocol/questions.py; the rest is as in `fetch_stacks`.

    Raises:
        RaydebugError: the gateway does not answer, refuses the token, or does not know the question.
    """
    answers: list[ListedAnswer[Answer]] = []
    for part in _parts(only):
        asked = {"body": body, "job": job, "only": part, "timeout_s": timeout_s}
        path = f"/processes/{question.name}"
        answers += request(cluster, "POST", path, asked, PROCESSES_TIMEOUT_S + timeout_s)["processes"]
    return answers


Row = TypeVar("Row")


def one_of_pid(pid: str, rows: Sequence[tuple[Mapping[str, Any], Row]]) -> Row:
    """Return the row of the process that PID or PID@IP names; a UsageError if there is none, or more than one."""
    number, _, ip = pid.partition("@")
    matches = [(about, row) for about, row in rows if str(about["pid"]) == number and ip in ("", about["ip"])]
    if len(matches) != 1:
        named = [f"{number}@{about['ip']} ({name_process(about)})" for about, _ in matches]
        raise UsageError(
            f"{len(matches) or 'no'} processes have the id {pid}", code="process.id",
            cause=", ".join(named) or "it has ended, or it is not a process of a job",
            fix=f"name one: {named[0].split()[0]}" if named else "see `raydebug ps --processes`",
        )  # fmt: skip
    return matches[0][1]


def _parts(instances: Sequence[str]) -> list[list[str]]:
    """Return instances in lists that a gateway takes; one empty list for all processes."""
    return [[*instances[begin : begin + MAX_ITEMS]] for begin in range(0, max(1, len(instances)), MAX_ITEMS)]


def fetch_stacks(
    cluster: Cluster, *, job: str | None = None, only: Sequence[str] = (), timeout_s: float
) -> list[ListedStacks]:
    """Return the stacks of the processes of a job, or of all jobs.

    `only` these instances are asked, or all. Those that do not answer in time are `silent`.
    """
    stacks: list[ListedStacks] = []
    for part in _parts(only):
        question = {"job": job, "only": part, "timeout_s": timeout_s, "digests": True}
        answer = request(cluster, "POST", "/stacks", question, PROCESSES_TIMEOUT_S + timeout_s)
        processes: list[ListedStacks] = answer["processes"]
        for process in processes:
            process["threads"] = [with_frames(thread, answer["frames"]) for thread in process["threads"]]
        stacks += processes
    return stacks


def fetch_snapshots(cluster: Cluster, job: str) -> list[SnapshotSummary]:
    """Return the snapshots of a job that the gateway still has, oldest first."""
    snapshots: list[SnapshotSummary] = request(cluster, "GET", f"/snapshots/{quote(job, safe='')}")["snapshots"]
    return [snapshot for snapshot in snapshots if IS_ID.fullmatch(snapshot.get("id", ""))]


def fetch_snapshot(cluster: Cluster, job: str, snapshot_id: str) -> bytes:
    """Return the file of one snapshot; its frames have the names that files have on this machine.

    Raises:
        RaydebugError: the gateway does not answer, or does not have it any more.
    """
    packed = base64.b64decode(request(cluster, "GET", f"/snapshots/{quote(job, safe='')}/{snapshot_id}")["data"])
    if copies_on(cluster):
        with contextlib.suppress(zlib.error, ValueError, KeyError, TypeError, AttributeError):  # `open` says what it is
            document = json.loads(zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(packed, 2 * SNAPSHOT_BYTES))
            for about in (document["summary"], *document["frames"]):
                about["file"] = with_local_names(cluster, about.get("file", "?"))
            packed = gzip.compress(json.dumps(document).encode("ascii"), 1)
    return packed


def save_pause(cluster: Cluster, pause_id: str) -> SnapshotSummary:
    """Have a snapshot made of a pause, or of a process by messages.PID, and return its summary.

    Raises:
        RaydebugError: there is no such pause or process, or it cannot make one.
    """
    snapshot: SnapshotSummary = request(cluster, "POST", "/snapshots", {"pause": pause_id})["snapshot"]
    return snapshot


def fetch_status(cluster: Cluster) -> GatewayStatus:
    """Return the state of a cluster's gateway: `tasks`, and `problem` when it does not answer."""
    try:
        return {"tasks": request(cluster, "GET", "/status")["tasks"], "problem": None}
    except RaydebugError as failure:
        return {"tasks": [], "problem": failure.cause}


def fetch_dial_address(cluster: Cluster) -> str:
    """Return where processes reach the gateway; empty if it listens on all addresses, or is an older one."""
    return str(request(cluster, "GET", "/status").get("dial", ""))


def set_breaks(cluster: Cluster, breaks: list[BreakpointSpec], *, job: str | None = None) -> list[BreakpointSpec]:
    """Set breakpoints in every process of a job (of all jobs without one), and return them with their ids.

    Raises:
        RaydebugError: the gateway does not answer, or does not set all; then none stays.
    """
    if not breaks:
        return []
    added = request(cluster, "POST", "/breaks", {"breaks": breaks, "job": job})["breaks"]
    if len(added) != len(breaks):
        for spec in added:
            with contextlib.suppress(RaydebugError):
                remove_break(cluster, spec["id"])
        raise RaydebugError(
            f"the gateway of cluster '{cluster.name}' did not set the breakpoints",
            cause=f"it was given {len(breaks)} and answered with {len(added)}",
            fix="try again; see what is wrong with `raydebug ps`",
            code="gateway.breaks",
        )
    return [{**ids, **spec} for ids, spec in zip(added, breaks, strict=True)]  # files have their names of the nodes


def add_break(cluster: Cluster, spec: BreakpointSpec, *, job: str | None = None) -> ListedBreakpoint:
    """Set a breakpoint, and return it with its state in each process, once all have reported or after 2 s."""
    (added,) = set_breaks(cluster, [spec], job=job)
    deadline = time.monotonic() + REPORTS_WITHIN_S
    while True:
        (listed,) = [listed for listed in fetch_breaks(cluster) if listed["id"] == added["id"]]
        if time.monotonic() > deadline or all(process["state"] != messages.SENT for process in listed["processes"]):
            return listed
        time.sleep(0.05)


def fetch_breaks(cluster: Cluster) -> list[ListedBreakpoint]:
    """Return every breakpoint that was set from outside, with its state in each process."""
    breaks: list[ListedBreakpoint] = request(cluster, "GET", "/breaks")["breaks"]
    return breaks


def remove_break(cluster: Cluster, break_id: str) -> None:
    """Remove a breakpoint from the processes that have it and from those that start later.

    Raises:
        RaydebugError: there is no such breakpoint.
    """
    if not request(cluster, "DELETE", f"/breaks/{quote(break_id, safe='')}")["removed"]:
        raise RaydebugError(
            f"there is no breakpoint '{break_id}'",
            cause="it was removed, or it never existed; the breakpoints of a job are removed when the job ends",
            fix="see `raydebug break list`",
            code="break.unknown",
            exit_code=Exit.USAGE,
        )


def forget_job(cluster: Cluster, job: str) -> None:
    """Remove the breakpoints of a job that has ended."""
    request(cluster, "DELETE", f"/jobs/{quote(job, safe='')}")


# Wording for people


def describe_failed_tasks(status: GatewayStatus) -> list[str]:
    """Return a line for each task of the gateway that has died, and one for a gateway that does not answer."""
    lines = [] if status["problem"] is None else [f"the gateway does not answer: {status['problem']}"]
    for task in status["tasks"]:
        if task["reason"] is not None:
            now = "it runs again" if task["state"] == "running" else "it is about to be restarted"
            times = "once" if task["restarts"] == 1 else f"{task['restarts']} times"
            lines.append(f"the gateway's task '{task['name']}' died: {task['reason']}; restarted {times}, {now}")
    return lines


def describe_break_states(listed: ListedBreakpoint) -> str:
    """Return the states of a breakpoint in its processes in a few words: `set in 3, not loaded yet in 5`."""
    states = [process["state"] for process in listed["processes"]]
    if not states:
        return "no process of a job has started yet"
    counts = {state: states.count(state) for state in _BREAK_STATES}
    words = [_BREAK_STATES[state].format(count) for state, count in counts.items() if count]
    notes = {p["message"] for p in listed["processes"] if p["state"] in (messages.SET, messages.FAILED)} - {""}
    return ", ".join(words) + "".join(f"; {note}" for note in sorted(notes))


def name_owner(pause: ListedPause) -> str:
    """Return the owner of a pause in a few words: its name, or its task's; its attempt from the second on, its pid."""
    if pause.get("child_of"):
        rank = "" if pause.get("rank") is None else f"rank {pause['rank']} "
        return f"{rank}pid {pause.get('pid')}, child of {pause.get('actor') or 'worker'} pid {pause['child_of']}"
    attempt = f" attempt {pause['attempt']}" if (pause.get("attempt") or 1) > 1 else ""
    who = {**pause, "title": pause.get("task"), "is_driver": bool(pause.get("job_id") and not pause.get("task"))}
    return f"{name_process(who)}{attempt} pid {pause.get('pid')}"


def name_reason(pause: ListedPause) -> str:
    """Return the exception of a pause (its first line), or what tripped; empty for breakpoints and requests."""
    if tripwire := pause.get("tripwire"):
        return f"{pause.get('where')}: {tripwire.get('text')}"
    first, *more = [line for line in (pause.get("exception") or "").splitlines() if line.strip()] or [""]
    if first.rstrip().endswith(":") and more:  # a message that begins with a line end
        first = f"{first.rstrip()} {more.pop(0).strip()}"
    return f"{first} ..." if more else first


def name_place(pause: ListedPause) -> str:
    """Return `FILE:LINE FUNCTION` of a pause, relative to the current folder or site-packages; ? if unknown."""
    if pause.get("file") is None:
        return "?"
    file = str(pause.get("file")).rpartition("/site-packages/")[2]
    with contextlib.suppress(ValueError):
        file = str(Path(file).relative_to(Path.cwd()))
    return f"{file}:{pause.get('line')} {pause.get('function') or ''}".rstrip()
