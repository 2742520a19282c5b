"""Pauses that nobody looks at hold no cluster for ever: at their limit they go on, and say so in the job's log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

from raydebug.dap.session import ConnectionLost, RequestFailed
from raydebug.gateway.pauses import Pause, Pauses

log = logging.getLogger("raydebug.gateway")

LIMIT_S = 3600.0
LOOK_EVERY_S = 0.25
WARN_FROM_S = 60.0  # a limit that is shorter needs no warning at half of it
ANSWER_S = 10.0


class Expiry:
    """Ends pauses that waited too long without a debugger.

    Args:
        pauses: the cluster's.
        limit_s: for pauses whose breakpoint sets none of its own; 0 for no limit.
    """

    def __init__(self, pauses: Pauses, limit_s: float = LIMIT_S) -> None:
        self._pauses = pauses
        self._limit_s = limit_s
        self._free_since: dict[Pause, float] = {}
        self._warned: set[Pause] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def watch(self) -> None:
        """Look at all pauses again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._look(time.time())

    def _look(self, now: float) -> None:
        listed = self._pauses.listed()
        for gone in self._free_since.keys() - set(listed):
            del self._free_since[gone]
            self._warned.discard(gone)
        for pause in listed:
            limit_s = float(pause.record.get("expires_s") or self._limit_s)
            if pause.client is not None or pause.stopped is None or limit_s <= 0:
                self._free_since.pop(pause, None)
                self._warned.discard(pause)
                pause.expires_at = None
                continue
            since = self._free_since.setdefault(pause, now)
            pause.expires_at = since + limit_s
            if now >= since + limit_s:
                del self._free_since[pause]
                self._do(self._go_on(pause, f"{limit_s:g} s without a debugger: it goes on"))
            elif limit_s >= WARN_FROM_S and now >= since + limit_s / 2 and pause not in self._warned:
                self._warned.add(pause)
                rest = f"{limit_s - (now - since):.0f}"
                self._do(self._say(pause, f"paused for {now - since:.0f} s: in {rest} s it goes on, unless attached"))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _go_on(self, pause: Pause, why: str) -> None:
        await self._say(pause, why)
        if pause.client is not None or self._pauses.get(pause.id) is not pause:
            return  # somebody came at the last moment
        log.info("pause %s: %s", pause.id, why)
        pause.stopped = None
        try:
            await pause.process.go_on(pause, why, timeout_s=ANSWER_S)
        except (RequestFailed, ConnectionLost, TimeoutError) as error:
            log.warning("pause %s does not go on: %s", pause.id, error)

    async def _say(self, pause: Pause, text: str) -> None:
        """Let the paused process write a line to its job's log."""
        try:
            session = pause.process.session
            stack = await session.request("stackTrace", {"threadId": pause.thread_id, "levels": 1}, timeout_s=ANSWER_S)
            at = f"{pause.record.get('file')}:{pause.record.get('line')}"
            call = f"__import__('raydebug.worker.pause', None, None, ('say',)).say({text!r}, {at!r})"
            frame_id = stack["stackFrames"][0]["id"]
            await session.request("evaluate", {"expression": call, "frameId": frame_id}, timeout_s=ANSWER_S)
        except (RequestFailed, ConnectionLost, TimeoutError, LookupError) as error:
            log.warning("pause %s cannot say '%s': %s", pause.id, text, error)
