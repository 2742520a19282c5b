"""The prompt at one pause: a person types commands."""

from __future__ import annotations

import asyncio
from pathlib import Path

from raydebug import render
from raydebug.console import commands
from raydebug.console.debugger import CommandFailed, Debugger
from raydebug.console.interrupt import NOT_WAITED_FOR, Interrupted, interruptible, interruptible_there
from raydebug.console.keyboard import Ended, Keyboard
from raydebug.console.screen import opening
from raydebug.console.status import status
from raydebug.console.stops import next_stop
from raydebug.errors import Exit, RaydebugError

_QUIET_S = 0.3  # a step shorter than this needs no word about waiting
_SLOW_S = 2.0
_LEAVES = "Leaving lets the task go on: without a gateway nothing holds it. [y]es, leave; [b]ack to the debugger: "
_GOES_ON = "Does the task go on? [y]es, [n]o: it stays paused, [b]ack to the debugger: "


class Conversation:
    """A person at the prompt.

    Args:
        debugger: an attached debugger.
        state_dir: where the history is kept.
    """

    def __init__(self, debugger: Debugger, state_dir: Path) -> None:
        self._debugger = debugger
        self._keyboard = Keyboard(state_dir, lambda: debugger, lambda: status(debugger))

    async def run(self) -> Exit:
        """Talk until the person leaves or the session ends.

        Raises:
            RaydebugError: the session is lost.
        """
        render.out(await opening(self._debugger))
        while True:
            if self._debugger.session.running and not await self._until_stop():
                return Exit.OK
            line = await self._read()
            if line is None:
                self._debugger.leaving = True
            elif not await self._run(line):
                return Exit.OK
            if self._debugger.leaving and await self._left():
                return Exit.OK

    async def _read(self) -> str | None:
        """Return the next line to run; None for Ctrl-D."""
        session = self._debugger.session
        rank = session.pause.get("rank")
        label = f"(raydebug {rank}) " if rank is not None else "(raydebug) "
        try:
            return await self._keyboard.command(self._debugger.paint(label, "bold"), session.ended)
        except Ended:
            raise session.lost() from None

    async def _run(self, line: str) -> bool:
        """Run the commands of a line; False when the person left while the thread ran."""
        for command in commands.split(line):
            if self._debugger.session.running and not await self._until_stop():
                return False
            try:
                text = await self._outcome(command)
            except CommandFailed as failed:
                render.out(self._debugger.paint(f"*** {failed}", "red"))
                break
            except Interrupted:
                render.out(NOT_WAITED_FOR)
                break
            if text:
                render.out(text)
            if self._debugger.leaving:
                break
        return True

    async def _outcome(self, command: str) -> str:
        running = asyncio.ensure_future(commands.run(self._debugger, command))
        telling = asyncio.get_running_loop().call_later(_SLOW_S, self._tell_slow, command)
        try:
            return await interruptible_there(running, self._debugger.session.interrupt)
        finally:
            telling.cancel()

    def _tell_slow(self, command: str) -> None:
        render.say(self._debugger.paint(f"'{command}' still runs there; Ctrl-C interrupts it", "dim"))

    async def _until_stop(self) -> bool:
        """Show the next stop; False when the person goes, or the process has ended as it may."""
        session = self._debugger.session
        stopping = asyncio.ensure_future(next_stop(self._debugger))
        try:
            await interruptible(asyncio.wait([stopping], timeout=_QUIET_S))
            if not stopping.done():
                render.say(
                    self._debugger.paint("running; waits for the next stop here, Ctrl-C leaves it running", "dim")
                )
            render.out(await interruptible(stopping))
        except Interrupted:
            stopping.cancel()
            render.say("left; the task runs on")
            return False
        except RaydebugError:
            if session.process_gone and session.resumed_by == "continue":
                render.say(f"process {session.pause.get('pid', '?')} has ended")
                return False
            raise
        return True

    async def _left(self) -> bool:
        """Ask whether the task goes on; False takes the person back to the debugger."""
        self._debugger.leaving = False
        session = self._debugger.session
        try:
            goes_on = await self._keyboard.goes_on(_GOES_ON if session.stays_paused else _LEAVES, session.ended)
        except Ended:
            raise session.lost() from None
        if goes_on:
            await session.resume("continue")
        elif goes_on is not None and not session.stays_paused:
            return False
        elif goes_on is not None:
            render.say("stays paused; `raydebug attach` brings you back")
        return goes_on is not None
