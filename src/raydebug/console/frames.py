"""The stack of a paused thread: which frame is selected, and which frames are the reader's own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from raydebug.console.paint import Paint
from raydebug.dap.wire import Message
from raydebug.render import visible

# Frames between the reader's code and the bottom of the stack: Ray's worker loop, and what stops the process.
_NOT_THE_READERS = re.compile(r"/(site|dist)-packages/(ray|debugpy)/|/ray/_private/|(^|/)_raylet\.pyx$")


@dataclass(frozen=True)
class Frame:
    """One frame; `id` is the DAP frame id, valid until the thread runs again."""

    id: int
    function: str
    path: str
    line: int

    @classmethod
    def parse(cls, frame: Message) -> Frame:
        """Read a frame from a stackTrace response."""
        source = frame.get("source") or {}
        return cls(
            id=frame["id"],
            # pydevd marks where a post-mortem thread really is; the reader asked where the exception came from.
            function=str(frame.get("name", "?")).removesuffix(" (Current frame)"),
            path=str(source.get("path") or source.get("name") or "?"),
            line=int(frame.get("line", 0)),
        )

    @property
    def folded(self) -> bool:
        """Whether the frame is Ray's or the debugger's own."""
        return _NOT_THE_READERS.search(self.path) is not None

    @property
    def place(self) -> str:
        return visible(f"{self.path}:{self.line} {self.function}", keep="")


@dataclass
class Stack:
    """Frames, newest first, and the selected one."""

    frames: list[Frame] = field(default_factory=list)
    selected: int = 0
    unfolded: bool = False  # the reader has asked for Ray's frames too

    @classmethod
    def parse(cls, frames: list[Message]) -> Stack:
        """Read a stackTrace response; the newest frame that is the reader's own is selected."""
        parsed = [Frame.parse(frame) for frame in frames]
        own = (index for index, frame in enumerate(parsed) if not frame.folded)
        return cls(parsed, next(own, 0))

    @property
    def frame(self) -> Frame | None:
        return self.frames[self.selected] if self.frames else None

    def move(self, older_by: int) -> bool:
        """Select another frame, at most as far as the stack goes; False when it cannot move at all.

        Ray's own frames are passed over, unless the reader has asked for them.
        """
        open_to = self._towards(older_by, folded=False) if not self.unfolded else self._beyond(older_by)
        if not open_to:
            return False
        self.selected = open_to[min(abs(older_by), len(open_to)) - 1]
        return True

    def folded_beyond(self, older_by: int) -> int:
        """Return how many of Ray's frames lie on the way in a direction."""
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
        all_frames: also show Ray's own frames, which are folded into one line otherwise.
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
