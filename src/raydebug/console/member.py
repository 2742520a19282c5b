"""One of several pauses at a prompt: its session, its name, and what it says when its thread stops or is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raydebug import render
from raydebug.console import commands
from raydebug.console.debugger import CommandFailed, Debugger
from raydebug.console.paint import Paint
from raydebug.console.session import DebugSession, Output
from raydebug.console.stops import next_stop
from raydebug.errors import RaydebugError


class Member:
    """An attached pause among others.

    Args:
        number: of its place at the prompt.
        label: how it is called.
        rank: of its process.
        paint: colours.
    """

    def __init__(self, number: int, label: str, rank: int | None, paint: Paint) -> None:
        self.number, self.label, self.rank = number, label, rank
        self._paint = paint
        self._unfinished = ""
        self.debugger: Debugger
        self.stopping: asyncio.Task[None] | None = None

    def take(self, session: DebugSession) -> None:
        """Begin with an attached session."""
        self.debugger = Debugger(session, self._paint, interactive=False)
        self.debugger.label = self.label

    @property
    def running(self) -> bool:
        return self.debugger.session.running

    def say(self, text: str, *, tell: Callable[[str], None] = render.out) -> None:
        """Print text with the name before each line."""
        mark = self._paint(f"[{self.label}]", "cyan")
        tell("\n".join(f"{mark} {line}" for line in text.split("\n")))

    async def run(self, command: str) -> str | CommandFailed:
        """Run a command and return what it prints, or how it failed; follow the thread when it runs now.

        Raises:
            RaydebugError: the session is lost.
        """
        if self.running:
            return CommandFailed("runs; it can be asked when it stops")
        try:
            text = await commands.run(self.debugger, command)
        except CommandFailed as failed:
            return failed
        finally:
            self._finish_line()
        if self.running:
            self.stopping = asyncio.ensure_future(self._show_stop())
        return text

    async def _show_stop(self) -> None:
        try:
            text = await next_stop(self.debugger)
        except RaydebugError:
            return  # its end is told by whoever watches for it
        self.say(text)

    # What its process writes

    def hear(self, output: Output) -> None:
        """Print what code that we run prints, and log points, whole lines at a time."""
        if output.category == "stdout":
            *lines, self._unfinished = (self._unfinished + render.visible(output.text)).split("\n")
            for line in lines:
                self.say(line)

    def _finish_line(self) -> None:
        if self._unfinished:
            self.say(self._unfinished)
            self._unfinished = ""
