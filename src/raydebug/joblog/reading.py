"""The lines of a job's files: filtered, marked with who wrote them, and followed as they come."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from raydebug.cluster.dashboard import Dashboard
from raydebug.errors import Exit, RaydebugError
from raydebug.joblog.sources import Source

LOOK_EVERY_S = 1.0
# Ray's tokens at the head of a worker's file (ray 2.60.0 _private/ray_constants.py LOG_PREFIX_*): for its log monitor.
_TOKEN = re.compile(r":(?:job_id|actor_name|task_name|pid):.*")
# 2026-11-21 19:41:51,630 · [2026-11-21 19:41:51 · INFO 11-21 19:41:51
_STAMP = re.compile(r"(?:(?P<year>\d{4})-)?(?P<rest>\d\d-\d\d \d\d:\d\d:\d\d)")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Filter:
    """Which lines are wanted.

    Args:
        since: no older than this moment, where a line or one before it has a time stamp; None for all.
        pattern: lines in which it is found; None for all.
    """

    since: datetime | None = None
    pattern: re.Pattern[str] | None = None

    def lines(self, text: Iterable[str], state: dict[str, bool] | None = None) -> Iterator[str]:
        """Yield the wanted lines; `state` carries over what the last time stamp was from call to call."""
        state = {} if state is None else state
        for line in text:
            if _TOKEN.fullmatch(line):
                continue
            if self.since is not None and (at := stamp_of(line)) is not None:
                state["old"] = at < self.since
            if state.get("old") or (self.pattern is not None and not self.pattern.search(line)):
                continue
            yield line


def stamp_of(line: str) -> datetime | None:
    """Return the time stamp near the beginning of a line, in local time; None without one."""
    found = _STAMP.search(line[:60])
    if found is None:
        return None
    with contextlib.suppress(ValueError):
        year = int(found["year"] or datetime.now().year)  # noqa: DTZ005 - logs are in the node's local time
        return datetime.strptime(f"{year}-{found['rest']}", "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007
    return None


def read_since(text: str) -> datetime:
    """Return the moment that `10m`, `2h` or `2026-11-21 19:41:51` names.

    Raises:
        RaydebugError: it names none.
    """
    span = _SPAN.fullmatch(text.strip())
    if span:
        return datetime.now() - timedelta(seconds=float(span[1]) * _SECONDS[span[2]])  # noqa: DTZ005
    at = stamp_of(text)
    if at is None:
        raise RaydebugError(
            f"--since {text} is no time",
            cause="it takes a span (30s, 10m, 2h, 1d) or a moment (2026-11-21 19:41:51)",
            fix="write --since 10m",
            code="usage",
            exit_code=Exit.USAGE,
        )
    return at


def read_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern of --grep.

    Raises:
        RaydebugError: it is no regular expression.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise RaydebugError(
            f"--grep {text} is no regular expression",
            cause=str(error),
            fix="put a backslash before brackets and stars that mean themselves",
            code="usage",
            exit_code=Exit.USAGE,
        ) from error


async def follow(
    dashboard: Dashboard,
    look: Callable[[], list[Source]],
    is_over: Callable[[], bool],
    on_line: Callable[[Source, str], None],
    wanted: Filter,
) -> None:
    """Hand on the lines of a job's files as they come, also of files that appear later, until the job has ended.

    Args:
        dashboard: the cluster's.
        look: returns the files that are wanted now.
        is_over: says whether the job has ended.
        on_line: told each wanted line.
        wanted: which.
    """
    reading: dict[Source, asyncio.Task[None]] = {}
    seen: dict[Source, int] = {}

    async def read(source: Source) -> None:
        rest, state = "", dict[str, bool]()
        with contextlib.suppress(Exception):  # httpx' many ways to break: what is missing is fetched at the end
            async for piece in dashboard.follow_file(source.node_id, source.name):
                *lines, rest = (rest + piece).split("\n")
                seen[source] = seen.get(source, 0) + len(lines)
                for line in wanted.lines(lines, state):
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
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        for task in reading.values():
            task.cancel()
        await asyncio.gather(*reading.values(), return_exceptions=True)
    for source in sources:  # what came between the last piece and the end
        with contextlib.suppress(RaydebugError):
            text = await asyncio.to_thread(dashboard.log_text, source.node_id, source.name)
            for line in wanted.lines(text.splitlines()[seen.get(source, 0) :]):
                on_line(source, line)


def wait_until(is_true: Callable[[], bool], timeout_s: float | None, every_s: float = LOOK_EVERY_S) -> bool:
    """Wait until something is true; False when the time is over first."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not is_true():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True
