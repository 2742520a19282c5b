"""The only HTTP client of Ray: its dashboard's state API and Jobs API, with the cluster's token."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import quote, urlsplit

from raydebug.cluster.known_folders import copies_on, with_local_names
from raydebug.cluster.port_owner import stranger_at
from raydebug.cluster.state import Cluster, name_option
from raydebug.errors import RaydebugError

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 15.0
MOST_BYTES, LEAST_BYTES_PER_S = 512 * 1024 * 1024, 64 * 1024  # of an answer
NODES_TIMEOUT_S = 4.0
TASKS_TIMEOUT_S, MOST_TASKS = 6.0, 10_000  # rows: as many as Ray's state API gives at most
UNPLACED = "PENDING_NODE_ASSIGNMENT"  # ray 2.60.0 src/ray/protobuf/common.proto TaskStatus
ROW_TIMEOUT_S = 2.0
TASK_TABLE_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 1.0  # who leaves a log does not wait for a dashboard that hangs
GCS_TIMEOUT_S = 1.5  # without its GCS the dashboard answers late or never, and then users call `ps`
ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})  # ray 2.60.0 dashboard/modules/job/common.py JobStatus
ANSWER_CHARS = 80  # shown of an answer that is not Ray's
OWN_JOBS = ("raydebug-gateway-", "raydebug-nodes-")  # raydebug's own on a joined cluster; no job of the user's
PACKAGE_TIMEOUT_S = 120.0
# The whole answer while a head starts, with status 500 (ray 2.60.0 dashboard/modules/job/job_head.py).
NO_AGENT_YET, AGENT_COMES_WITHIN_S = "No available agent to submit job, please try again later.", 30.0
# Else each piece of a file begins with a 1. Source: ray 2.41.0 dashboard/modules/state/state_head.py get_logs; 2.52.1
# and later ones take no `format`, and send the file as it is.
AS_TEXT = {"format": "text"}
NO_LOG = "[get_logs] Fetch log error: "  # the whole answer then, with status 200
# What each row has to have; tasks are looked at where they are used, and the odd ones are left out and said there.
NEEDED = {
    "nodes": {"node_id", "node_ip", "state", "resources_total"}, "workers": {"worker_id", "num_paused_threads"},
    "actors": {"pid", "class_name"},
}  # fmt: skip
NEEDED_OF_JOBS = {"status", "entrypoint"}


class NodeRow(TypedDict, total=False):
    """A row of Ray's node table. Source of this and the next ones: ray 2.60.0 util/state/common.py."""

    node_id: str
    node_ip: str
    state: str
    state_message: str | None
    is_head_node: bool
    resources_total: dict[str, float]
    end_time_ms: int | None


class WorkerRow(TypedDict, total=False):
    """A row of Ray's worker table."""

    worker_id: str
    worker_type: str
    node_id: str
    ip: str
    pid: int
    num_paused_threads: int
    debugger_port: int | None


class TaskRow(TypedDict, total=False):
    """A row of Ray's task table."""

    task_id: str
    name: str
    func_or_class_name: str
    type: str
    job_id: str
    actor_id: str | None
    node_id: str | None
    worker_id: str | None
    worker_pid: int | None
    state: str
    required_resources: dict[str, float] | None


class ActorRow(TypedDict, total=False):
    """A row of Ray's actor table."""

    pid: int
    node_id: str | None
    class_name: str
    serialized_runtime_env: str | None


class GroupRow(TypedDict, total=False):
    """A row of Ray's table of placement groups."""

    bundles: list[Mapping[str, dict[str, float]]] | None
    stats: Mapping[str, object] | None


class JobInfo(TypedDict, total=False):
    """A job in Ray's Jobs API; times are in milliseconds since the epoch."""

    submission_id: str
    job_id: str | None
    status: str
    entrypoint: str
    message: str | None
    start_time: int | None
    end_time: int | None
    driver_exit_code: int | None
    runtime_env: Mapping[str, dict[str, str]] | None


def why_no_gcs(cluster: Cluster) -> str | None:
    """Return None if the head's GCS is well, else what was found instead.

    Raises:
        TimeoutError: no answer in time; it may still run.
    """
    # Not httpx, which takes 0.4 s to import: `ps` calls this while a head dies, and has 3 s. Imported here, as every
    # `check` imports this file, and email and ssl take 12 ms.
    import http.client

    address = cluster.dashboard.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=GCS_TIMEOUT_S)
    try:
        # This page needs no token (ray 2.60.0 dashboard/http_server_head.py). Before Ray 2.52 it answers 500 without a
        # User-Agent, which http.client does not send.
        connection.connect()
        with _broken_off_after(2 * GCS_TIMEOUT_S, [connection.sock]):
            connection.request("GET", "/api/gcs_healthz", headers={"User-Agent": "raydebug"})
            answer = connection.getresponse()
    except TimeoutError as error:
        raise TimeoutError(f"its dashboard gave no answer within {GCS_TIMEOUT_S:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        return f"its dashboard does not answer: {str(error) or type(error).__name__}"
    finally:
        connection.close()
    return None if answer.status == 200 else f"its gcs_server does not answer: {answer.reason}"


@contextlib.contextmanager
def _broken_off_after(limit_s: float, sockets: Iterable[socket.socket]) -> Iterator[None]:
    """Shut sockets down after a time: a header that comes byte by byte stays within the limit of each read."""

    def end() -> None:
        for each in [*sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Dashboard:
    """One cluster's dashboard.

    The token goes with every request, once it is known that no other user has the port.
    """

    def __init__(self, cluster: Cluster) -> None:
        import httpx

        self.cluster = cluster
        token = cluster.dashboard_token
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Each connection may be a command of its own; Ray's server keeps one for 75 s (aiohttp 3.13, web_protocol.py).
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=60.0)
        self._sockets = weakref.WeakSet[socket.socket]()
        # trust_env=False: a company proxy has no way to 127.0.0.1.
        self._http = httpx.Client(
            base_url=cluster.dashboard, headers=self._headers, timeout=TIMEOUT_S, limits=limits, trust_env=False
        )

    def nodes(self) -> list[NodeRow]:
        return self._rows("nodes", timeout=NODES_TIMEOUT_S)

    def living_nodes(self) -> list[NodeRow]:
        """Return the rows of the nodes that are alive, head first: a head that was replaced stays in the table."""
        found: list[NodeRow] = self._rows("nodes", ("state", "=", "ALIVE"), limit=10000, timeout=NODES_TIMEOUT_S)
        return sorted(found, key=lambda node: not node.get("is_head_node"))

    def node_statistics(self, node_id: str) -> Mapping[str, Any]:
        """Return what a node's agent last measured: its memory, its workers' and its GPUs'."""
        detail: Mapping[str, Any] = self._ask("GET", f"/nodes/{node_id}", "data", "detail", timeout=NODES_TIMEOUT_S)
        return detail

    def option_of_raylet(self, node_id: str, option: str) -> str:
        """Return what follows `option` on the command line of a node's raylet; empty where its agent does not tell."""
        with contextlib.suppress(RaydebugError):
            for word in self.node_statistics(node_id).get("cmdline") or ():
                if word.startswith(option):
                    return str(word.removeprefix(option))
        return ""

    def paused_workers(self) -> list[WorkerRow]:
        """Return the rows of Ray's worker table with paused threads, dead workers left out."""
        rows = self._rows("workers", ("num_paused_threads", "!=", "0"), ("is_alive", "=", "True"), limit=10000)
        return [row for row in rows if (row.get("num_paused_threads") or 0) > 0]

    def running_tasks(self) -> list[TaskRow]:
        """Return the rows of the tasks that run now; cheap also where thousands have ended."""
        return self._rows("tasks", ("state", "=", "RUNNING"), exclude_driver="false")

    def actors(self, job_id: str) -> list[ActorRow]:
        """Return the rows of Ray's actor table for a job, dead ones too."""
        return self._rows("actors", ("job_id", "=", job_id), limit=10000)

    def pending_groups(self, job_id: str) -> list[GroupRow]:
        """Return the rows of a job's placement groups that have no nodes yet."""
        return self._rows("placement_groups", ("creator_job_id", "=", job_id), ("state", "=", "PENDING"))

    def pending_tasks(self, job_id: str) -> list[TaskRow]:
        """Return the rows of a job's tasks that have no node yet; the creation of an actor is a task too."""
        return self._rows("tasks", ("job_id", "=", job_id), ("state", "=", UNPLACED))

    def free_resources(self) -> dict[str, float]:
        """Return the CPUs and GPUs of all nodes together that no task holds, as Ray knew them some seconds ago.

        Source: ray 2.41.0 to 2.60.0 autoscaler/_private/load_metrics.py LoadMetricsSummary.
        """
        keys = ("data", "clusterStatus", "loadMetricsReport", "usage")
        usage = self._ask("GET", "/api/cluster_status", *keys, timeout=NODES_TIMEOUT_S)
        return {name: total - used for name, (used, total) in usage.items() if name in ("CPU", "GPU")}

    def unfinished_tasks(self) -> list[TaskRow]:
        """Return the rows of the tasks that wait or run, of actors too; at most MOST_TASKS of them.

        With the resources of those that have no node: details are 3 kB a row.
        """
        unfinished = ("state", "!=", "FINISHED"), ("state", "!=", "FAILED")
        rows: list[TaskRow] = self._rows("tasks", *unfinished, limit=MOST_TASKS, timeout=TASKS_TIMEOUT_S, detail="0")
        if not any(row.get("state") == UNPLACED for row in rows):
            return rows
        detailed = self._rows("tasks", ("state", "=", UNPLACED), limit=100, timeout=TASKS_TIMEOUT_S)
        return [*{str(row.get("task_id")): row for row in (*rows, *detailed)}.values()]

    def task_table(self, job_id: str) -> tuple[list[dict[str, Any]], bool]:
        """Return the rows of a job's tasks with their times, at most MOST_TASKS, and whether there were more.

        Source: ray 2.60.0 dashboard/state_aggregator.py, `list_tasks`: `total` has the tasks that the GCS has dropped,
        not those beyond the limit; only with `detail` has a row its times.
        """
        filters = {"filter_keys": ["job_id"], "filter_predicates": ["="], "filter_values": [job_id]}
        params = {"detail": 1, "limit": MOST_TASKS, **filters}
        found = self._ask("GET", "/api/v0/tasks", "data", "result", params=params, timeout=TASK_TABLE_TIMEOUT_S)
        rows: list[dict[str, Any]] = [row for row in found["result"] if isinstance(row, dict)]
        return rows, len(rows) >= MOST_TASKS or int(found.get("total") or 0) > len(rows)

    def row_of(
        self, table: str, *filters: tuple[str, str, str], fits: Callable[[Mapping[str, Any]], bool] = bool
    ) -> Mapping[str, Any] | None:
        """Return the last row of a table of Ray's state API that fits all filters; None if there is none."""
        rows = [row for row in self._rows(table, *filters, timeout=ROW_TIMEOUT_S) if fits(row)]
        return rows[-1] if rows else None

    def log_end(self, node_id: str, name: str, lines: int) -> str:
        return self._log(node_id, name, lines, timeout=ROW_TIMEOUT_S)

    def log_names(self, node_id: str) -> list[str]:
        params = {"node_id": node_id, "glob": "*"}
        by_kind: dict[str, list[str]] = self._ask("GET", "/api/v0/logs", "data", "result", params=params)
        return [name for names in by_kind.values() for name in names]

    def log_text(self, node_id: str, name: str) -> str:
        """Return the whole text of one of a node's log files."""
        return with_local_names(self.cluster, self._log(node_id, name, -1))

    def _log(self, node_id: str, name: str, lines: int, **options: Any) -> str:
        params = {"node_id": node_id, "filename": name, "lines": lines, **AS_TEXT}
        text = self._receive("GET", "/api/v0/logs/file", params=params, **options).text
        if text.startswith(NO_LOG):
            raise RaydebugError(
                f"the log '{name}' cannot be read", cause=text.removeprefix(NO_LOG)[:500],
                fix="ask again when its node has started: `raydebug ps` lists the nodes", code="ray.no-log",
            )  # fmt: skip
        return text

    async def follow_file(self, node_id: str, name: str) -> AsyncIterator[str]:
        """Yield one of a node's log files as it grows, from its beginning; it ends with the connection."""
        import httpx

        params = {"node_id": node_id, "filename": name, "lines": "-1", "interval": "0.5", **AS_TEXT}
        forever = httpx.Timeout(TIMEOUT_S, read=None)
        client = httpx.AsyncClient(
            base_url=self.cluster.dashboard, headers=self._headers, timeout=forever, trust_env=False
        )

        async def check(event: str, info: Mapping[str, Any]) -> None:
            self._check(event, info)

        more = {"trace": check}
        async with client as http, http.stream("GET", "/api/v0/logs/stream", params=params, extensions=more) as answer:
            async for piece in answer.aiter_text():
                yield with_local_names(self.cluster, piece)

    def submit_job(self, entrypoint: str, *, submission_id: str, env: dict[str, str], folder: str = "") -> str:
        """Start a job and return its submission id; `env` is for the driver and its workers.

        If it runs in a copy of a folder, Ray unpacks that on each node.
        """
        runtime_env: dict[str, object] = {"env_vars": env}
        if folder in copies_on(self.cluster):
            runtime_env["working_dir"] = f"gcs://{folder.rpartition('/')[2]}.zip"
        body = {"entrypoint": entrypoint, "submission_id": submission_id, "runtime_env": runtime_env}
        deadline = time.monotonic() + AGENT_COMES_WITHIN_S
        while True:
            try:
                return str(self._ask("POST", "/api/jobs/", "submission_id", of=str, json=body))
            except RaydebugError as error:
                if error.cause != NO_AGENT_YET or time.monotonic() > deadline:
                    raise
            time.sleep(1.0)

    def has_package(self, name: str) -> bool:
        """Return whether Ray has a package; for the next 10 minutes it keeps it without a job, too."""
        try:
            self._receive("GET", f"/api/packages/gcs/{name}.zip")
        except RaydebugError as error:
            if error.code != "ray.unknown":
                raise
            return False
        return True

    def put_package(self, name: str, content: bytes) -> None:
        """Give Ray a package, which it keeps for 10 minutes without a job."""
        self._receive("PUT", f"/api/packages/gcs/{name}.zip", content=content, timeout=PACKAGE_TIMEOUT_S)

    def jobs(self) -> list[JobInfo]:
        """Return every job that the cluster knows but raydebug's own, with its status and runtime environment."""
        return [row for row in self._all_jobs() if not str(row.get("submission_id")).startswith(OWN_JOBS)]

    def own_jobs(self, mark: str) -> list[JobInfo]:
        """Return raydebug's own jobs whose id has this mark."""
        return [
            row for row in self._all_jobs()
            if (name := str(row.get("submission_id"))).startswith(OWN_JOBS) and mark in name
        ]  # fmt: skip

    def submitted_jobs(self) -> list[JobInfo]:
        """Return the jobs of the Jobs API, oldest first; drivers that connected directly are not among them."""
        found = [job for job in self.jobs() if job.get("submission_id")]
        return sorted(found, key=lambda job: job.get("start_time") or 0)

    def job(self, submission_id: str) -> JobInfo:
        """Return a job's status, message and exit code."""
        info: JobInfo = self._ask("GET", _path_of(submission_id), needs=NEEDED_OF_JOBS)
        return info

    def job_logs(self, submission_id: str) -> str:
        return with_local_names(self.cluster, self.raw_job_logs(submission_id))

    def raw_job_logs(self, submission_id: str, *, most_bytes: int = MOST_BYTES) -> str:
        """Return the log of a job's driver with the nodes' own names of files; a longer one than this is refused."""
        path = f"{_path_of(submission_id)}/logs"
        return str(self._ask("GET", path, "logs", of=str, most_bytes=most_bytes))

    def stop_job(self, submission_id: str) -> None:
        self._ask("POST", f"{_path_of(submission_id)}/stop")

    def delete_job(self, submission_id: str) -> None:
        """Remove a job that has ended from Ray's table."""
        self._receive("DELETE", _path_of(submission_id))

    def version(self) -> str:
        return str(self._ask("GET", "/api/version", "ray_version", of=str))

    def asks_for_token(self) -> bool:
        """Return whether Ray asks for a token; the page itself needs none, and Ray has it since 2.52."""
        try:
            return bool(self._ask("GET", "/api/authentication_mode", "authentication_mode", of=str) == "token")
        except RaydebugError as error:
            if error.code == "ray.unknown":
                return False
            raise

    async def follow_logs(self, submission_id: str) -> AsyncIterator[str]:
        """Yield a job's log as it grows, until the job ends."""
        import asyncio

        import websockets

        url = self.cluster.dashboard.replace("http", "ws", 1) + f"{_path_of(submission_id)}/logs/tail"
        connection = await asyncio.to_thread(self._connect)
        how: dict[str, Any] = {"max_size": None, "proxy": None, "ping_interval": None, "compression": None}
        how["close_timeout"] = CLOSE_TIMEOUT_S
        async with websockets.connect(url, sock=connection, additional_headers=self._headers, **how) as stream:
            async for piece in stream:
                text = piece if isinstance(piece, str) else piece.decode(errors="replace")
                yield with_local_names(self.cluster, text)

    def _all_jobs(self) -> list[JobInfo]:
        rows: list[JobInfo] = self._ask("GET", "/api/jobs/", of=list, needs=NEEDED_OF_JOBS)
        return rows

    def _rows(
        self, table: str, *filters: tuple[str, str, str], limit: int = 1000, timeout: float = TIMEOUT_S, **more: str
    ) -> list[Any]:
        """Return the rows of a table of Ray's state API that fit all filters: key, predicate and value."""
        names = ("filter_keys", "filter_predicates", "filter_values")
        given = dict(zip(names, (list(column) for column in zip(*filters, strict=True)), strict=False))
        params = {"detail": 1, "limit": limit, **given, **more}
        keys = ("data", "result", "result")
        how: dict[str, Any] = {"params": params, "timeout": timeout}
        rows: list[Any] = self._ask("GET", f"/api/v0/{table}", *keys, of=list, needs=NEEDED.get(table, ()), **how)
        return rows

    def _ask(
        self, method: str, path: str, *keys: str, of: type = dict, needs: Collection[str] = (), **options: Any
    ) -> Any:
        """Return what Ray answers, or the part of it at these keys: a dictionary that has what is needed, or a list.

        The items of a list are such dictionaries.
        """
        answer = self._receive(method, path, **options)
        try:
            found = answer.json()
            for key in keys:
                found = found[key]
            rows = found if isinstance(found, list) else [found] if needs else []
            if isinstance(found, of) and all(isinstance(row, dict) and row.keys() >= set(needs) for row in rows):
                return found
        except (ValueError, LookupError, TypeError):
            pass
        begin = " ".join(answer.text[:ANSWER_CHARS].split())
        raise RaydebugError(
            f"no Ray dashboard is at {self.cluster.dashboard}",
            cause=f"{method} {path} is answered with {begin!r}" if begin else f"the answer to {method} {path} is empty",
            fix=self._where_to_look(),
            code="cluster.no-dashboard",
        )

    def _receive(self, method: str, path: str, *, most_bytes: int = MOST_BYTES, **options: Any) -> httpx.Response:
        import httpx

        limit_s = 2 * options.get("timeout", TIMEOUT_S)
        pieces, size, deadline = [], 0, time.monotonic() + limit_s
        try:
            with contextlib.ExitStack() as stack:
                with _broken_off_after(limit_s, self._sockets):
                    asking = self._http.stream(method, path, extensions={"trace": self._check}, **options)
                    received = stack.enter_context(asking)
                for piece in received.iter_bytes():
                    pieces.append(piece)
                    size += len(piece)
                    if time.monotonic() > deadline + size / LEAST_BYTES_PER_S:
                        raise httpx.ReadTimeout("its answer comes too slowly")
                    if size > most_bytes:
                        raise RaydebugError(
                            f"the answer to {method} {path} is too long",
                            cause=f"it has more than {most_bytes >> 20} MiB",
                            fix="see who else may write Ray's logs on the head, then try again",
                            code="ray.too-long",
                        )
            answer = httpx.Response(received.status_code, content=b"".join(pieces))
        except (httpx.HTTPError, OSError) as error:  # OSError: no more open files
            raise RaydebugError(
                f"cluster '{self.cluster.name}' does not answer",
                cause=f"{method} {self.cluster.dashboard}{path}: {error or type(error).__name__}",
                fix=self._where_to_look(),
                code="cluster.no-answer",
            ) from error
        if answer.status_code >= 400:
            # A text of gRPC, or of a traceback: its last line may be a mere bracket.
            said = [line.strip() for line in answer.text.splitlines() if any(map(str.isalnum, line))]
            wrong_token = answer.status_code in (401, 403)
            unknown = answer.status_code == 404  # any other status says nothing of what was asked for
            raise RaydebugError(
                f"Ray refused {method} {path} with {answer.status_code}",
                cause=said[-1][:300] if said else "(no text)",
                fix=self._where_tokens_are() if wrong_token else self._where_to_look(),
                code="auth.wrong-token" if wrong_token else "ray.unknown" if unknown else "ray.refused",
            )
        return answer

    def _connect(self) -> socket.socket:
        url = urlsplit(self.cluster.dashboard)
        port = url.port or (443 if url.scheme == "https" else 80)
        connection = socket.create_connection((str(url.hostname), port), timeout=TIMEOUT_S)
        self._check_owner(connection)
        return connection

    def _check(self, event: str, info: Mapping[str, Any]) -> None:
        """Check a new connection. Called by httpcore, between connecting and sending.

        Source: https://www.encode.io/httpcore/extensions/#trace, httpcore 1.0.9.
        """
        if event == "connection.connect_tcp.complete":
            connection = info["return_value"].get_extra_info("socket")
            self._sockets.update([connection] if isinstance(connection, socket.socket) else [])  # not of asyncio
            self._check_owner(connection)

    def _check_owner(self, connection: socket.socket) -> None:
        uid = stranger_at(self.cluster, connection)
        if uid is not None:
            raise RaydebugError(
                f"cluster '{self.cluster.name}' does not answer",
                cause=f"{self.cluster.dashboard} is answered by another user of this machine, uid {uid};"
                " the token was not sent",
                fix=self._where_to_look()
                if self.cluster.has_gateway
                else "if Ray is that user's, name the token's file that the user owns, RAY_AUTH_TOKEN_PATH=FILE; else"
                " start Ray again, and see with `ss -tlnp` that the port is its own",
                code="cluster.port-of-another",
            )

    def _where_to_look(self) -> str:
        if not self.cluster.has_gateway:
            return "is it the address of a Ray dashboard, and can it be reached from here? `ray start --head` prints it"
        return f"see what is wrong with `raydebug ps{name_option(self.cluster.name)}`"

    def _where_tokens_are(self) -> str:
        if not self.cluster.has_gateway:
            return "name this cluster's token as Ray itself wants it: RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH=FILE"
        if self.cluster.is_joined:
            return f"{self.cluster.repair}, with the token that Ray has now"
        return f"the token is not this cluster's: look at {self.cluster.token_file}"


def _path_of(submission_id: str) -> str:
    """Return the path of a job, whatever a user or another program calls it."""
    return f"/api/jobs/{quote(submission_id, safe='', errors='surrogateescape')}"
