"""Where a paused thread is: its stack with the selected frame, and source text with the current line marked."""

from __future__ import annotations

import ast
import io
import re
import sysconfig
import tokenize
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from raydebug.protocol.wire import Message
from raydebug.render import Paint, visible
from raydebug.settings.files import read_bounded

# Frames below user code: Ray's worker loop; and above it: what stops the thread.
_NOT_USER_CODE = re.compile(r"/(site|dist)-packages/(ray|debugpy)/|/ray/_private/|(^|/)_raylet\.pyx$")
SOURCE_BYTES_MAX = 4 * 2**20
AROUND = 5  # lines before and after the current one, as pdb's `list`
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Frame:
    """One frame; `id` is the DAP frame id, valid until the thread runs again.

    Args:
        there: the file as the process names it, where this machine has a copy of it as `path`; else empty.
    """

    id: int
    function: str
    path: str
    line: int
    there: str = ""

    @classmethod
    def parse(cls, frame: Message) -> Frame:
        source = frame.get("source") or {}
        return cls(
            id=frame["id"],
            # pydevd marks the frame that a post-mortem thread is in; the user wants the frame that raised.
            function=str(frame.get("name", "?")).removesuffix(" (Current frame)"),
            path=str(source.get("path") or source.get("name") or "?"),
            line=int(frame.get("line", 0)),
            there=str(source.get("adapterData") or ""),  # gateway/path_map.py
        )

    @property
    def folded(self) -> bool:
        """Whether the frame is Ray's or the debugger's own."""
        return _NOT_USER_CODE.search(self.path) is not None

    @property
    def place(self) -> str:
        return visible(f"{self.path}:{self.line} {self.function}", keep="")


@dataclass
class Stack:
    """Frames, newest first, and the selected one."""

    frames: list[Frame] = field(default_factory=list)
    selected: int = 0
    unfolded: bool = False  # `w all` has shown Ray's frames too

    @classmethod
    def parse(cls, frames: list[Message]) -> Stack:
        """Read a stackTrace response; the newest frame of user code is selected."""
        parsed = [Frame.parse(frame) for frame in frames]
        own = (index for index, frame in enumerate(parsed) if not frame.folded)
        return cls(parsed, next(own, 0))

    @property
    def frame(self) -> Frame | None:
        return self.frames[self.selected] if self.frames else None

    def move(self, older_by: int) -> bool:
        """Select another frame, at most the last one; return False when there is none in that direction.

        Ray's frames are skipped, unless `w all` has shown them.
        """
        open_to = self._towards(older_by, folded=False) if not self.unfolded else self._beyond(older_by)
        if not open_to:
            return False
        self.selected = open_to[min(abs(older_by), len(open_to)) - 1]
        return True

    def folded_beyond(self, older_by: int) -> int:
        """Return the number of Ray's frames in a direction."""
        return len(self._towards(older_by, folded=True))

    def _towards(self, older_by: int, *, folded: bool) -> list[int]:
        return [index for index in self._beyond(older_by) if self.frames[index].folded == folded]

    def _beyond(self, older_by: int) -> list[int]:
        return list(range(self.selected + 1, len(self.frames)) if older_by > 0 else range(self.selected - 1, -1, -1))


def where(stack: Stack, source_line: dict[int, str], *, all_frames: bool = False, paint: Paint | None = None) -> str:
    """Return the stack as pdb prints it: oldest first, `>` at the selected frame, each with its source line.

    Args:
        stack: the frames.
        source_line: source text by frame id; a frame without one shows its place only.
        all_frames: also show Ray's frames, which are otherwise folded into one line.
        paint: colours.
    """
    paint = paint or Paint()
    shown: list[str] = []
    hidden = 0
    for index in reversed(range(len(stack.frames))):
        frame, here = stack.frames[index], index == stack.selected
        if frame.folded and not here and not all_frames:
            hidden += 1
            continue
        shown += _fold(hidden, paint)
        hidden = 0
        styles = ("green", "bold") if here else (("dim",) if frame.folded else ())
        shown.append(paint(f"{'>' if here else ' '} {frame.place}", *styles) if styles else f"  {frame.place}")
        text = source_line.get(frame.id, "").strip()
        if text:
            line = f"{'->' if here else '  '}    {visible(text)}"
            shown.append(paint(line, "dim") if frame.folded else line)
    return "\n".join(shown + _fold(hidden, paint))


def _fold(hidden: int, paint: Paint) -> list[str]:
    if not hidden:
        return []
    frames = "1 frame" if hidden == 1 else f"{hidden} frames"
    return [paint(f"  ... {frames} of Ray (`w all` shows them)", "dim")]


@dataclass(frozen=True)
class Function:
    """The innermost function around a line; first and last count from 1 and include decorators."""

    name: str
    first: int
    last: int
    arguments: tuple[str, ...]
    statements: tuple[int, ...]  # first lines of its own statements, without those of inner functions


def is_own_source(path: str) -> bool:
    """Return whether a path, which a job may choose, is a Python file of the current folder or of this Python."""
    found = Path(path).resolve()
    folders = (Path.cwd(), *map(Path, (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))))
    return found.suffix == ".py" and any(found.is_relative_to(folder.resolve()) for folder in folders)


def read_local(path: str) -> list[str] | None:
    """Return the lines of a file on this machine; None if there is none, it is too big, or it is not Python text."""
    try:
        raw = read_bounded(Path(path), bytes_max=SOURCE_BYTES_MAX, what="a source file")
        return raw.decode(tokenize.detect_encoding(io.BytesIO(raw).readline)[0]).splitlines()
    except (ValueError, SyntaxError, LookupError):  # NotPlainText; a wrong encoding, or one that is not of text
        return None


def function_at(lines: list[str], line: int) -> Function | None:
    """Return the innermost function around a line; None for module level and for text that does not parse."""
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return None
    found: _Function | None = None
    for node in ast.walk(tree):  # breadth first: a deeper one comes later and replaces the outer
        if isinstance(node, _Function) and _first_line(node) <= line <= (node.end_lineno or node.lineno):
            found = node
    if found is None:
        return None
    given = found.args
    arguments = (*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg)
    return Function(
        name=getattr(found, "name", "<lambda>"),
        first=_first_line(found),
        last=found.end_lineno or found.lineno,
        arguments=tuple(argument.arg for argument in arguments if argument is not None),
        statements=tuple(sorted(set(_statement_lines(found)))),
    )


def _first_line(node: _Function) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _statement_lines(function: ast.AST) -> list[int]:
    lines = []
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.stmt):
            lines.append(child.lineno)
        if not isinstance(child, (_Function, ast.ClassDef)):
            lines += _statement_lines(child)
    return lines


def listing(
    lines: list[str],
    first: int,
    last: int,
    *,
    current: int | None = None,
    breakpoints: Collection[int] = (),
    paint: Paint | None = None,
) -> str:
    """Return lines first..last (from 1) with their numbers, `B` at breakpoints and `->` at the current line."""
    paint = paint or Paint()
    first, last = max(1, first), min(len(lines), last)
    width = max(4, len(str(last)))
    code = paint.code([visible(line) for line in lines[first - 1 : last]])
    shown = []
    for number, text in enumerate(code, start=first):
        here = number == current
        mark = paint("B", "red", "bold") if number in breakpoints else " "
        arrow = paint("->", "green", "bold") if here else "  "
        shown.append(f"{paint(str(number).rjust(width), 'bold' if here else 'dim')} {mark}{arrow} {text}".rstrip())
    return "\n".join(shown)
