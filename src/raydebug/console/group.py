"""The pauses of one conversation: they are attached, join as they begin, and leave when they end.

A single pause is a group of one: its lines have no label, and the loss of its session is the error that ends the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from raydebug import render
from raydebug.console import commands
from raydebug.console.commands.stopping import wait_for_stop
from raydebug.console.debugger import CommandFailed, Debugger
from raydebug.console.selection import NotAnAddress, Selection, joined, label, pick, split_address
from raydebug.console.session import DebugSession, GatewayAddress
from raydebug.console.unmanaged_session import UnmanagedCluster
from raydebug.console.view import location
from raydebug.errors import Exit, RaydebugError
from raydebug.protocol import messages
from raydebug.protocol.listings import ListedPause
from raydebug.render import Paint, visible

NEXT = "next"
_POLL_PERIOD_S = 0.5
_Outcome = tuple[Debugger, str | CommandFailed]


class Group:
    """The pauses of a conversation. Attach them with `attach_one`, `attach_selection` or `join`.

    Args:
        address: the gateway, or a cluster without one.
        kind: the class of its debuggers; another one says where output goes.
    """

    def __init__(
        self,
        address: GatewayAddress | UnmanagedCluster,
        paint: Paint,
        *,
        interactive: bool,
        kind: type[Debugger] = Debugger,
    ) -> None:
        self.debuggers: list[Debugger] = []
        self.current: Debugger | None = None
        self.lone = False
        self.empty = asyncio.Event()
        self.paint = paint
        self._selection = Selection()
        self._address, self._interactive, self._kind = address, interactive, kind
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: set[str] = set()
        self._all_resumed = True  # no session ended but by `c` and the end of its process

    # Joining and leaving

    async def attach_one(self, target: str, *, cluster: str, steal: bool, timeout_s: float | None) -> None:
        """Attach one pause; see `attach.attach_pause`.

        Raises:
            RaydebugError: refused, or out of time.
        """
        self.lone = True
        debugger = self._new(1, None, None)
        opened = self._address.open(target, steal=steal, on_output=debugger.hear)
        named = target.replace(messages.THREAD, " thread ", 1)
        if target.startswith((messages.PID, messages.WORKER)):
            late = RaydebugError(
                f"{named} did not stop within {timeout_s or 0:g} s",
                cause="its thread did not reach a line of the user's code; the messages above say what it runs",
                fix="wait longer (without --timeout: until Ctrl-C), or set a breakpoint with `raydebug break add`",
                code="process.not-stopped",
                exit_code=Exit.TIMEOUT,
            )
            session = await _in_time(opened, timeout_s, f"asks {named} to pause; Ctrl-C leaves it alone", late)
        elif target == NEXT:
            late = RaydebugError(
                f"no pause came within {timeout_s or 0:g} s",
                cause=f"no thread of cluster '{cluster}' stopped while we waited",
                fix="wait longer with --timeout SECONDS, or see what runs with `raydebug ps`",
                code="pause.none-in-time",
                exit_code=Exit.TIMEOUT,
            )
            waits = f"waits for the next pause of cluster '{cluster}'; Ctrl-C leaves"
            session = await _in_time(opened, timeout_s, waits, late)
        else:
            session = await opened
        self.current = debugger
        self._add(debugger, session)

    async def attach_selection(
        self, selection: Selection, list_pauses: Callable[[], list[ListedPause]], *, timeout_s: float | None
    ) -> None:
        """Attach all waiting pauses of a selection; if there are none yet, wait for one (a script: for every rank).

        Raises:
            RaydebugError: none came in time, or none could be attached.
        """
        self._selection, self._list_pauses = selection, list_pauses
        free, held = await self._split()
        if self._incomplete(free):
            free, held = await self._wait(timeout_s)
        failures = await self.join(free)
        self._tell_held(held)
        if not self.debuggers:
            raise failures[0]
        self._watch(self._look_for_more())

    async def _split(self) -> tuple[list[ListedPause], list[ListedPause]]:
        return self._selection.split(await asyncio.to_thread(self._list_pauses))

    def _incomplete(self, free: list[ListedPause]) -> bool:
        return not free or (not self._interactive and bool(self._selection.missing(free)))

    async def _wait(self, timeout_s: float | None) -> tuple[list[ListedPause], list[ListedPause]]:
        free, held = await self._split()
        try:
            async with asyncio.timeout(timeout_s):
                with render.waiting(f"waits for {self._selection}; Ctrl-C leaves"):
                    while self._incomplete(free):
                        await asyncio.sleep(_POLL_PERIOD_S)
                        free, held = await self._split()
        except TimeoutError as error:
            missing = ", ".join(map(str, sorted(self._selection.missing(free))))
            raise RaydebugError(
                f"{self._selection}: not all paused within {timeout_s:g} s",
                cause=f"missing: {f'ranks {missing}' if missing else 'no such pause waits'}"
                + (f"; {len(held)} held by other clients" if held else ""),
                fix="wait longer with --timeout SECONDS, or see `raydebug paused`",
                code="pause.none-in-time",
                exit_code=Exit.TIMEOUT,
            ) from error
        return free, held

    async def join(self, pauses: Iterable[ListedPause]) -> list[RaydebugError]:
        """Attach pauses concurrently; return the failures."""
        taken = {debugger.label for debugger in self.debuggers}
        coming: list[tuple[Debugger, ListedPause]] = []
        for pause in pauses:
            number = next(self._numbers)
            name = label(pause.get("rank"), number, taken)
            taken.add(name)
            coming.append((self._new(number, name, pause.get("rank")), pause))
        results = await asyncio.gather(*(self._attach(debugger, pause) for debugger, pause in coming))
        if self.current is None and self.debuggers:
            self.current = self.debuggers[0]
        return [failure for failure in results if failure is not None]

    async def _attach(self, debugger: Debugger, pause: ListedPause) -> RaydebugError | None:
        try:
            session = await self._address.open(str(pause["id"]), steal=self._selection.steal, on_output=debugger.hear)
        except RaydebugError as failure:
            if self.debuggers:
                debugger.say(f"not attached: {visible(failure.cause, keep='')}", to=render.say_painted)
            return failure
        self._add(debugger, session)
        return None

    def _new(self, number: int, name: str | None, rank: int | None) -> Debugger:
        interactive = self.lone and self._interactive
        return self._kind(number, name, rank, paint=self.paint, interactive=interactive, peers=self.debuggers)

    def _add(self, debugger: Debugger, session: DebugSession) -> None:
        debugger.begin(session)
        self.debuggers.append(debugger)
        self.debuggers.sort(key=lambda one: (one.rank is None, one.rank or 0, one.number))
        self._watch(self._until_gone(debugger))

    async def _look_for_more(self) -> None:
        while True:
            await asyncio.sleep(_POLL_PERIOD_S)
            with contextlib.suppress(RaydebugError):  # when the gateway is gone, the sessions end and report it
                free, held = await self._split()
                known = {str(debugger.session.pause.get("id")) for debugger in self.debuggers}
                before = set(self.debuggers)
                await self.join(pause for pause in free if str(pause["id"]) not in known)
                for debugger in self.debuggers:
                    if debugger not in before:
                        debugger.say(f"joined: {await location(debugger)}")
                self._tell_held(pause for pause in held if str(pause["id"]) not in known)

    def _tell_held(self, pauses: Iterable[ListedPause]) -> None:
        new = [pause for pause in pauses if str(pause["id"]) not in self._held]
        self._held.update(str(pause["id"]) for pause in new)
        if new:
            ids = ", ".join(str(pause["id"]) for pause in new)
            render.say(f"left out, another client holds them: pause {ids} (--steal takes them over)")

    async def _until_gone(self, debugger: Debugger) -> None:
        session = debugger.session
        await session.ended.wait()
        self.debuggers.remove(debugger)
        self._all_resumed &= session.process_gone and session.running and session.resumed_by == "continue"
        if not self.lone:
            debugger.say(f"left: {visible(session.lost().cause, keep='')}")
            if self.current is debugger:
                self.current = self.debuggers[0] if self.debuggers else None
                if self.current is not None:
                    self.current.say("is the current one now")
        if not self.debuggers:
            self.empty.set()

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def leave(self) -> None:
        """Detach from all pauses; suspended threads stay paused."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(debugger.leave() for debugger in self.debuggers), return_exceptions=True)

    def ended(self) -> Exit:
        """Return the exit code after the last session has ended.

        Raises:
            RaydebugError: a session ended for another reason than `c`.
        """
        if self.lone and self.current is not None:
            raise self.current.session.lost()
        if self._all_resumed:
            return Exit.OK
        raise RaydebugError(
            "the session ended: no pause is left",
            cause="each of them is gone; the lines above say why",
            fix="list what is paused now with `raydebug paused`",
            code="session.process-gone",
            exit_code=Exit.SESSION_LOST,
        )

    # Commands

    def address(self, line: str) -> tuple[list[Debugger], str]:
        """Return which pauses a command is for, and the command; an address alone makes its rank the current one.

        Raises:
            CommandFailed: the address names no pause.
        """
        if self.lone:
            return list(self.debuggers), line
        known = [(debugger.number, debugger.rank) for debugger in self.debuggers]
        try:
            to, command = split_address(line, is_command=commands.parse(line)[0] is not None)
            if to is None:
                return [debugger for debugger in self.debuggers if debugger is self.current], command
            numbers = pick(to, known)
        except NotAnAddress as error:
            raise CommandFailed(str(error)) from error
        debuggers = [debugger for debugger in self.debuggers if debugger.number in numbers]
        if not command:
            if len(debuggers) != 1:
                names = joined([debugger.label for debugger in debuggers])
                raise CommandFailed(f"@{to} is {names}: name one of them alone")
            self.current = debuggers[0]
        return debuggers, command

    async def run(self, debuggers: list[Debugger], command: str) -> list[_Outcome]:
        """Run a command at several pauses concurrently; a command about all ranks is run once."""
        parsed, _ = commands.parse(command)
        if parsed is not None and parsed.of_all:
            debuggers = debuggers[:1]
        results = await asyncio.gather(*(self._run_at(debugger, command) for debugger in debuggers))
        return list(zip(debuggers, results, strict=True))

    async def _run_at(self, debugger: Debugger, command: str) -> str | CommandFailed:
        """Run a command and return its output, or its failure; when it resumes the thread, print the next stop.

        Raises:
            RaydebugError: the only session of the group is lost.
        """
        if debugger.running:
            return CommandFailed("is running; wait until it stops") if command else "is running"
        if not command:
            return await location(debugger)
        try:
            text = await commands.run(debugger, command)
        except CommandFailed as failed:
            return failed
        except RaydebugError as lost:
            if self.lone:
                raise
            return CommandFailed(lost.what)
        finally:
            debugger.finish_line()
        if debugger.session.running:

            async def show_stop() -> None:
                debugger.say(await wait_for_stop(debugger))

            debugger.stopping = asyncio.ensure_future(show_stop())
            # Where the group only prints that the session ended, asyncio must not complain about this failure.
            debugger.stopping.add_done_callback(lambda task: task.cancelled() or task.exception())
        return text

    def show(self, outcomes: list[_Outcome], command: str) -> bool:
        """Print the output of a command at each pause; return False when it failed at any."""
        parsed, _ = commands.parse(command)
        for debugger, text in outcomes:
            if isinstance(text, CommandFailed):
                debugger.say(self.paint(f"*** {text}", "red"), to=render.say_painted)
            elif text and parsed is not None and parsed.of_all:
                render.out(text)
            elif text:
                debugger.say(text)
        return not any(isinstance(text, CommandFailed) for _, text in outcomes)

    async def wait_stopped(self, debuggers: Iterable[Debugger], *, timeout_s: float | None = None) -> list[Debugger]:
        """Wait until the threads of these pauses have stopped, or are gone; return those that still run.

        Raises:
            RaydebugError: the only session of the group is lost.
        """
        waited = [debugger for debugger in debuggers if debugger.stopping is not None]
        tasks = [debugger.stopping for debugger in waited if debugger.stopping is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            if task.done() and task.exception() is not None and self.lone:
                await task
        return [debugger for debugger in waited if debugger.stopping is not None and not debugger.stopping.done()]


async def _in_time(
    opened: Coroutine[Any, Any, DebugSession], timeout_s: float | None, what: str, late: RaydebugError
) -> DebugSession:
    """Wait for a session and show `what` meanwhile; raise `late` after timeout_s seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            with render.waiting(what):
                return await opened
    except TimeoutError as error:
        raise late from error
