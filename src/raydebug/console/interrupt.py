"""Ctrl-C while we wait: it ends the wait, or interrupts the evaluation in the paused process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
GAVE_UP = "*** stopped waiting; the code still runs in the process, and the next command waits for it"


class Interrupted(Exception):
    """The person pressed Ctrl-C while we waited."""


async def interruptible(awaitable: Awaitable[T]) -> T:
    """Wait for an awaitable, or until Ctrl-C.

    Raises:
        Interrupted: Ctrl-C came first; the awaitable is cancelled.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(awaitable)
    pressed = False

    def stop() -> None:
        nonlocal pressed
        pressed = True
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if pressed:
            raise Interrupted from None
        raise
    finally:
        ignore_interrupts()


def ignore_interrupts() -> None:
    """Replace Python's default handler of Ctrl-C, which would raise in the middle of a command."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)


async def interruptible_there(
    running: asyncio.Future[T], interrupt: Callable[[], Awaitable[None]], *, timeout_s: float = 1.5
) -> T:
    """Wait for a command that runs in a paused process; Ctrl-C interrupts it there, and its response is returned.

    Args:
        running: the command.
        interrupt: raises KeyboardInterrupt in the process.
        timeout_s: limit of the response after that, in seconds.

    Raises:
        Interrupted: the code did not end; the command is cancelled on this side only.
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
