"""The exceptions in the lines of logs, with the frames of their tracebacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from raydebug.diagnose.read import Line
from raydebug.stacks.groups import is_library

MORE_LINES = 5  # of an exception's message after the first
# Packages, compiled modules, and source trees of frameworks that are not installed as packages.
LIBRARY = (
    r"site-packages|dist-packages|/lib/python|^<|\.pyx|\.pxi"
    r"|/(?:ray|torch|vllm|verl|sglang|trl|openrlhf|slime|nemo_rl|transformers|datasets|accelerate|deepspeed|megatron"
    r"|flash_attn|hydra|omegaconf)/"
)

_START = re.compile(r"^\s*(?:E\s+)?(?:\| *)*(?:\+ *)?(?:Exception Group )?Traceback \(most recent call last\)")
_FRAME = re.compile(r'^\s*(?:\| *)*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_RAY_TASK = re.compile(
    r"^\s*(?:(?:ray\.exceptions\.)?RayTaskError(?:\(\w+\))?: )?ray::(?P<task>[\w.<>]+)(?:\(\) \((?P<pid>pid=\d+))?"
)
_RAISED = re.compile(
    r"^\s*(?:\| *)*(?:E\s+)?(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Expired|Refused"
    r"|Timeout|Failure|NotFound|Unavailable|Denied|Full|Missing|Iteration|Warning)\b|Exception|Empty|(?:[a-z_]+\.)+(?:error|gaierror))(?:\([\w.]+\))?(?::\s?(?P<text>.*))?$"
)
# After its frames an exception may have any name: `mylib.errors.RewardMismatch: gold is missing`, `_queue.Empty`.
_ANY_RAISED = re.compile(
    r"^(?:\| *)*(?:E\s+)?"
    r"(?P<type>(?:[A-Za-z_]\w{0,100}\.){1,20}[A-Za-z_]\w{0,100}|[A-Z]\w{0,100})(?::\s(?P<text>.*))?$"
)
_INLINE = re.compile(r"\b(?P<type>(?:[a-z_]\w*\.){0,10}[A-Z]\w*(?:Error|Exception))(?:\([\w.]+\))?: (?P<text>\S.*)$")


Frame: TypeAlias = tuple[str, int, str]  # file, line, function


@dataclass
class Raised:
    """An exception in a log."""

    index: int  # of its last line among the lines
    first: int  # of the first line of its traceback
    kind: str  # without its module
    text: str  # its message, first line
    frames: list[Frame] = field(default_factory=list)  # innermost last
    in_line: bool = False  # it is mentioned within a line, and has no traceback
    more: str = ""  # the lines of its message after the first, joined
    process: str = ""  # that raised it, where a log of another process says so

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the user's code, else of a framework's source tree, else of all."""
        kinds: tuple[Callable[[str], bool], ...] = (is_users, lambda file: not is_library(file), bool)
        return next((frame for is_it in kinds for frame in reversed(self.frames) if is_it(frame[0])), None)


def is_users(frame: str) -> bool:
    """Say whether a file, or a frame that begins with one, is of no framework and no package."""
    return re.search(LIBRARY, frame) is None


def find_raised(lines: Sequence[Line]) -> list[Raised]:
    """Return the exceptions in the lines of one or several processes, in order."""
    found: list[Raised] = []
    frames: dict[str, list[Frame]] = {}
    begins: dict[str, int] = {}
    tasks: dict[str, str] = {}
    for index, line in enumerate(lines):
        text = line.text
        if (task := _RAY_TASK.match(text)) or _START.match(text):
            frames[line.process], begins[line.process] = [], index
            tasks[line.process] = f"{task['task']} {task['pid'] or ''}".strip() if task else ""
        elif frame := _FRAME.match(text):
            # Frames without a start are of a log that is cut; faulthandler's, without a comma, belong to no exception.
            if line.process in begins or frame["function"]:
                frames.setdefault(line.process, []).append((frame["file"], int(frame["line"]), frame["function"] or ""))
                begins.setdefault(line.process, index)
        elif raised := _RAISED.match(text) or (frames.get(line.process) and _ANY_RAISED.match(text)):
            kind = raised["type"].rpartition(".")[2]
            if kind.endswith("Warning"):
                continue
            inside = frames.pop(line.process, [])
            first, task_name = begins.pop(line.process, index), tasks.pop(line.process, "")
            found.append(Raised(index, first, kind, raised["text"] or "", inside, process=task_name))
        elif "Error: " in text or "Exception: " in text:
            inline = _INLINE.search(text)
            if inline is not None:
                kind = inline["type"].rpartition(".")[2]
                found.append(Raised(index, index, kind, inline["text"], in_line=True))
    for one in found:
        one.more = _continued(lines, one.index)
    return found


def _continued(lines: Sequence[Line], index: int) -> str:
    """Return the lines after an exception's first that belong to its message."""
    parts = []
    for line in lines[index + 1 : index + 1 + MORE_LINES]:
        if line.process != lines[index].process or not line.text.strip() or _START.match(line.text) or line.level:
            break
        parts.append(line.text.strip())
    return " ".join(parts)
