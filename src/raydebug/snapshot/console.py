"""The terminal console of a snapshot: the live console's commands that inspect, and a few more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from raydebug import render
from raydebug.console import attach, commands
from raydebug.console.commands import inspect, stopping
from raydebug.console.debugger import Command, CommandFailed, Debugger
from raydebug.console.frames import AROUND, Frame, Function, Stack, listing
from raydebug.console.interrupt import Interrupted, ignore_interrupts, interruptible
from raydebug.console.view import EXCEPTION_LINES, heading, location
from raydebug.errors import Exit
from raydebug.protocol.snapshot import CAUSE, CONTEXT, MEMBER, SavedFrame, SnapshotDocument
from raydebug.protocol.wire import Message
from raydebug.render import Paint, moment, visible
from raydebug.settings.files import state_dir
from raydebug.snapshot.gpu_memory import gpu_memory_lines
from raydebug.snapshot.values import NotThere, Values, tensor_facts, tensor_line

LINES_OF_MEMORY = 6
_RELATIONS = {CAUSE: "caused by", CONTEXT: "raised while handling", MEMBER: "in the group:"}
_LOOKS = ("w", "u", "d", "l", "ll", "p", "tensor", "a", "locals")  # commands of the live console that need no process


def exception_lines(document: SnapshotDocument) -> list[str]:
    """Return the chain of exceptions, the raised one first, each after its relation to another."""
    lines = []
    for exception in document["exceptions"]:
        left_out = exception.get("left_out", 0)
        kind = exception.get("type", "?") + (f" ({left_out} frames in the middle are not saved)" if left_out else "")
        text = f"{kind}: {exception.get('text', '')}".removesuffix(": ")
        lines.append(" ".join(filter(None, (_RELATIONS.get(exception.get("relation", "")), text))))
    return lines


def raised_frames(document: SnapshotDocument, number: int = 0) -> list[int]:
    """Return the indices of an exception's frames, innermost first; of a paused thread all frames."""
    exceptions = document["exceptions"]
    return exceptions[number].get("frames", []) if exceptions else list(range(len(document["frames"])))


def dap_frame(index: int, frame: SavedFrame) -> Message:
    """Return a frame as in DAP's stackTrace; its id is its index plus 1."""
    return {"id": index + 1, "name": frame.get("function", "?"), "line": frame.get("line", 0), "column": 1,
            "source": {"path": frame.get("file", "?"), "name": frame.get("file", "?").rpartition("/")[2]}}  # fmt: skip


def source_lines(frame: SavedFrame) -> list[str]:
    """Return the saved source of a frame, after a blank line for each one before it."""
    return [""] * (frame.get("source_from", 1) - 1) + frame["source"] if frame.get("source") else []


class SavedDebugger(Debugger):
    """A debugger that shows a snapshot in place of a paused thread."""

    def __init__(self, document: SnapshotDocument, paint: Paint, *, interactive: bool) -> None:
        super().__init__(1, None, document["summary"].get("rank"), paint=paint, interactive=interactive, peers=())
        self.snapshot, self.values = document, Values(document["values"])
        self.select_exception(0)

    def select_exception(self, number: int) -> None:
        """Select the frames of an exception of the chain, by its number from 0."""
        frames = self.snapshot["frames"]
        self._stack = Stack.parse([dap_frame(at, frames[at]) for at in raised_frames(self.snapshot, number)])
        self.listed_to = None

    @property
    def saved(self) -> SavedFrame:
        return self.snapshot["frames"][self.frame.id - 1]

    @property
    def stack(self) -> Stack:
        return self._stack

    @property
    def first_line(self) -> int:  # type: ignore[override]
        return self.saved.get("source_from", 1)

    async def lines(self, frame: Frame) -> list[str]:
        return source_lines(self.snapshot["frames"][frame.id - 1])

    async def function(self) -> Function:
        """Return the part of the function that is saved."""
        last = self.first_line + len(self.saved.get("source", ())) - 1
        return Function(self.frame.function, self.first_line, last, tuple(self.saved.get("arguments", ())), ())

    async def locals(self) -> list[Message]:
        found = self.saved.get("locals", {}).items()
        return [{"name": name, "value": self.values.text(at, self.value_chars), "type": "local"} for name, at in found]

    async def shown(self, expression: str) -> str:
        """Return the value of a name with attributes and items.

        Raises:
            CommandFailed: it is not in the snapshot, or is code.
        """
        return self.values.text(self.find(expression), self.value_chars)

    async def tensor(self, expression: str) -> Message:
        """Return the description of a tensor.

        Raises:
            CommandFailed: it is not in the snapshot, or is code.
        """
        value = self.values[self.find(expression)]
        if "tensor" not in value:
            return {"error": f"not a tensor or an array: {value.get('type', '?')}"}
        storage, names = value["tensor"].get("storage"), self.values.tensors(self.saved.get("locals", {}))
        others = [name for name, at in names.items() if self.values[at]["tensor"].get("storage") == storage]
        return tensor_facts(value, [name for name in others if name != expression] if storage else ())

    def lines_with_breakpoints(self, path: str) -> set[int]:
        """Return nothing: a snapshot has no breakpoints."""
        return set()

    def find(self, expression: str) -> int:
        """Return the index of the value of an expression in the selected frame.

        Raises:
            CommandFailed: it is not in the snapshot.
        """
        try:
            return self.values.evaluate(self.saved.get("locals", {}), expression)
        except NotThere as error:
            raise CommandFailed(visible(str(error), keep="")) from error

    async def run(self, line: str) -> str:
        """Run one command and return its output.

        Raises:
            CommandFailed: the message is for the user.
        """
        command, argument = commands.parse(line, BY_NAME)
        if command is None:
            live = commands.parse(line)[0]
            if live is not None:
                raise CommandFailed(f"'{live.names[0]}' needs a live process; a snapshot has none")
            return await self.shown(argument) if argument else ""
        if command.needs and not argument:
            raise CommandFailed(f"{command.names[0]} needs {command.needs}: {command.usage}")
        return await command.run(self, argument)

    def opening(self) -> str:
        """Return the view of the snapshot: who crashed and how, then the source at the selected frame."""
        document, frame = self.snapshot, self.stack.frame
        summary, depth = document["summary"], len(self.stack.frames)
        who = {**document.get("process", {}), **summary, "thread": document.get("thread")}
        step = f"step {document['step']}, " if document.get("step") is not None else ""
        raised, *others = exception_lines(document) or [""]
        lines, count = raised.splitlines(), EXCEPTION_LINES - len(others)
        if len(lines) > count:
            lines = [*lines[: max(1, count - 1)], "... (`exceptions` shows all of it)"]
        texts = [*lines, *(other.partition("\n")[0] for other in others)]
        if "gpu_memory" in document:
            texts += gpu_memory_lines(document["gpu_memory"])[:LINES_OF_MEMORY]
        text = heading(
            who,
            exception="\n".join(texts),
            function=frame.function if frame else "?",
            place=f"{frame.path}:{frame.line}" if frame else "?",
            depth=f"{step}{depth} frame{'s' if depth != 1 else ''}, {moment(summary.get('at'))}",
            paint=self.paint,
            width=self.width,
        )
        if frame is None or not self.saved.get("source"):
            return f"{text}\n\n  (no source of this frame in the snapshot)\n"
        first, last = max(frame.line - AROUND, self.first_line), frame.line + AROUND
        source = listing(source_lines(self.saved), first, last, current=frame.line, paint=self.paint)
        return f"{text}\n\n{source}\n"


async def converse(document: SnapshotDocument, lines: Sequence[str]) -> Exit:
    """Run commands, from `lines`, stdin or the prompt; return the exit code, as `attach` does."""
    ignore_interrupts()
    debugger = SavedDebugger(document, Paint.for_stdout(), interactive=not lines and sys.stdin.isatty())
    if not lines:
        render.out(debugger.opening())
    if debugger.interactive:
        return await _prompt(debugger, state_dir())
    try:
        return await interruptible(_script(debugger, lines))
    except Interrupted:
        return Exit.INTERRUPTED


async def _script(debugger: SavedDebugger, lines: Sequence[str]) -> Exit:
    async for line in attach.from_list(lines) if lines else attach.from_stdin():
        if not await _run(debugger, line):
            return Exit.FAILED
        if debugger.leaving:
            break
    return Exit.OK


async def _prompt(debugger: SavedDebugger, folder: Path) -> Exit:
    from prompt_toolkit.completion import WordCompleter  # 100 ms that a script does not need

    from raydebug.console.prompt import Keyboard

    words = WordCompleter(lambda: [*BY_NAME, *(debugger.saved.get("locals", {}) if debugger.stack.frames else ())])
    rank = "" if debugger.rank is None else f" {debugger.rank}"
    keyboard, never = Keyboard(folder, words), asyncio.Event()
    while not debugger.leaving:
        line = await keyboard.command(debugger.paint(f"(snapshot{rank}) ", "bold"), never)
        if line is None:
            break
        await _run(debugger, line)
    return Exit.OK


async def _run(debugger: SavedDebugger, line: str) -> bool:
    """Run the commands of a line; return whether none failed."""
    for command in commands.split(line):
        try:
            output = await debugger.run(command)
        except CommandFailed as failed:
            text = debugger.paint(f"*** {failed}", "red")
            render.out(text) if debugger.interactive else render.say_painted(text)
            return False
        if output:
            render.out(output)
        if debugger.leaving:
            break
    return True


# Commands of its own


async def _pretty(debugger: SavedDebugger, argument: str) -> str:
    values, width, at = debugger.values, debugger.width, debugger.find(argument)
    parts = [f"  {label} = {values.text(child, width)}" for label, child in values.children(at)]
    return "\n".join([values.text(at, width), *parts])


async def _tensors(debugger: SavedDebugger, argument: str) -> str:
    values = debugger.values
    tensors = {name: tensor_line(values[at]) for name, at in values.tensors(debugger.saved.get("locals", {})).items()}
    lines = [f"{debugger.paint(name, 'cyan')}  {visible(line, keep='')}" for name, line in tensors.items()]
    return "\n".join(lines) or "(no tensors)"


async def _exceptions(debugger: SavedDebugger, argument: str) -> str:
    lines = exception_lines(debugger.snapshot)
    if not argument:
        numbered = (f"{number}  {visible(line)}" for number, line in enumerate(lines))
        return "\n".join(numbered) or "(no exception: a pause)"
    if not argument.isdigit() or int(argument) >= len(lines):
        raise CommandFailed(f"there are exceptions 0 to {len(lines) - 1}" if lines else "there is no exception")
    remote = debugger.snapshot["exceptions"][int(argument)].get("remote")
    from_ray = [f"the remote traceback, from Ray:\n{visible(remote)}"] if remote else []
    if not raised_frames(debugger.snapshot, int(argument)):
        raise CommandFailed("\n".join(["no frames of it are saved", *from_ray]))
    debugger.select_exception(int(argument))
    return "\n".join([*from_ray, await location(debugger)])


async def _help(debugger: SavedDebugger, argument: str) -> str:
    return commands.help_text(BY_NAME, argument)


TABLE = (
    *(command for command in inspect.COMMANDS if command.names[0] in _LOOKS),
    Command(("pp",), "pp EXPR", "The value, then each of its parts on its own line.", _pretty, needs="EXPR"),
    Command(("tensors",), "tensors", "All tensors that the locals of this frame lead to.", _tensors, bare=True),
    Command(("exceptions",), "exceptions [number]", "The chain of exceptions; the frames of one.", _exceptions),
    Command(("h", "help"), "h [command]", "This table, or one command.", _help),
    Command(("q", "quit", "exit"), "q", "Leave.", stopping.leave, bare=True),
)
BY_NAME = {name: command for command in TABLE for name in command.names}
