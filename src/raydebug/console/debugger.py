"""What all commands share: the session, sources, breakpoints and evaluation; and the record of one command."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raydebug.console import probes
from raydebug.console.breakpoint_table import BreakpointTable
from raydebug.console.frames import Frame, Function, function_at, read_local
from raydebug.console.session import DebugSession, EvaluationFailed
from raydebug.protocol.wire import Message
from raydebug.render import Paint, visible

TYPED_VALUE_CHARS = 4_000  # of a value at the prompt: two screens
SCRIPT_VALUE_CHARS = 60_000  # pydevd 1.8.22 cuts values after 2**16


class CommandFailed(Exception):
    """A command failed; the message is for the user, without the `***`."""


def name_rank(pause: Message) -> str:
    """Return the name of a single pause."""
    return f"rank {pause['rank']}" if pause.get("rank") is not None else f"pause {pause.get('id', '?')}"


class Debugger:
    """The state of one debug session at a prompt or in a script.

    Args:
        session: the attached pause.
        paint: colours of the screen.
        interactive: whether a person types; a script is asked no questions.
        print_text: where text of the paused process goes while a command runs.
    """

    def __init__(
        self,
        session: DebugSession,
        paint: Paint,
        *,
        interactive: bool,
        print_text: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.session = session
        self.paint = paint
        self.interactive = interactive
        self.print_text = print_text
        self.breakpoints = BreakpointTable(session)
        self.displayed: dict[str, str] = {}
        self.listed_to: int | None = None  # last line that `list` showed; None: begin at the current line
        self.steps_left: list[str] = []  # of a step that takes several, one after each stop
        self.leaving = False
        self.value_chars = TYPED_VALUE_CHARS if interactive else SCRIPT_VALUE_CHARS
        self.label = name_rank(session.pause)
        self.peers: Callable[[], Sequence[Debugger]] = lambda: (self,)  # all ranks at this prompt, this one included
        self._files: dict[str, list[str]] = {}

    @property
    def width(self) -> int:
        """Columns of the terminal, read each time: it can be resized."""
        return shutil.get_terminal_size().columns

    @property
    def frame(self) -> Frame:
        """The selected frame.

        Raises:
            CommandFailed: the thread has no Python frame.
        """
        frame = self.session.stack.frame
        if frame is None:
            raise CommandFailed("this thread has no Python frame")
        return frame

    @property
    def frame_or_none(self) -> Frame | None:
        return self.session.stack.frame

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
            if long:
                with contextlib.suppress(
                    ValueError
                ):  # in `clipboard` context errors come back as values; `repl` below raises them
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

    # Sources

    async def lines(self, frame: Frame) -> list[str]:
        """Return the source of a frame: the file on this machine, else in the process; empty when there is none.

        The two files may differ; usually both sides share one checkout.
        """
        if frame.path not in self._files:
            found = read_local(frame.path)
            if found is None:
                # Not DAP's `source`: for a file without text pydevd 1.8.22 returns decompiled nonsense (seen with
                # Ray's _raylet.pyx).
                code = f"__import__('json').dumps(__import__('linecache').getlines({frame.path!r}))"
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
        run: the handler; returns the text to print.
        bare: it takes no argument (so `n + 1` cannot step by mistake).
        needs: the name of its argument, when that is required.
        of_all: its output is about every rank at the prompt, so it is run once.
    """

    names: tuple[str, ...]
    usage: str
    help: str
    run: Callable[[Debugger, str], Awaitable[str]]
    bare: bool = False
    needs: str = ""
    of_all: bool = False
