"""One pause of a conversation: its debug session, its label, and what to print when its thread stops again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raydebug import render
from raydebug.console import commands
from raydebug.console.commands.inspect import changed_displays
from raydebug.console.debugger import CommandFailed, Debugger
from raydebug.console.session import DebugSession, Output
from raydebug.console.view import location, opening
from raydebug.render import Paint, visible

# Output that is not shown, because we report the same: pydevd's advice after 3 s of an evaluation
# (pydevd_net_command_factory_json.py, 1.8.22), and the gateway's last message, the reason of its `terminated`.
_REPLACED_OUTPUT = ("Evaluating: ", "raydebug: ")


class RankSession:
    """An attached pause.

    Args:
        number: its number in the conversation, from 1.
        label: its name at the start of each of its lines; None for the only pause of a conversation.
        rank: rank of its process, if known.
        paint: colours.
    """

    def __init__(self, number: int, label: str | None, rank: int | None, paint: Paint) -> None:
        self.number, self.rank = number, rank
        self.debugger: Debugger
        self.stopping: asyncio.Task[None] | None = None
        self._label, self._paint = label, paint
        self._unfinished = ""

    def begin(self, session: DebugSession, *, interactive: bool) -> None:
        """Start with an attached session."""
        self.debugger = Debugger(session, self._paint, interactive=interactive)
        if self._label is not None:
            self.debugger.label = self._label

    @property
    def label(self) -> str:
        """Its name among others: `rank 3`, `#5`."""
        return self.debugger.label if self._label is None else self._label

    @property
    def running(self) -> bool:
        """Whether its thread runs, or has stopped and the stop is not printed yet."""
        return self.debugger.session.running or (self.stopping is not None and not self.stopping.done())

    @property
    def stepping(self) -> bool:
        """Whether its thread runs only to the end of a step."""
        return self.running and self.debugger.session.resumed_by != "continue"

    def say(self, text: str, *, to: Callable[[str], None] = render.out) -> None:
        """Print text, each line after the label."""
        mark = "" if self._label is None else self._paint(f"[{self._label}]", "cyan") + " "
        to("\n".join(f"{mark}{line}" for line in text.split("\n")))

    async def run(self, command: str) -> str | CommandFailed:
        """Run a command and return its output, or its failure; when it resumes the thread, print the next stop.

        Raises:
            RaydebugError: the session is lost.
        """
        if self.running:
            return CommandFailed("is running; wait until it stops")
        try:
            text = await commands.run(self.debugger, command)
        except CommandFailed as failed:
            return failed
        finally:
            self._finish_line()
        if self.debugger.session.running:
            self.stopping = asyncio.ensure_future(self._show_stop())
            # Where the group only prints that the session ended, asyncio must not complain about this failure.
            self.stopping.add_done_callback(lambda task: task.cancelled() or task.exception())
        return text

    async def _show_stop(self) -> None:
        self.say(await wait_for_stop(self.debugger))

    def hear(self, output: Output) -> None:
        """Print log points and what evaluated code prints; with labels whole lines at a time.

        The job's own stdout is not redirected, it is in its log.
        """
        text = visible(output.text)
        if output.category == "stdout" and self._label is None:
            render.out_raw(text)
        elif output.category == "stdout":
            *lines, self._unfinished = (self._unfinished + text).split("\n")
            for line in lines:
                self.say(line)
        elif (
            self._label is None
            and output.category in ("important", "stderr")
            and not output.text.startswith(_REPLACED_OUTPUT)
        ):
            render.say(text.rstrip("\n"))

    def _finish_line(self) -> None:
        if self._unfinished:
            self.say(self._unfinished)
            self._unfinished = ""

    async def leave(self) -> None:
        """Detach; a suspended thread stays paused where a gateway holds it."""
        if self.stopping is not None:
            self.stopping.cancel()
            await asyncio.gather(self.stopping, return_exceptions=True)
        session = self.debugger.session
        if not (session.stays_paused or session.running or session.ended.is_set()):
            render.say("the task is resumed: without a gateway a pause ends with its debugger")
        await session.leave()


async def wait_for_stop(debugger: Debugger) -> str:
    """Wait until the thread stops again, and return the text to show.

    Raises:
        RaydebugError: the session is lost.
    """
    session = debugger.session
    before = session.stack
    fresh = await session.wait_stop()
    while debugger.steps_left and session.stop.get("reason") == "step" and not fresh:
        await session.resume(debugger.steps_left.pop(0))
        fresh = await session.wait_stop()
    debugger.steps_left = []
    debugger.listed_to = None
    await debugger.breakpoints.forget_once()
    newest = session.stack.frames[0] if session.stack.frames else None
    used = await debugger.breakpoints.note_stop(newest.path, newest.line) if newest else []
    if session.post_mortem or (fresh and debugger.interactive):
        return "\n".join(filter(None, [await opening(debugger), await changed_displays(debugger)]))
    lines = [f"Deleted breakpoint {one.number} at {visible(one.place)}" for one in used]
    returned = len(before.frames) - len(session.stack.frames)
    if returned > 0 and not fresh:
        lines.append(await _return_value(debugger, before.frames[returned - 1].function))
    lines += [await location(debugger), await changed_displays(debugger)]
    return "\n".join(filter(None, lines))


async def _return_value(debugger: Debugger, function: str) -> str:
    """Return a line with the value that a function has just returned; empty when pydevd does not report it."""
    name = f"(return) {function}"  # pydevd 1.8.22 with showReturnValue; of methods `(return) Class.method`
    for variable in await debugger.session.locals():
        reported = str(variable.get("name", ""))
        if reported == name or (reported.startswith("(return) ") and reported.endswith("." + function)):
            return debugger.paint(visible(f"--Return-- {function} -> {variable.get('value')}"), "dim")
    return ""
