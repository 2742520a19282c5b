"""What the commands of the debugger share: the session, sources, breakpoints, and how values are asked for."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from raydebug.console import values
from raydebug.console.breakpoints import Breakpoints
from raydebug.console.frames import Frame
from raydebug.console.paint import Paint
from raydebug.console.session import DebugSession, EvaluationFailed
from raydebug.console.source import Function, function_at, read_local
from raydebug.dap.wire import Message
from raydebug.render import visible

TYPED_VALUE_CHARS = 4_000  # of a value that a person asked for: two screens
SCRIPT_VALUE_CHARS = 60_000  # pydevd 1.8.22 cuts what it answers after 2**16


class CommandFailed(Exception):
    """A command could not do what it was asked for; the text is for people, without the `***`."""


def name_rank(pause: Message) -> str:
    """Return how a lone pause is called."""
    return f"rank {pause['rank']}" if pause.get("rank") is not None else f"pause {pause.get('id', '?')}"


class Debugger:
    """One person's (or script's) view of a debug session.

    Args:
        session: the attached pause.
        paint: colours of the screen.
        interactive: whether a person types; a script is never asked anything.
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
        self.breakpoints = Breakpoints(session)
        self.displayed: dict[str, str] = {}
        self.listed_to: int | None = None  # last line that `list` showed; None: begin at the current line
        self.steps_left: list[str] = []  # of a step that takes several, one after each stop
        self.leaving = False
        self.value_chars = TYPED_VALUE_CHARS if interactive else SCRIPT_VALUE_CHARS
        self.label = name_rank(session.pause)
        self.peers: Callable[[], Sequence[Debugger]] = lambda: (self,)  # the ranks at this prompt, itself among them
        self._files: dict[str, list[str]] = {}

    @property
    def width(self) -> int:
        """Columns of the terminal, asked anew each time: it can be resized."""
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
            raise CommandFailed(visible(values.exception_line(str(failed)))) from failed
        return None if answer is None else visible(answer)

    async def document(self, code: str, *, long: bool = False) -> Any:
        """Evaluate code whose value is JSON, and return what it says.

        Args:
            code: an expression.
            long: its value may be over 64 KiB; then it has to be one that can be evaluated twice, after a failure.

        Raises:
            CommandFailed: it raised, or its value is cut off.
        """
        try:
            if long:
                with contextlib.suppress(ValueError):  # a failure reads like a value here; below it is one
                    return json.loads(await self.session.evaluate(code, context="clipboard") or "null")
            return json.loads(await self.session.evaluate(code) or "null")
        except EvaluationFailed as failed:
            raise CommandFailed(visible(values.exception_line(str(failed)))) from failed
        except ValueError as error:
            raise CommandFailed("the answer is too long to be read") from error

    def expression(self, text: str) -> str:
        """Return the text when it is one expression.

        Raises:
            CommandFailed: it is none, in Python's own words.
        """
        try:
            return values.check_expression(text)
        except values.NotPython as error:
            raise CommandFailed(str(error)) from error

    # Sources

    async def lines(self, frame: Frame) -> list[str]:
        """Return a frame's source: the file on this machine, else the one that the process sees; empty when neither.

        The file here may be another one than there; a checkout shared by both is the usual case.
        """
        if frame.path not in self._files:
            found = read_local(frame.path)
            if found is None:
                # Not DAP's `source`: where there is no text, pydevd 1.8.22 answers it with decompiled nonsense,
                # and does not say so (seen with Ray's _raylet.pyx).
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
