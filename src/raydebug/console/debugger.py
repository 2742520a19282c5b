"""One pause at a prompt: its session, breakpoints, values and sources, which all commands share; and a command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raydebug import render
from raydebug.console import probes
from raydebug.console.frames import Frame, Function, Stack, function_at, is_own_source, read_local
from raydebug.console.session import DebugSession, EvaluationFailed, Output
from raydebug.dap import RequestFailed
from raydebug.protocol.wire import Message
from raydebug.render import Paint, visible

TYPED_VALUE_CHARS = 4_000  # of a value at the prompt: two screens
SCRIPT_VALUE_CHARS = 60_000  # pydevd 1.8.22 cuts values after 2**16
# Output that is not shown, because we report the same: pydevd's advice after 3 s of an evaluation
# (pydevd_net_command_factory_json.py, 1.8.22), and the gateway's last message, the reason of its `terminated`.
_REPLACED_OUTPUT = ("Evaluating: ", "raydebug: ")


class CommandFailed(Exception):
    """A command failed; the message is for the user, without the `***`."""


@dataclass
class Breakpoint:
    """A breakpoint; `line` is the line that the process chose. With a `log` it prints that text and does not stop."""

    number: int
    path: str
    line: int
    condition: str = ""
    temporary: bool = False
    log: str = ""
    hits: int = 0

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


class BreakpointTable:
    """The table. DAP's setBreakpoints replaces all breakpoints of a file, so they are sent file by file."""

    def __init__(self, session: DebugSession) -> None:
        self._session = session
        self._next = 1
        self._scratch: tuple[str, tuple[int, ...]] = ("", ())
        self.table: list[Breakpoint] = []

    async def add(
        self, path: str, line: int, *, condition: str = "", temporary: bool = False, log: str = ""
    ) -> Breakpoint:
        """Set a breakpoint and return it, with the line that the process chose.

        Args:
            path: the file as the process knows it.
            line: where in it.
            condition: an expression; the breakpoint stops only where it is true.
            temporary: it stops once.
            log: print this text, with each `{expression}` filled in, and do not stop.

        Raises:
            ValueError: the process refuses it; the message says why.
        """
        new = Breakpoint(self._next, path, line, condition, temporary, log)
        self.table.append(new)
        try:
            answers = await self._send(path)
        except RequestFailed as failed:
            self.table.remove(new)
            raise ValueError(str(failed)) from failed
        answer = answers[[point for point in self.table if point.path == path].index(new)]
        if not answer.get("verified"):
            self.table.remove(new)
            await self._send(path)
            raise ValueError(str(answer.get("message") or "the process refused it"))
        new.line = int(answer.get("line") or line)
        self._next += 1
        return new

    async def remove(self, gone: list[Breakpoint]) -> None:
        self.table = [point for point in self.table if point not in gone]
        for path in {point.path for point in gone}:
            await self._send(path)

    async def stop_once_at(self, path: str, lines: list[int]) -> None:
        """Also stop at these lines until `forget_once`, for `until`."""
        self._scratch = (path, tuple(lines))
        await self._send(path)

    async def forget_once(self) -> None:
        """Remove the lines of `stop_once_at`."""
        (path, lines), self._scratch = self._scratch, ("", ())
        if lines:
            await self._send(path)

    async def note_stop(self, path: str, line: int) -> list[Breakpoint]:
        """Count a stop at a line; remove and return the temporary breakpoints among those hit."""
        hit = [point for point in self.table if point.path == path and point.line == line and not point.log]
        for point in hit:
            point.hits += 1
        used = [point for point in hit if point.temporary]
        if used:
            await self.remove(used)
        return used

    def lines_in(self, path: str) -> set[int]:
        return {point.line for point in self.table if point.path == path}

    async def _send(self, path: str) -> list[Message]:
        wanted: list[Message] = []
        for point in self.table:
            if point.path == path:
                texts = {"condition": point.condition, "logMessage": point.log}
                wanted.append({"line": point.line, **{name: text for name, text in texts.items() if text}})
        if self._scratch[0] == path:
            wanted += [{"line": line} for line in self._scratch[1]]
        answer = await self._session.request("setBreakpoints", {"source": {"path": path}, "breakpoints": wanted})
        return list(answer.get("breakpoints") or [])


class Debugger:
    """One pause of a conversation, at a prompt or in a script: its debug session, its label, the state of its commands.

    Args:
        label: its name at the start of each of its lines; None for the only pause of a conversation.
        interactive: whether a person types; a script is asked no questions.
        peers: all pauses of the conversation, this one included.
    """

    session: DebugSession
    breakpoints: BreakpointTable
    label: str
    first_line = 1  # of the source that is known

    def __init__(
        self,
        number: int,
        label: str | None,
        rank: int | None,
        *,
        paint: Paint,
        interactive: bool,
        peers: Sequence[Debugger],
    ) -> None:
        self.number, self.rank, self.peers = number, rank, peers
        self.paint, self.interactive = paint, interactive
        self.stopping: asyncio.Task[None] | None = None  # waits for the next stop, and prints it
        self.displayed: dict[str, str] = {}
        self.listed_to: int | None = None  # last line that `list` showed; None: begin at the current line
        self.steps_left: list[str] = []  # of a step that takes several, one after each stop
        self.leaving = False
        self.value_chars = TYPED_VALUE_CHARS if interactive else SCRIPT_VALUE_CHARS
        self._mark = "" if label is None else paint(f"[{label}]", "cyan") + " "
        self._label = label
        self._unfinished = ""
        self._files: dict[str, list[str]] = {}

    def begin(self, session: DebugSession) -> None:
        """Start with an attached session."""
        self.session, self.breakpoints = session, BreakpointTable(session)
        rank = session.pause.get("rank")
        alone = f"rank {rank}" if rank is not None else f"pause {session.pause.get('id', '?')}"
        self.label = alone if self._label is None else self._label

    @property
    def running(self) -> bool:
        """Whether its thread runs, or has stopped and the stop is not printed yet."""
        return self.session.running or (self.stopping is not None and not self.stopping.done())

    @property
    def stepping(self) -> bool:
        """Whether its thread runs only to the end of a step."""
        return self.running and self.session.resumed_by != "continue"

    async def leave(self) -> None:
        """Detach; a suspended thread stays paused where a gateway holds it."""
        if self.stopping is not None:
            self.stopping.cancel()
            await asyncio.gather(self.stopping, return_exceptions=True)
        if not (self.session.stays_paused or self.session.running or self.session.ended.is_set()):
            render.say("the task is resumed: without a gateway a pause ends with its debugger")
        await self.session.leave()

    # The screen

    def say(self, text: str, *, to: Callable[[str], None] = render.out) -> None:
        """Print text, each line after the label."""
        to("\n".join(f"{self._mark}{line}" for line in text.split("\n")))

    def hear(self, output: Output) -> None:
        """Print log points and what evaluated code prints; with labels whole lines at a time.

        The job's own stdout is not redirected, it is in its log.
        """
        text, alone = visible(output.text), self._label is None
        if output.category == "stdout" and alone:
            render.out_raw(text)
        elif output.category == "stdout":
            *lines, self._unfinished = (self._unfinished + text).split("\n")
            for line in lines:
                self.say(line)
        elif alone and output.category in ("important", "stderr") and not output.text.startswith(_REPLACED_OUTPUT):
            render.say(text.rstrip("\n"))

    def finish_line(self) -> None:
        """End a line that the process has printed without a newline."""
        if self._unfinished:
            self.say(self._unfinished)
            self._unfinished = ""

    @property
    def width(self) -> int:
        """Columns of the terminal, read each time: it can be resized."""
        return shutil.get_terminal_size().columns

    @property
    def stack(self) -> Stack:
        return self.session.stack

    async def locals(self) -> list[Message]:
        """Return the selected frame's locals as DAP variables."""
        return await self.session.locals()

    def lines_with_breakpoints(self, path: str) -> set[int]:
        return self.breakpoints.lines_in(path)

    @property
    def frame(self) -> Frame:
        """The selected frame.

        Raises:
            CommandFailed: the thread has no Python frame.
        """
        frame = self.stack.frame
        if frame is None:
            raise CommandFailed("this thread has no Python frame")
        return frame

    # Values

    async def value(self, code: str) -> str | None:
        """Evaluate code in the selected frame and return its text, safe to print.

        Raises:
            CommandFailed: it raised; the text is the exception's own line.
        """
        try:
            answer = await self.session.evaluate(code)
        except EvaluationFailed as failed:
            raise CommandFailed(visible(probes.exception_line(str(failed)))) from failed
        return None if answer is None else visible(answer)

    async def document(self, code: str, *, long: bool = False) -> Any:
        """Evaluate code whose value is JSON, and return the document.

        Args:
            code: an expression.
            long: its value may exceed 64 KiB; after a failure the code is evaluated a second time.

        Raises:
            CommandFailed: it raised, or its value is cut off.
        """
        try:
            if long:  # in `clipboard` context errors come back as values; `repl` below raises them
                with contextlib.suppress(ValueError):
                    return json.loads(await self.session.evaluate(code, context="clipboard") or "null")
            return json.loads(await self.session.evaluate(code) or "null")
        except EvaluationFailed as failed:
            raise CommandFailed(visible(probes.exception_line(str(failed)))) from failed
        except ValueError as error:
            raise CommandFailed("the answer is too long to be read") from error

    def expression(self, text: str) -> str:
        """Return the text when it is one expression.

        Raises:
            CommandFailed: it is not; the message is Python's own.
        """
        try:
            return probes.check_expression(text)
        except probes.NotPython as error:
            raise CommandFailed(str(error)) from error

    async def shown(self, expression: str) -> str:
        """Return the value of an expression as `p` prints it.

        Raises:
            CommandFailed: it raised, or is no expression.
        """
        return await self.value(probes.as_shown(self.expression(expression), self.value_chars)) or ""

    async def tensor(self, expression: str) -> Message:
        """Return the description of a tensor (`tensor_probe.describe`).

        Raises:
            CommandFailed: the expression raised, or is none.
        """
        found: Message = await self.document(probes.as_description(self.expression(expression)))
        return found

    # Sources

    async def lines(self, frame: Frame) -> list[str]:
        """Return the source of a frame: our file on this machine, else that of the process; empty if there is none.

        The two files may differ; usually both sides share one checkout. Where the process has a copy, it is asked: our
        file may have been edited since.
        """
        if frame.path not in self._files:
            found = read_local(frame.path) if not frame.there and is_own_source(frame.path) else None
            if found is None:
                # Not DAP's `source`: for a file without text pydevd 1.8.22 returns decompiled nonsense (seen with
                # Ray's _raylet.pyx).
                code = f"__import__('json').dumps(__import__('linecache').getlines({frame.there or frame.path!r}))"
                with contextlib.suppress(CommandFailed):
                    found = await self.document(code, long=True)
            self._files[frame.path] = [line.rstrip("\n") for line in found or []]
        return self._files[frame.path]

    async def line_of(self, frame: Frame) -> str:
        """Return the source line that a frame is at; empty when there is none."""
        lines = await self.lines(frame)
        return lines[frame.line - 1] if 0 < frame.line <= len(lines) else ""

    async def function(self) -> Function | None:
        """Return the function that the selected frame is in; None for a module."""
        return function_at(await self.lines(self.frame), self.frame.line)


@dataclass(frozen=True)
class Command:
    """A command.

    Args:
        names: its name and aliases, pdb's own.
        usage, help: for `help`.
        run: the handler of a `Debugger`, or of that of a snapshot; returns the text to print.
        bare: it takes no argument (so `n + 1` cannot step by mistake).
        needs: the name of its argument, when that is required.
        of_all: its output is about every rank at the prompt, so it is run once.
    """

    names: tuple[str, ...]
    usage: str
    help: str
    run: Callable[[Any, str], Awaitable[str]]
    bare: bool = False
    needs: str = ""
    of_all: bool = False
