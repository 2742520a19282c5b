"""Ctrl-C while something is waited for: stop the waiting, nothing else."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
NOT_WAITED_FOR = "*** not waited for any longer; the code still runs there, and what comes next waits for it"


class Interrupted(Exception):
    """The person pressed Ctrl-C while we waited."""


async def interruptible(awaitable: Awaitable[T]) -> T:
    """Wait for something until it is there, or Ctrl-C.

    Raises:
        Interrupted: Ctrl-C came first; the awaitable is cancelled.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(awaitable)
    asked = False

    def stop() -> None:
        nonlocal asked
        asked = True
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if asked:
            raise Interrupted from None
        raise
    finally:
        ignore_interrupts()


def ignore_interrupts() -> None:
    """Take Ctrl-C from Python's default, which would break off in the middle of a command."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)


async def interruptible_there(
    running: asyncio.Future[T], interrupt: Callable[[], Awaitable[None]], *, timeout_s: float = 1.5
) -> T:
    """Wait for what runs in a paused process; Ctrl-C interrupts it there, and its own answer tells how it ended.

    Args:
        running: the command.
        interrupt: raises KeyboardInterrupt in the process.
        timeout_s: how long the answer may take after that, in seconds.

    Raises:
        Interrupted: the code there did not listen; nobody waits for it any longer.
    """
    try:
        return await interruptible(asyncio.shield(running))
    except Interrupted:
        await interrupt()
        await asyncio.wait([running], timeout=timeout_s)
        if not running.done():
            running.cancel()
            raise
        return running.result()
