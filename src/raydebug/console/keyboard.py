"""The keyboard: lines with history, completion and a status line below, until what they are about is gone."""

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
from raydebug.console.debugger import Debugger
from raydebug.console.interrupt import Interrupted
from raydebug.dap.session import RequestFailed
from raydebug.errors import RaydebugError

_COMPLETION_TIMEOUT_S = 1.0
_STATUS_PERIOD_S = 1.0
_HISTORIES = "debugger_history"
_ADDRESS = re.compile(r"@[#\d,*-]+\s+")


class Ended(Exception):
    """What the person was typing about is gone."""


class Names(Completer):
    """Completes commands, and names and attributes as the selected frame knows them."""

    def __init__(self, debugger: Callable[[], Debugger | None]) -> None:
        self._debugger = debugger

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Offer nothing: the frame can be asked only by the asynchronous form below."""
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Offer what may follow the cursor."""
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
        if debugger is None or debugger.frame_or_none is None or debugger.session.running or not text:
            return []
        frame = debugger.session.stack.frames[debugger.session.stack.selected]
        arguments = {"text": text, "column": len(text) + 1, "frameId": frame.id}
        with contextlib.suppress(RequestFailed, RaydebugError):
            answer = await debugger.session.request("completions", arguments, timeout_s=_COMPLETION_TIMEOUT_S)
            return [render.visible(str(target.get("label", "")), keep="") for target in answer.get("targets") or []]
        return []


def project_of(folder: Path) -> Path:
    """Return the project that a folder belongs to: the nearest one above with a .git, else the folder itself."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)


def history_file(state_dir: Path, project: Path) -> Path:
    """Return where the history of a project's prompts is kept; two projects of one name have two files."""
    name = re.sub(r"[^\w.-]", "_", project.name)[:40] or "root"
    return state_dir / _HISTORIES / f"{name}-{hashlib.blake2b(str(project).encode()).hexdigest()[:8]}"


def _history(file: Path) -> History:
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()  # a read-only home is no reason not to debug
    return FileHistory(str(file))


class Keyboard:
    """Reads lines from a person.

    Args:
        state_dir: where histories are kept.
        debugger: gives the one whose names are completed.
        status: gives the text of the line below the prompt; empty: no such line.
    """

    def __init__(
        self, state_dir: Path, debugger: Callable[[], Debugger | None], status: Callable[[], str] = lambda: ""
    ) -> None:
        self._prompt: PromptSession[str] = PromptSession(
            history=_history(history_file(state_dir, project_of(Path.cwd()))),
            completer=Names(debugger),
            complete_while_typing=False,
            interrupt_exception=Interrupted,  # a KeyboardInterrupt in a task would end the whole event loop
            bottom_toolbar=lambda: status() or None,
            refresh_interval=_STATUS_PERIOD_S,
        )
        # Of its own, so that its answers are no part of the history.
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

    async def goes_on(self, question: str, ended: asyncio.Event) -> bool | None:
        """Ask whether what is paused goes on, y or n; None takes the person back.

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
                with contextlib.suppress(Exception):  # it may be just about to end by itself
                    prompt.app.exit(exception=EOFError())
                with contextlib.suppress(EOFError, Interrupted):
                    await typing
                raise Ended
            ending.cancel()
            return typing.result()
