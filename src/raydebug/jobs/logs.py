"""The log files of a job's processes, and their lines: filtered, marked with the process that wrote them, followed.

Ray writes a worker's stdout and stderr to `worker-<worker id>-<job id>-<pid>.out` and `.err` on its node, the driver's
to `job-driver-<submission id>.log` on the head (ray 2.60.0; seen by running it). Children of a worker (vLLM's engine)
write into their parent's files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo

from raydebug.cluster.dashboard import ActorRow, Dashboard, JobInfo
from raydebug.errors import RaydebugError, UsageError

DRIVER, TASK = "driver", "task"
_WORKER_FILE = re.compile(r"worker-(?P<worker>[0-9a-f]+)-(?P<job>[0-9a-f]+)-(?P<pid>\d+)\.(?P<stream>out|err)")
RANK_VARIABLE = "RANK"  # verl and torchrun give it to a worker in its runtime environment
LOOK_EVERY_S = 1.0
NODE_ID_CHARS = 8  # of Ray's id of a node: enough to tell nodes of one machine apart
# Ray's tokens at the head of a worker's file (ray 2.60.0 _private/ray_constants.py LOG_PREFIX_*): for its log monitor.
_TOKEN = re.compile(r":(?:job_id|actor_name|task_name|pid):.*")
# 2026-11-21 19:41:51,630 · [2026-11-21 19:41:51 · INFO 11-21 19:41:51
_STAMP = re.compile(
    r"(?:(?P<year>\d{4})-)?(?P<date>\d\d-\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(?:[.,]\d+)?(?P<zone>Z|[+-]\d\d:\d\d)?"
)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Source:
    """One file of one process."""

    node_id: str  # Ray's id of the node that has it
    name: str  # in the node's log folder
    role: str  # `driver`, the class of an actor, or `task` for a worker without an actor
    rank: int | None = None  # in its training group
    pid: int | None = None  # None for the driver's shell
    stream: str = "log"  # `out`, `err`, or `log` for both in one
    node: str = ""  # its name, where the job has files on several

    @property
    def title(self) -> str:
        """Name the process for people."""
        rank = "" if self.rank is None else f" rank {self.rank}"
        pid = "" if self.pid is None or self.rank is not None else f" pid {self.pid}"
        node = f" on {self.node}" if self.node else ""
        return f"{self.role}{rank}{pid}{node}"


def find_sources(dashboard: Dashboard, job: JobInfo) -> list[Source]:
    """Return the files of a job: the driver's first, then by role, rank, node and pid."""
    job_id = str(job.get("job_id") or "")
    # A pid names a process of one node only.
    actors = {(actor.get("node_id"), actor["pid"]): actor for actor in dashboard.actors(job_id)} if job_id else {}
    nodes = dashboard.nodes()
    addresses = [node["node_ip"] for node in nodes]
    found: list[Source] = []
    for node in nodes:
        node_id, address = node["node_id"], node["node_ip"]
        try:
            names = dashboard.log_names(node_id)
        except RaydebugError:  # the node is gone, and its files
            continue
        title = address if addresses.count(address) == 1 else node_id[:NODE_ID_CHARS]
        for name in names:
            parts = _WORKER_FILE.fullmatch(name)
            if name == f"job-driver-{job['submission_id']}.log":
                found.append(Source(node_id, name, DRIVER, node=title))
            elif parts is not None and parts["job"] == job_id:
                pid = int(parts["pid"])
                actor = actors.get((node_id, pid))
                role = TASK if actor is None else str(actor.get("class_name") or "actor")
                found.append(Source(node_id, name, role, rank_of(actor), pid, parts["stream"], title))
    if len({source.node for source in found}) == 1:
        found = [replace(source, node="") for source in found]
    return sorted(found, key=lambda s: (s.role != DRIVER, s.role, s.rank or 0, s.node, s.pid or 0, s.stream))


def rank_of(actor: ActorRow | None) -> int | None:
    """Return the rank in an actor's runtime environment; None without one."""
    try:
        variables = json.loads((actor or ActorRow()).get("serialized_runtime_env") or "{}").get("env_vars") or {}
        return int(variables[RANK_VARIABLE])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def select_sources(sources: Iterable[Source], role: str | None, rank: int | None) -> list[Source]:
    """Return the sources of a role (a part of its name, in any case) and a rank; None takes all."""
    return [
        source
        for source in sources
        if (role is None or role.lower() in source.role.lower()) and (rank is None or source.rank == rank)
    ]


@dataclass(frozen=True)
class Filter:
    """The lines to show."""

    since: datetime | None = None  # no older than this, by the time stamp of the line or of an earlier one
    pattern: re.Pattern[str] | None = None  # only lines that match
    zone: tzinfo | None = None  # of time stamps without an offset; None for this machine's

    def lines(self, text: Iterable[str], state: dict[str, bool] | None = None) -> Iterator[str]:
        """Yield the wanted lines; `state` carries the last time stamp from call to call."""
        state = {} if state is None else state
        for line in text:
            if _TOKEN.fullmatch(line):
                continue
            if self.since is not None and (at := stamp_of(line, self.zone)) is not None:
                state["old"] = at < self.since
            if state.get("old") or (self.pattern is not None and not self.pattern.search(line)):
                continue
            yield line


def stamp_of(line: str, zone: tzinfo | None = None) -> datetime | None:
    """Return the time stamp near the beginning of a line; None without one."""
    found = _STAMP.search(line[:60])
    if found is None:
        return None
    with contextlib.suppress(ValueError):
        now = datetime.now(UTC)
        year = int(found["year"] or now.year)
        at = _in_zone(f"{year}-{found['date']}T{found['time']}{found['zone'] or ''}", zone)
        # A stamp without a year is of the last one in January.
        return at if found["year"] or at < now + timedelta(days=1) else at.replace(year=year - 1)
    return None


def _in_zone(text: str, zone: tzinfo | None) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is not None:
        return at
    return at.astimezone() if zone is None else at.replace(tzinfo=zone)


def read_since(text: str) -> datetime:
    """Return the time that `10m`, `2h`, `2026-11-21 19:41:51` (UTC) or `2026-11-21T19:41:51+01:00` means.

    Raises:
        RaydebugError: it is not a time.
    """
    span = _SPAN.fullmatch(text.strip())
    try:
        if span:
            return datetime.now(UTC) - timedelta(seconds=float(span[1]) * _SECONDS[span[2]])
        return _in_zone(text.strip(), UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--since {text} is not a time",
            cause="it takes a span (30s, 10m, 2h, 1d) or a time in UTC: 2026-11-21T19:41:51, or with +01:00",
            fix="write --since 10m",
        ) from error


def read_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern of --grep.

    Raises:
        RaydebugError: it is not a regular expression.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(
            f"--grep {text} is not a regular expression",
            cause=str(error),
            fix="put a backslash before literal brackets and stars",
        ) from error


def lines_of(text: str) -> list[str]:
    """Return the lines of a log; unlike splitlines, a progress bar with many CRs is one of them."""
    return text.removesuffix("\n").split("\n") if text else []


async def follow_lines(
    dashboard: Dashboard,
    look: Callable[[], list[Source]],
    is_over: Callable[[], bool],
    on_line: Callable[[Source, str], None],
    wanted: Filter,
) -> None:
    """Pass on the lines of a job's files as they arrive, also of files that appear later, until the job has ended."""
    reading: dict[Source, asyncio.Task[None]] = {}
    seen: dict[Source, int] = {}
    states: dict[Source, dict[str, bool]] = {}

    async def read(source: Source) -> None:
        rest, passed, state = "", 0, states.setdefault(source, {})
        with contextlib.suppress(Exception):  # any error of httpx: it is read again from its beginning
            async for piece in dashboard.follow_file(source.node_id, source.name):
                *lines, rest = (rest + piece).split("\n")
                fresh = lines[max(0, seen.get(source, 0) - passed) :]
                passed += len(lines)
                seen[source] = max(passed, seen.get(source, 0))
                for line in wanted.lines(fresh, state):
                    on_line(source, line)

    try:
        while True:
            over = await asyncio.to_thread(is_over)
            sources = await asyncio.to_thread(look)
            for source in sources:
                if source not in reading and not over:
                    reading[source] = asyncio.ensure_future(read(source))
            if over:
                break
            for source in [source for source, task in reading.items() if task.done()]:
                reading.pop(source).result()  # raises when the reader of our output has gone
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        for task in reading.values():
            task.cancel()
        await asyncio.gather(*reading.values(), return_exceptions=True)
    for source in sources:  # lines between the last piece and the end
        with contextlib.suppress(RaydebugError):
            lines = lines_of(await asyncio.to_thread(dashboard.log_text, source.node_id, source.name))
            for line in wanted.lines(lines[seen.get(source, 0) :], states.get(source)):
                on_line(source, line)


def wait_until(is_true: Callable[[], bool], timeout_s: float | None) -> bool:
    """Wait until a condition is true; return False after the time limit."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not is_true():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True
