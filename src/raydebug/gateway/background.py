"""The gateway's background tasks, restarted with back-off when they die; and the one that resumes unattended pauses."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from raydebug.dap import ConnectionLost, RequestFailed
from raydebug.gateway.board import Board, Pause
from raydebug.gateway.process_events import resume
from raydebug.protocol.listings import GatewayTask

log = logging.getLogger("raydebug.gateway")

FIRST_WAIT_S, MOST_WAIT_S = 1.0, 60.0
RESET_AFTER_S = 60.0  # after a task has run this long, the back-off starts again at the shortest wait
MAX_REASON = 300  # characters
LIMIT_S = 3600.0
CHECK_EVERY_S = 0.25
WARN_FROM_S = 60.0  # shorter limits get no warning at half time
RESPONSE_TIMEOUT_S = 10.0


@dataclass
class _Task:
    """The state of one task: the number of restarts, and the reason of the last one."""

    restarts: int = 0
    reason: str | None = None
    is_waiting: bool = False


class Background:
    """Runs tasks, and restarts those that die.

    Args:
        first_wait_s: wait before the first restart; doubled for each further one, up to a minute.
    """

    def __init__(self, first_wait_s: float = FIRST_WAIT_S) -> None:
        self._first_wait_s = first_wait_s
        self._tasks: dict[str, _Task] = {}
        self._running: set[asyncio.Task[None]] = set()

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function for as long as the gateway lives."""
        self._tasks[name] = _Task()
        self._running.add(asyncio.ensure_future(self._keep(name, self._tasks[name], run)))

    def describe(self) -> list[GatewayTask]:
        """Return each task: `name`, `state` (`running`, `restarting`), `restarts`, and the last `reason`."""
        return [
            {"name": name, "state": "restarting" if one.is_waiting else "running", "restarts": one.restarts,
             "reason": one.reason}
            for name, one in self._tasks.items()
        ]  # fmt: skip

    async def _keep(self, name: str, task: _Task, run: Callable[[], Awaitable[None]]) -> None:
        wait_s = self._first_wait_s
        while True:
            began = time.monotonic()
            try:
                await run()
                task.reason = "it returned"
            except Exception as error:  # noqa: BLE001 - whatever it was: without the task pauses would never expire
                task.reason = _where(error)[:MAX_REASON]
            if time.monotonic() - began >= RESET_AFTER_S:
                wait_s = self._first_wait_s
            log.error("background task '%s' died: %s; it is restarted in %g s", name, task.reason, wait_s)
            task.is_waiting = True
            await asyncio.sleep(wait_s)
            task.is_waiting, task.restarts = False, task.restarts + 1
            wait_s = min(wait_s * 2, MOST_WAIT_S)


class Expiry:
    """Resumes pauses after a time limit without a debugger, and logs it in the job.

    Args:
        board: the cluster's pauses.
        limit_s: for pauses whose breakpoint has no limit of its own; 0 for no limit.
    """

    def __init__(self, board: Board, limit_s: float = LIMIT_S) -> None:
        self._board = board
        self._limit_s = limit_s
        self._free_since: dict[Pause, float] = {}
        self._warned: set[Pause] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def watch(self) -> None:
        """Check all pauses periodically, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self._check(time.time())

    def _check(self, now: float) -> None:
        listed = self._board.listed()
        for gone in self._free_since.keys() - set(listed):
            del self._free_since[gone]
            self._warned.discard(gone)
        for pause in listed:
            limit_s = float(pause.record.get("expires_s") or self._limit_s)
            if self._board.holder(pause) is not None or pause.stopped is None or limit_s <= 0:
                self._free_since.pop(pause, None)
                self._warned.discard(pause)
                pause.expires_at = None
                continue
            since = self._free_since.setdefault(pause, now)
            pause.expires_at = since + limit_s
            if now >= since + limit_s:
                del self._free_since[pause]
                self._start(self._resume(pause, f"{limit_s:g} s without a debugger: resumed"))
            elif limit_s >= WARN_FROM_S and now >= since + limit_s / 2 and pause not in self._warned:
                self._warned.add(pause)
                paused_s, left_s = now - since, limit_s - (now - since)
                text = f"paused for {paused_s:.0f} s: it resumes in {left_s:.0f} s unless a debugger attaches"
                self._start(self._log_in_job(pause, text))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resume(self, pause: Pause, why: str) -> None:
        await self._log_in_job(pause, why)
        if self._board.holder(pause) is not None or self._board.get(pause.id) is not pause:
            return  # a client attached meanwhile, or the thread was resumed
        log.info("pause %s: %s", pause.id, why)
        try:
            await resume(self._board, pause, why, timeout_s=RESPONSE_TIMEOUT_S)
        except (RequestFailed, ConnectionLost, TimeoutError) as error:
            log.warning("pause %s cannot be resumed: %s", pause.id, error)

    async def _log_in_job(self, pause: Pause, text: str) -> None:
        """Make the paused process write a line to its job's log."""
        try:
            session = pause.process.session
            frame = await pause.process.top_frame(pause.thread_id, timeout_s=RESPONSE_TIMEOUT_S)
            at = f"{pause.record.get('file')}:{pause.record.get('line')}"
            call = f"__import__('raydebug.worker.pause', None, None, ('say',)).say({text!r}, {at!r})"
            await session.request(
                "evaluate", {"expression": call, "frameId": frame["id"]}, timeout_s=RESPONSE_TIMEOUT_S
            )
        except (RequestFailed, ConnectionLost, TimeoutError, LookupError) as error:
            log.warning("pause %s: '%s' was not written to the job's log: %s", pause.id, text, error)


def _where(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename.rpartition('/')[2]}:{last.lineno} {last.name})"
