"""The prompt: a person types commands, with history and completion."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Iterable
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
from raydebug.console.interrupt import Interrupted, interruptible
from raydebug.console.screen import opening
from raydebug.console.stops import next_stop
from raydebug.dap.session import RequestFailed
from raydebug.errors import Exit, RaydebugError

_QUIET_S = 0.3  # a step shorter than this needs no word about waiting
_SLOW_S = 2.0
_COMPLETION_TIMEOUT_S = 1.0
_HISTORY = "debugger_history"
_GOES_ON = "Does the task go on? [y]es, [n]o: it stays paused, [b]ack to the debugger: "


class Names(Completer):
    """Completes commands, and names and attributes as the selected frame knows them."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Offer nothing: the frame can be asked only by the asynchronous form below."""
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Offer what may follow the cursor."""
        text = document.text_before_cursor.lstrip()
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
        frame = self._debugger.session.stack.frame
        if frame is None or not text:
            return []
        arguments = {"text": text, "column": len(text) + 1, "frameId": frame.id}
        with contextlib.suppress(RequestFailed, RaydebugError):
            answer = await self._debugger.session.request("completions", arguments, timeout_s=_COMPLETION_TIMEOUT_S)
            return [render.visible(str(target.get("label", "")), keep="") for target in answer.get("targets") or []]
        return []


def _history(folder: Path) -> History:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / _HISTORY).touch(mode=0o600)
    except OSError:
        return InMemoryHistory()  # a read-only home is no reason not to debug
    return FileHistory(str(folder / _HISTORY))


class Conversation:
    """A person at the prompt.

    Args:
        debugger: an attached debugger.
        state_dir: where the history is kept.
    """

    def __init__(self, debugger: Debugger, state_dir: Path) -> None:
        self._debugger = debugger
        self._prompt: PromptSession[str] = PromptSession(
            history=_history(state_dir),
            completer=Names(debugger),
            complete_while_typing=False,
            interrupt_exception=Interrupted,  # a KeyboardInterrupt in a task would end the whole event loop
        )
        # Of its own, so that its answers are no part of the history.
        self._question: PromptSession[str] = PromptSession(interrupt_exception=Interrupted)
        self._last = ""

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
        rank = self._debugger.session.pause.get("rank")
        label = f"(raydebug {rank}) " if rank is not None else "(raydebug) "
        try:
            line = await self._ask(self._prompt, label)
        except Interrupted:
            return ""
        except EOFError:
            return None
        if line.strip():
            self._last = line
            return line
        return self._last  # pdb: an empty line runs the last command again

    async def _ask(self, prompt: PromptSession[str], label: str) -> str:
        """Read a line, unless the session ends first."""
        session = self._debugger.session
        shown = ANSI(self._debugger.paint(label, "bold"))
        with patch_stdout(raw=True):
            typing = asyncio.ensure_future(prompt.prompt_async(shown))
            ended = asyncio.ensure_future(session.ended.wait())
            await asyncio.wait([typing, ended], return_when=asyncio.FIRST_COMPLETED)
            if not typing.done():
                with contextlib.suppress(Exception):  # it may be just about to end by itself
                    prompt.app.exit(exception=EOFError())
                with contextlib.suppress(EOFError, Interrupted):
                    await typing
                raise session.lost()
            ended.cancel()
            return typing.result()

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
                render.out("*** not waited for any longer; the code still runs there, and what comes next waits for it")
                break
            if text:
                render.out(text)
            if self._debugger.leaving:
                break
        return True

    async def _outcome(self, command: str) -> str:
        running = asyncio.ensure_future(commands.run(self._debugger, command))
        try:
            await interruptible(asyncio.wait([running], timeout=_SLOW_S))
            if not running.done():
                render.say(self._debugger.paint(f"'{command}' still runs there; Ctrl-C stops waiting for it", "dim"))
            return await interruptible(running)
        except Interrupted:
            running.cancel()
            raise

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
        while True:
            try:
                answer = await self._ask(self._question, _GOES_ON)
            except Interrupted:
                return False
            except EOFError:
                answer = "n"
            word = answer.strip().lower()
            if word in ("y", "yes", "go"):
                await self._debugger.session.resume("continue")
                return True
            if word in ("n", "no", "s", "stay"):
                render.say("stays paused; `raydebug attach` brings you back")
                return True
            if word in ("b", "back"):
                return False
