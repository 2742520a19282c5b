"""The prompt at several pauses: a person types commands, and stops are told as they come."""

from __future__ import annotations

import asyncio
from pathlib import Path

from raydebug import render
from raydebug.console import commands
from raydebug.console.debugger import CommandFailed, Debugger
from raydebug.console.group import Group
from raydebug.console.interrupt import NOT_WAITED_FOR, Interrupted, interruptible, interruptible_there
from raydebug.console.keyboard import Ended, Keyboard
from raydebug.console.member import Member
from raydebug.console.paint import Paint
from raydebug.console.status import status
from raydebug.errors import Exit

_SLOW_S = 2.0
_GOES_ON = "Do the tasks go on? [y]es, all; [n]o: they stay paused; [b]ack to the debugger: "


class GroupConversation:
    """A person at the prompt of several pauses.

    Args:
        group: attached pauses.
        paint: colours.
        state_dir: where the history is kept.
    """

    def __init__(self, group: Group, paint: Paint, state_dir: Path) -> None:
        self._group, self._paint = group, paint
        self._keyboard = Keyboard(state_dir, self._current, self._status)

    def _current(self) -> Debugger | None:
        return self._group.current.debugger if self._group.current else None

    def _status(self) -> str:
        current = self._current()
        return "" if current is None else status(current, others=len(self._group.members) - 1)

    async def run(self) -> Exit:
        """Talk until the person leaves or nobody is left.

        Raises:
            RaydebugError: the last session is lost.
        """
        await self._run("ranks")
        render.say(self._paint("@0,3 p x asks ranks 0 and 3, @* all; @3 alone makes rank 3 the current one; h", "dim"))
        try:
            while True:
                label = f"(raydebug {self._group.current.label if self._group.current else '-'}) "
                line = await self._keyboard.command(self._paint(label, "bold"), self._group.empty)
                leaving = line is None or await self._run(line)
                if leaving and await self._left():
                    return Exit.OK
        except Ended:
            return self._group.ended()

    async def _run(self, line: str) -> bool:
        """Run the commands of a line; say whether the person wants to leave."""
        for command in commands.split(line):
            try:
                members, rest = self._group.address(command)
                outcomes = await self._waited_for(members, rest)
                if not self._group.show(outcomes, rest):
                    break
                stepping = [one for one in members if one.running and one.debugger.session.resumed_by != "continue"]
                await interruptible(Group.wait_stopped(stepping))
            except CommandFailed as failed:
                render.out(self._paint(f"*** {failed}", "red"))
                break
            except Interrupted:
                render.out(NOT_WAITED_FOR)
                break
            if any(member.debugger.leaving for member in members):
                for member in members:
                    member.debugger.leaving = False
                return True
        return False

    async def _waited_for(self, members: list[Member], command: str) -> list[tuple[Member, str | CommandFailed]]:
        async def interrupt() -> None:
            await asyncio.gather(*(member.debugger.session.interrupt() for member in self._group.members))

        running = asyncio.ensure_future(self._group.run(members, command))
        telling = asyncio.get_running_loop().call_later(_SLOW_S, self._tell_slow, command)
        try:
            return await interruptible_there(running, interrupt)
        finally:
            telling.cancel()

    def _tell_slow(self, command: str) -> None:
        render.say(self._paint(f"'{command}' still runs there; Ctrl-C interrupts it", "dim"))

    async def _left(self) -> bool:
        standing = [member for member in self._group.members if not member.running]
        if not standing:
            render.say("left; the tasks run on")
            return True
        goes_on = await self._keyboard.goes_on(_GOES_ON, self._group.empty)
        if goes_on:
            await asyncio.gather(*(one.debugger.session.resume("continue") for one in standing), return_exceptions=True)
        elif goes_on is not None:
            render.say("they stay paused; `raydebug attach all` brings you back")
        return goes_on is not None
