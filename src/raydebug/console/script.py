"""Commands from `-x` or from a pipe: run one after the other, leave at the first that fails."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterable

from raydebug import render
from raydebug.console import commands
from raydebug.console.debugger import CommandFailed, Debugger
from raydebug.console.interrupt import interruptible
from raydebug.console.stops import next_stop
from raydebug.errors import Exit, RaydebugError

STOP_TIMEOUT_S = 60.0


async def from_list(lines: Iterable[str]) -> AsyncIterator[str]:
    """Yield the commands of `-x`."""
    for line in lines:
        yield line


async def from_stdin() -> AsyncIterator[str]:
    """Yield lines of stdin as they come; a program may write them one at a time."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[str]()

    def read() -> None:
        for line in iter(sys.stdin.readline, ""):
            loop.call_soon_threadsafe(queue.put_nowait, line)
        loop.call_soon_threadsafe(queue.put_nowait, "")

    # A daemon: a pipe that nobody closes must not keep us from leaving.
    threading.Thread(target=read, name="stdin", daemon=True).start()
    while line := await queue.get():
        yield line


async def run_script(debugger: Debugger, lines: AsyncIterator[str], *, timeout_s: float = STOP_TIMEOUT_S) -> Exit:
    """Run commands and return the exit code. A `c` that nothing follows is not waited for.

    Args:
        debugger: an attached debugger.
        lines: the commands; each may hold several, divided by `;;`.
        timeout_s: limit of each wait for a stop, in seconds.

    Raises:
        RaydebugError: the session is lost, or no stop came in time.
        Interrupted: Ctrl-C.
    """
    async for line in lines:
        for command in commands.split(line):
            if debugger.session.running:  # the last command let the thread run, and one more has to see it stopped
                await _show_stop(debugger, timeout_s)
            try:
                text = await interruptible(commands.run(debugger, command))
            except CommandFailed as failed:
                render.say(f"*** {failed}")
                return Exit.FAILED
            if text:
                render.out(text)
            if debugger.leaving:
                return Exit.OK
            if debugger.session.running and debugger.session.resumed_by != "continue":
                await _show_stop(debugger, timeout_s)
    return Exit.OK


async def _show_stop(debugger: Debugger, timeout_s: float) -> None:
    try:
        render.out(await interruptible(next_stop(debugger, timeout_s=timeout_s)))
    except TimeoutError as error:
        raise RaydebugError(
            f"no stop within {timeout_s:g} s",
            cause=f"process {debugger.session.pause.get('pid', '?')} runs since '{debugger.session.resumed_by}'",
            fix="wait longer with --timeout SECONDS, or look at what it does",
            code="session.no-stop",
            exit_code=Exit.TIMEOUT,
        ) from error
