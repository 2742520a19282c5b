"""The prompt: reads lines with history, completion and a status line, runs them, and prints stops as they come."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.patch_stdout import patch_stdout

from raydebug import render
from raydebug.console import commands
from raydebug.console.debugger import CommandFailed, Debugger
from raydebug.console.group import Group
from raydebug.console.interrupt import GAVE_UP, Interrupted, interruptible, interruptible_there
from raydebug.console.view import opening, status
from raydebug.dap import RequestFailed
from raydebug.errors import Exit, RaydebugError

_COMPLETION_TIMEOUT_S = 1.0
_STATUS_PERIOD_S = 1.0
_QUIET_S = 0.3  # a step shorter than this is not announced as running
_SLOW_S = 2.0
_HISTORIES = "debugger_history"
_ADDRESS = re.compile(r"@[#\d,*-]+\s+")
_RESUME_ONE = "Resume the task? [y]es, [n]o: it stays paused, [b]ack to the debugger: "
_RESUME_ALL = "Resume the tasks? [y]es, all; [n]o: they stay paused; [b]ack to the debugger: "
_LEAVE_UNMANAGED = "Without a gateway, leaving resumes the task. [y]es, leave; [b]ack to the debugger: "


class _LeftRunning(Exception):
    """The person stopped waiting for the next stop, or the process ended after `c`."""


class Prompt:
    """A person at the prompt of one pause or several."""

    def __init__(self, group: Group, state_dir: Path) -> None:
        self._group, self._paint = group, group.paint
        self._keyboard = Keyboard(state_dir, Names(lambda: group.current), self._status)

    def _status(self) -> str:
        current = self._group.current
        return "" if current is None else status(current, others=len(self._group.debuggers) - 1)

    async def run(self) -> Exit:
        """Read and run lines until the person leaves or the last session ends.

        Raises:
            RaydebugError: the session is lost.
        """
        if self._group.lone and self._group.current is not None:
            render.out(await opening(self._group.current))
        else:
            await self._run("ranks")
            hint = "@0,3 p x asks ranks 0 and 3, @* all; @3 alone makes rank 3 the current one; h"
            render.say_painted(self._paint(hint, "dim"))
        try:
            while True:
                await self._until_stop()
                line = await self._keyboard.command(self._paint(self._label(), "bold"), self._group.empty)
                if (line is None or await self._run(line)) and await self._leave():
                    return Exit.OK
        except Ended:
            return self._group.ended()
        except _LeftRunning:
            return Exit.OK

    def _label(self) -> str:
        current = self._group.current
        if not self._group.lone:
            return f"(raydebug {current.label if current else '-'}) "
        rank = current.session.pause.get("rank") if current else None
        return f"(raydebug {rank}) " if rank is not None else "(raydebug) "

    async def _run(self, line: str) -> bool:
        """Run the commands of a line; return whether the person wants to leave."""
        for command in commands.split(line):
            await self._until_stop()
            try:
                debuggers, rest = self._group.address(command)
                if not self._group.show(await self._outcomes(debuggers, rest), rest):
                    break
                if not self._group.lone:
                    stepping = [debugger for debugger in debuggers if debugger.stepping]
                    await interruptible(self._group.wait_stopped(stepping))
            except CommandFailed as failed:
                render.out(self._paint(f"*** {failed}", "red"))
                break
            except Interrupted:
                render.out(GAVE_UP)
                break
            if any(debugger.leaving for debugger in debuggers):
                for debugger in debuggers:
                    debugger.leaving = False
                return True
        return False

    async def _outcomes(self, debuggers: list[Debugger], command: str) -> list[tuple[Debugger, str | CommandFailed]]:
        async def interrupt() -> None:
            await asyncio.gather(*(debugger.session.interrupt() for debugger in self._group.debuggers))

        def tell_slow() -> None:
            render.say_painted(self._paint(f"'{command}' is still running; Ctrl-C interrupts it", "dim"))

        running = asyncio.ensure_future(self._group.run(debuggers, command))
        slow = asyncio.get_running_loop().call_later(_SLOW_S, tell_slow)
        try:
            return await interruptible_there(running, interrupt)
        finally:
            slow.cancel()

    async def _until_stop(self) -> None:
        """Wait until the only pause of the group has stopped again; among several, each prints its own stops.

        Raises:
            _LeftRunning: the person has left it running, or its process ended as it may.
            RaydebugError: the session is lost.
        """
        current = self._group.current
        if not self._group.lone or current is None or not current.running:
            return
        session = current.session
        try:
            if await interruptible(self._group.wait_stopped([current], timeout_s=_QUIET_S)):
                render.say_painted(self._paint("running; waiting for the next stop, Ctrl-C leaves it running", "dim"))
            await interruptible(self._group.wait_stopped([current]))
        except Interrupted:
            render.say("left; the task keeps running")
            raise _LeftRunning from None
        except RaydebugError:
            if not (session.process_gone and session.resumed_by == "continue"):
                raise
            render.say(f"process {session.pause.get('pid', '?')} has ended")
            raise _LeftRunning from None

    async def _leave(self) -> bool:
        """Ask whether to resume what is paused; return False to go back to the debugger."""
        lone = self._group.lone
        paused = [debugger for debugger in self._group.debuggers if not debugger.running]
        if not paused and not lone:
            render.say("left; the tasks keep running")
            return True
        held = all(debugger.session.stays_paused for debugger in paused)
        question = _LEAVE_UNMANAGED if not held else _RESUME_ONE if lone else _RESUME_ALL
        resume = await self._keyboard.yes_or_no(question, self._group.empty)
        if resume is None or (not resume and not held):
            return False
        if resume:
            resuming = (debugger.session.resume("continue") for debugger in paused)
            await asyncio.gather(*resuming, return_exceptions=not lone)
        else:
            stays, verb = ("stays", "attach") if lone else ("they stay", "attach all")
            render.say(f"{stays} paused; `raydebug {verb}` brings you back")
        return True


class Ended(Exception):
    """The last session ended while the person typed."""


class Names(Completer):
    """Completes commands, and names and attributes of the selected frame."""

    def __init__(self, debugger: Callable[[], Debugger | None]) -> None:
        self._debugger = debugger

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Return nothing: the frame can be asked only asynchronously, below."""
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield completions of the text before the cursor."""
        text = _ADDRESS.sub("", document.text_before_cursor.lstrip())
        typed = re.search(r"\w*$", text)
        token = typed[0] if typed else ""
        if text == token:
            for name in sorted(commands.BY_NAME):
                if token and name.startswith(token):
                    yield Completion(name, -len(token), display_meta=commands.BY_NAME[name].help)
        for label in await self._ask(text):
            if label.startswith(token) and (token or text.endswith(".")):
                yield Completion(label, -len(token))

    async def _ask(self, text: str) -> list[str]:
        debugger = self._debugger()
        frame = None if debugger is None else debugger.session.stack.frame
        if debugger is None or frame is None or debugger.session.running or not text:
            return []
        arguments = {"text": text, "column": len(text) + 1, "frameId": frame.id}
        with contextlib.suppress(RequestFailed, RaydebugError):
            answer = await debugger.session.request("completions", arguments, timeout_s=_COMPLETION_TIMEOUT_S)
            return [render.visible(str(target.get("label", "")), keep="") for target in answer.get("targets") or []]
        return []


def project_of(folder: Path) -> Path:
    """Return the project of a folder: the nearest parent with a .git, else the folder itself."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)


def history_file(state_dir: Path, project: Path) -> Path:
    """Return the history file of a project; two projects with the same name have two files."""
    name = re.sub(r"[^\w.-]", "_", project.name)[:40] or "root"
    return state_dir / _HISTORIES / f"{name}-{hashlib.blake2b(str(project).encode()).hexdigest()[:8]}"


class Keyboard:
    """Reads lines from a person.

    Args:
        status: returns the text of the line below the prompt; empty: no such line.
    """

    def __init__(self, state_dir: Path, completer: Completer, status: Callable[[], str] = lambda: "") -> None:
        file = history_file(state_dir, project_of(Path.cwd()))
        history: History = FileHistory(str(file))
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.touch(mode=0o600)
        except OSError:
            history = InMemoryHistory()  # a read-only home must not prevent debugging
        self._prompt: PromptSession[str] = PromptSession(
            history=history,
            completer=completer,
            complete_while_typing=False,
            interrupt_exception=Interrupted,  # a KeyboardInterrupt in a task would end the whole event loop
            bottom_toolbar=lambda: status() or None,
            refresh_interval=_STATUS_PERIOD_S,
        )
        # A session of its own keeps its answers out of the history.
        self._question: PromptSession[str] = PromptSession(interrupt_exception=Interrupted)
        self._last = ""

    async def command(self, label: str, ended: asyncio.Event) -> str | None:
        """Return the next line to run; None for Ctrl-D, empty for Ctrl-C.

        Raises:
            Ended: `ended` was set first.
        """
        try:
            line = await self._ask(self._prompt, label, ended)
        except Interrupted:
            return ""
        except EOFError:
            return None
        if line.strip():
            self._last = line
            return line
        return self._last  # pdb: an empty line runs the last command again

    async def yes_or_no(self, question: str, ended: asyncio.Event) -> bool | None:
        """Ask a question; return None to go back to the debugger.

        Raises:
            Ended: `ended` was set first.
        """
        while True:
            try:
                answer = await self._ask(self._question, question, ended)
            except Interrupted:
                return None
            except EOFError:
                return False
            word = answer.strip().lower()
            if word in ("y", "yes", "go"):
                return True
            if word in ("n", "no", "s", "stay"):
                return False
            if word in ("b", "back"):
                return None

    async def _ask(self, prompt: PromptSession[str], label: str, ended: asyncio.Event) -> str:
        with patch_stdout(raw=True):
            typing = asyncio.ensure_future(prompt.prompt_async(ANSI(label)))
            ending = asyncio.ensure_future(ended.wait())
            await asyncio.wait([typing, ending], return_when=asyncio.FIRST_COMPLETED)
            if not typing.done():
                with contextlib.suppress(Exception):  # it may be ending already
                    prompt.app.exit(exception=EOFError())
                with contextlib.suppress(EOFError, Interrupted):
                    await typing
                raise Ended
            ending.cancel()
            return typing.result()
