"""The gateway's background tasks: one that dies is restarted, and reported with its reason."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from raydebug.protocol.listings import GatewayTask

log = logging.getLogger("raydebug.gateway")

FIRST_WAIT_S, MOST_WAIT_S = 1.0, 60.0  # before a background task is restarted
RESET_AFTER_S = 60.0  # after a task has run this long, the back-off starts again at the shortest wait
MAX_REASON = 300  # characters

_kept: set[asyncio.Task[Any]] = set()  # until they end: an event loop itself keeps none alive


def keep(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine to its end, in a task of its own."""
    task = asyncio.ensure_future(work)
    _kept.add(task)
    task.add_done_callback(_kept.discard)


async def keep_running(task: GatewayTask, run: Callable[[], Awaitable[None]], wait_s: float = FIRST_WAIT_S) -> None:
    """Run a background task for as long as the gateway lives, and note in `task` what becomes of it.

    After it has died it is restarted after `wait_s`, doubled each time, up to a minute.
    """
    first_wait_s = wait_s
    while True:
        began = time.monotonic()
        try:
            await run()
            task["reason"] = "it returned"
        except Exception as error:  # noqa: BLE001 - whatever it was: without the task pauses would never expire
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{last.filename.rpartition('/')[2]}:{last.lineno} {last.name}"
            task["reason"] = f"{type(error).__name__}: {error} ({place})"[:MAX_REASON]
        if time.monotonic() - began >= RESET_AFTER_S:
            wait_s = first_wait_s
        log.error("background task '%s' died: %s; it is restarted in %g s", task["name"], task["reason"], wait_s)
        task["state"] = "restarting"
        await asyncio.sleep(wait_s)
        task["state"], task["restarts"] = "running", task["restarts"] + 1
        wait_s = min(wait_s * 2, MOST_WAIT_S)
