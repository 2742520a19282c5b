"""Ctrl-C while something is waited for: stop the waiting, nothing else."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


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
