"""Several pauses at one prompt: they are attached at the same time, join as they come, and leave when they end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from raydebug import render
from raydebug.console import commands
from raydebug.console.debugger import CommandFailed
from raydebug.console.labels import NotAnAddress, joined, label, pick, split_address
from raydebug.console.member import Member
from raydebug.console.paint import Paint
from raydebug.console.screen import location
from raydebug.console.selection import Pause, Selection
from raydebug.console.session import DebugSession, Door
from raydebug.errors import Exit, RaydebugError
from raydebug.render import visible

_LOOK_PERIOD_S = 0.5
_Outcome = tuple[Member, str | CommandFailed]


class Group:
    """The pauses at a prompt.

    Args:
        door: the gateway.
        selection: which pauses belong here.
        list_pauses: asks the gateway for all of its pauses; blocks.
        paint: colours.
    """

    def __init__(self, door: Door, selection: Selection, list_pauses: Callable[[], list[Pause]], paint: Paint) -> None:
        self.selection = selection
        self.members: list[Member] = []
        self.current: Member | None = None
        self.empty = asyncio.Event()
        self._door, self._list_pauses, self._paint = door, list_pauses, paint
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: set[str] = set()
        self._left_on_purpose = True

    # Joining and leaving

    async def begin(self, *, whole: bool, timeout_s: float | None) -> None:
        """Attach all pauses of the selection that wait; where there is none yet, wait for it.

        Args:
            whole: wait until every rank that the selection names is there.
            timeout_s: limit of the wait, in seconds.

        Raises:
            RaydebugError: none came in time, or none could be attached.
        """
        free, held = self.selection.split(await asyncio.to_thread(self._list_pauses))
        if not free or (whole and self.selection.missing(free)):
            free, held = await self._wait(whole, timeout_s)
        failures = await self._join(free)
        self._tell_held(held)
        if not self.members:
            raise failures[0]
        self._watch(self._look_for_more())

    async def _wait(self, whole: bool, timeout_s: float | None) -> tuple[list[Pause], list[Pause]]:
        free, held = self.selection.split(await asyncio.to_thread(self._list_pauses))
        try:
            async with asyncio.timeout(timeout_s):
                with render.waiting(f"waits for {self.selection}; Ctrl-C leaves"):
                    while not free or (whole and self.selection.missing(free)):
                        await asyncio.sleep(_LOOK_PERIOD_S)
                        free, held = self.selection.split(await asyncio.to_thread(self._list_pauses))
        except TimeoutError as error:
            missing = ", ".join(map(str, sorted(self.selection.missing(free))))
            raise RaydebugError(
                f"{self.selection}: not all paused within {timeout_s:g} s",
                cause=f"missing: {f'ranks {missing}' if missing else 'no such pause waits'}"
                + (f"; {len(held)} held by other clients" if held else ""),
                fix="wait longer with --timeout SECONDS, or see `raydebug paused`",
                code="pause.none-in-time",
                exit_code=Exit.TIMEOUT,
            ) from error
        return free, held

    async def _join(self, pauses: Iterable[Pause]) -> list[RaydebugError]:
        """Attach pauses at the same time; return why some could not be."""
        taken = {member.label for member in self.members}
        coming: list[tuple[Member, Pause]] = []
        for pause in pauses:
            number = next(self._numbers)
            name = label(pause.get("rank"), number, taken)
            taken.add(name)
            coming.append((Member(number, name, pause.get("rank"), self._paint), pause))
        results = await asyncio.gather(*(self._attach(member, pause) for member, pause in coming))
        if self.current is None and self.members:
            self.current = self.members[0]
        return [failure for failure in results if failure is not None]

    async def _attach(self, member: Member, pause: Pause) -> RaydebugError | None:
        try:
            session = await DebugSession.attach(
                self._door, str(pause["id"]), steal=self.selection.steal, on_output=member.hear
            )
        except RaydebugError as failure:
            if self.members:
                member.say(f"not taken: {visible(failure.cause, keep='')}", tell=render.say)
            return failure
        member.take(session)
        member.debugger.peers = lambda: [one.debugger for one in self.members]
        self.members.append(member)
        self.members.sort(key=lambda one: (one.rank is None, one.rank or 0, one.number))
        self._watch(self._until_gone(member))
        return None

    async def _look_for_more(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_PERIOD_S)
            with contextlib.suppress(RaydebugError):  # a gateway that is gone ends the sessions, and they tell it
                free, held = self.selection.split(await asyncio.to_thread(self._list_pauses))
                known = {str(member.debugger.session.pause.get("id")) for member in self.members}
                before = set(self.members)
                await self._join(pause for pause in free if str(pause["id"]) not in known)
                for member in self.members:
                    if member not in before:
                        member.say(f"joined: {await location(member.debugger)}")
                self._tell_held(pause for pause in held if str(pause["id"]) not in known)

    def _tell_held(self, pauses: Iterable[Pause]) -> None:
        new = [pause for pause in pauses if str(pause["id"]) not in self._held]
        self._held.update(str(pause["id"]) for pause in new)
        if new:
            ids = ", ".join(str(pause["id"]) for pause in new)
            render.say(f"left out, another client holds them: pause {ids} (--steal takes them over)")

    async def _until_gone(self, member: Member) -> None:
        session = member.debugger.session
        await session.ended.wait()
        self.members.remove(member)
        self._left_on_purpose &= session.process_gone and session.running and session.resumed_by == "continue"
        member.say(f"left: {visible(session.lost().cause, keep='')}")
        if self.current is member:
            self.current = self.members[0] if self.members else None
            if self.current is not None:
                self.current.say("is the current one now")
        if not self.members:
            self.empty.set()

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def leave(self) -> None:
        """Let go of all pauses; those that stand stay paused."""
        followers = [member.stopping for member in self.members if member.stopping is not None]
        for task in [*self._tasks, *followers]:
            task.cancel()
        await asyncio.gather(*(member.debugger.session.leave() for member in self.members), return_exceptions=True)

    def ended(self) -> Exit:
        """Return the exit code when nobody is left.

        Raises:
            RaydebugError: they did not end because they were let go on.
        """
        if self._left_on_purpose:
            return Exit.OK
        raise RaydebugError(
            "the session ended: no pause is left",
            cause="each of them is gone; the lines above say why",
            fix="list what is paused now with `raydebug paused`",
            code="session.process-gone",
            exit_code=Exit.SESSION_LOST,
        )

    # Commands

    def address(self, line: str) -> tuple[list[Member], str]:
        """Return whom a command is for, and the command; an address alone makes its rank the current one.

        Raises:
            CommandFailed: nobody is meant by it.
        """
        known = [(member.number, member.rank) for member in self.members]
        try:
            to, command = split_address(line, is_command=commands.parse(line)[0] is not None)
            if to is None:
                return ([self.current] if self.current else []), command
            numbers = pick(to, known)
        except NotAnAddress as error:
            raise CommandFailed(str(error)) from error
        members = [member for member in self.members if member.number in numbers]
        if not command:
            if len(members) != 1:
                raise CommandFailed(f"@{to} is {joined([one.label for one in members])}: name one of them alone")
            self.current = members[0]
        return members, command

    async def run(self, members: list[Member], command: str) -> list[_Outcome]:
        """Run a command at several pauses at the same time; one that speaks of all is run once."""
        parsed, _ = commands.parse(command)
        if parsed is not None and parsed.of_all:
            members = members[:1]
        results = await asyncio.gather(*(self._run_at(member, command) for member in members))
        return list(zip(members, results, strict=True))

    async def _run_at(self, member: Member, command: str) -> str | CommandFailed:
        if not command:
            return "runs" if member.running else await location(member.debugger)
        try:
            return await member.run(command)
        except RaydebugError as lost:
            return CommandFailed(lost.what)

    def show(self, outcomes: list[_Outcome], command: str) -> bool:
        """Print what a command said at each; False when it failed somewhere."""
        parsed, _ = commands.parse(command)
        for member, text in outcomes:
            if isinstance(text, CommandFailed):
                member.say(self._paint(f"*** {text}", "red"), tell=render.say)
            elif text and parsed is not None and parsed.of_all:
                render.out(text)
            elif text:
                member.say(text)
        return not any(isinstance(text, CommandFailed) for _, text in outcomes)

    @staticmethod
    async def wait_stopped(members: Iterable[Member], *, timeout_s: float | None = None) -> list[Member]:
        """Wait until the threads of these have stopped, or are gone; return those that still run."""
        tasks = {member.stopping for member in members if member.stopping is not None and not member.stopping.done()}
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        return [member for member in members if member.stopping is not None and not member.stopping.done()]
