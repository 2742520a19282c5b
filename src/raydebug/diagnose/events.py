"""The events of logs: what their lines say, typed, with who says it.

An event is an exception with its frames, what a program says of itself, the end of a process, or what a scheduler says;
its `signs` are those of the course of the run (signs.py). All else is data, and no event: the source lines of a
traceback, the frames of a fault dump and of native code, printed samples, tests that passed, commands that are shown.
Each process has a stream of its own: lines of several processes lie between one another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeAlias

from raydebug.diagnose.read import ECHO, Line
from raydebug.diagnose.signs import signs_of
from raydebug.stacks.groups import is_library

EXCEPTION, MENTION, RECORD, FATAL, EXIT, SCHEDULER, PROGRESS = KINDS = (
    "exception",  # with its own lines
    "mention",  # an exception that a record names
    "record",  # of a logger, or printed
    "fatal",  # a signal, or an error that ends a process without an exception
    "exit",  # how a process has ended
    "scheduler",  # what Slurm, Kubernetes or Docker says of a job, pod or container
    "progress",
)
PROGRAMS = ("driver", "worker", "engine")  # producers that are programs in Python
MORE_LINES = 5  # of an exception's message after the first
INTRO_LINES = 5  # between what introduces a traceback and it, of other processes
SAMPLE_LINES = 500  # of one printed sample

# Packages, compiled modules, and source trees of frameworks that are not installed as packages.
LIBRARY = (
    r"site-packages|dist-packages|/lib/python|^<|\.pyx|\.pxi"
    r"|(?:^|/)(?:ray|torch|vllm|verl|sglang|trl|openrlhf|slime|nemo_rl|transformers|datasets|accelerate|deepspeed|megatron"
    r"|flash_attn|hydra|omegaconf)/"
)
_OF_PYTHON = re.compile(r"/lib/python3\.\d+/(?!(site|dist)-packages/)|^<")
_DECORATION = r"^\s*(?:\| *)*(?:\+[-+ ]*)?(?:E  +)?"  # of groups of exceptions, and of pytest
_TRACEBACK = re.compile(r"^(?P<intro>.*?)(?:Exception Group )?Traceback \(most recent call last\)")
_FRAME = re.compile(
    r'^(?P<indent>[\s|]*)File "(?P<file>[^"]+)", line (?P<line>\d+|x+)(?P<comma>,)?(?: ?in (?P<function>.+))?'
)
_RAY_TASK = re.compile(
    r"^\s*(?:(?:ray\.exceptions\.)?RayTaskError(?:\((?P<type>\w+)\))?: )?"
    r"ray::(?P<task>[\w.<>]+)(?:\(\) \((?P<pid>pid=\d+))?"
)
_RAISED = re.compile(
    _DECORATION + r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Expired|Refused|Timeout"
    r"|Failure|NotFound|Unavailable|Denied|Full|Missing|Iteration|Warning)\b|Exception|Empty"
    r"|(?:[a-z_]+\.)+(?:error|gaierror))(?:\((?P<carried>[\w.]+)\))?(?::\s?(?P<text>.*))?$"
)
# After its frames an exception may have any name: `mylib.errors.RewardMismatch: gold is missing`, `_queue.Empty`.
_ANY_RAISED = re.compile(
    r"^(?:\| *)*(?:E\s+)?"
    r"(?P<type>(?:[A-Za-z_]\w{0,100}\.){1,20}[A-Za-z_]\w{0,100}|[A-Z]\w{0,100})(?::\s(?P<text>.*))?$"
)
_ASSERTED = re.compile(r"^E\s+(?P<type>assert) (?P<text>.*)$")  # pytest
_NAMED = re.compile(r"\b(?P<type>(?:[a-z_]\w*\.){0,10}[A-Z]\w*(?:Error|Exception))(?:\([\w.]+\))?: (?P<text>\S.*)$")
_CARETS = re.compile(r"^[\s|]*[~^]+[\s~^]*$|^\s*\[Previous line repeated|^\s*\.\.\.(?:<|\s*$)")
# CPython Modules/faulthandler.c; abseil failure_signal_handler.cc, which Ray installs in its workers.
_FATAL = re.compile(
    r"Fatal Python error: (?P<error>[\w ]+)|\*\*\* (?P<signal>SIG(?!TERM|INT|HUP)\w+) (?:received|\()"
    r"|\bCheck failed: |^terminate called|[Uu]ncaught exception of C"
)
_DUMP = re.compile(r"\(most recent call first\)|^Timeout \(\d|^Extension modules: |^\*\*\* StackTrace Information")
_NATIVE = re.compile(
    r"^(?:logging\.cc:\d+: )?\s*(?:frame #\d+: |@ +0x|@ \.\.\. and|PC: @|#\d+ +0x|\[0x[0-9a-f]+\]|/\S+\(\S*\) ?\[0x)"
)
_SAMPLE = re.compile(
    r"^\W{0,3}\[(?:prompt|response|completion|ground_truth|sample|question|answer|output)s?\]"
    r"|^\W{0,3}<(?P<tag>tool_response|tool_call|think|answer|code|output|information)>(?!.*</(?P=tag)>)|^(?P<fence>```)\w*$"
)
_SAMPLE_END = re.compile(r"^\W{0,3}\[score\]|^\W{0,3}\[reward\]")
# pytest shows what a test wrote, also of one that passed.
_PASSED = re.compile(r"^=+ PASSES =+$")
_SECTION = re.compile(r"^=+ .* =+$")
_PYTHON_WARNING = re.compile(r"(?:^|: )\w*Warning: ")
_WARNED = re.compile(r"(?:^|: )\w*Warning: |\bwarning: |^\W{0,2}(?:WARNING|WARN|Warning)\b|NCCL WARN")
# kubectl describe, kubectl get events: kubernetes 1.25-1.34 pkg/kubelet/events, pkg/scheduler.
_POD_EVENT = re.compile(r"^\s*(?:\S+ +)?(?P<type>Normal|Warning) +(?P<reason>[A-Z][A-Za-z]+) +(?P<text>\S.*)$")
_WHO = (
    ("slurm", re.compile(r"^(?:slurmstepd|srun|sbatch|salloc|slurmctld)\b|^JobId=|^CANCELLED AT")),
    ("docker", re.compile(r"^docker: |([Dd]ocker|response from) daemon|^Error: No such (image|container)|OCI runtime")),
    ("kubernetes", re.compile(r"^\s*(?:Reason|Message|Status|Last State): +\w|\bkubelet\b|^The node was low on")),
    (
        "shell",
        re.compile(r"^\S{1,200}: (?:line \d+|\d+|\S{1,20} \d+): |^(?:bash|sh|zsh|timeout): |^Killed\b|^Terminated\b"),
    ),
    ("nccl", re.compile(r"NCCL (?:WARN|INFO)")),
    ("torch", re.compile(r"ProcessGroup\w+\.cpp|TCPStore|torch[/.]distributed[/.]elastic|^ *exitcode +:")),
    ("ray", re.compile(r"^\w+\.(?:cc|h):\d+: |^(?:A worker died|The node with node id|\*\*\* SIG)|^ray\.exceptions\.")),
)
_ENGINE = re.compile(r"EngineCore|VllmWorker|vLLM|APIServer|SGLang|sglang|AsyncLLM|Scheduler")
_RAYS = re.compile(r"raylet|gcs_server|autoscaler|dashboard|monitor|log_monitor")

Frame: TypeAlias = tuple[str, int, str]  # file, line, function


@dataclass(eq=False)
class Event:
    """What one or several lines say."""

    kind: str
    line: Line  # that says it: of an exception, the one with its type
    index: int  # of this line among the lines
    first: int  # of its first line
    text: str  # of an exception, its type and the first line of its message
    type: str = ""  # of an exception, without its module; the signal or error of a fatal one; the reason of a scheduler
    message: str = ""  # of an exception
    more: str = ""  # the lines of its message after the first, joined
    frames: list[Frame] = field(default_factory=list)  # innermost last
    code: list[str] = field(default_factory=list)  # source lines below its frames
    intro: str = ""  # what is said before a traceback
    task: str = ""  # the process that raised it, where another one tells
    carried: str = ""  # the exception's class that Ray hands on with it
    inner: Event | None = None  # that it was raised over
    is_wrapper: bool = False  # it was raised from that one, on purpose
    signs: frozenset[str] = frozenset()
    producer: str = ""
    level: str = ""  # of its logger
    is_reported: bool = False  # a record of an error is just before its traceback: a program may report it, and go on
    is_loose: bool = False  # lines behind its message may be of it, or of something else

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the user's code, else of a framework's source tree, else of all."""
        kinds: tuple[Callable[[str], bool], ...] = (is_users, lambda file: not is_library(file), bool)
        return next((frame for is_it in kinds for frame in reversed(self.frames) if is_it(frame[0])), None)

    @cached_property
    def raising_frames(self) -> tuple[str, str]:
        """Its last frame outside of Python's own library, and its last one, as `file:function`; empty if none."""
        frames = [f"{file}:{function}" for file, _, function in self.frames]
        outer = [frame for frame in frames if not _OF_PYTHON.search(frame)] or frames
        return (outer[-1], frames[-1]) if frames and self.kind == EXCEPTION else ("", "")

    @property
    def process(self) -> str:
        """The process that it is of."""
        return self.task or self.line.process

    @property
    def whole(self) -> str:
        """All of its message."""
        return f"{self.text} {self.more}" if self.more else self.text

    @property
    def is_drivers(self) -> bool:
        """Whether the main program wrote it: no process's name is before it."""
        return self.line.process == self.line.source

    @property
    def is_warning(self) -> bool:
        """Whether it only warns, or informs."""
        return self.level in ("WARNING", "INFO", "DEBUG") or (
            self.kind in (RECORD, MENTION, PROGRESS) and _WARNED.search(self.text) is not None
        )


def is_users(frame: str) -> bool:
    """Say whether a file, or a frame that begins with one, is of no framework and no package."""
    return re.search(LIBRARY, frame) is None


def read_events(lines: Sequence[Line]) -> list[Event]:
    """Return the events in the lines of one or several logs, in order."""
    streams: dict[tuple[str, str], _Stream] = {}
    events: list[Event] = []
    for index, line in enumerate(lines):
        if (stream := streams.get((line.source, line.process))) is None:
            stream = streams[line.source, line.process] = _Stream()
        events += stream.take(index, line)
    for stream in streams.values():
        events += stream.end()
    return sorted(events, key=lambda event: event.index)


class _Stream:
    """What is open in the lines of one process: a traceback, a dump, a sample, a message of several lines."""

    def __init__(self) -> None:
        self._raised: Event | None = None  # the open exception: its last line is still to come
        self._is_code = False  # a frame's source line is next
        self._indent = 0
        self._before: Event | None = None  # the last event, which may introduce a traceback
        self._last: Event | None = None  # whose message, or frames, may go on
        self._more = 0
        self._in_dump = False
        self._sample_end: str | None = None  # the text that closes a sample; empty for a score
        self._sample_lines = 0
        self._in_passed = False
        self._inner: Event | None = None  # of the next exception
        self._is_from = False
        self._held: tuple[int, Line] | None = None  # behind a warning: the next line tells whether it is of it
        self._previous: tuple[int, str] = -INTRO_LINES, ""  # the line before, and this one
        self._this = self._previous

    def take(self, index: int, line: Line) -> Iterator[Event]:
        """Yield the events that end with a line."""
        text = line.text
        if text.strip():
            self._previous, self._this = self._this, (index, text)
        before, held, self._held = self._before, self._held, None
        if held is not None and text[:1].isspace() and text.strip():
            return
        if held is not None:
            yield self._plain(*held)
        if not text.strip():
            self._last = self._last if self._last is not None and self._last.kind == FATAL else None
            return
        if line.level == ECHO or self._is_data(text, line):
            return
        if "Traceback (most" in text and (traceback := _TRACEBACK.match(text)):
            yield from self.end()
            self._open(index, line, traceback["intro"].strip())
        elif "ray::" in text and (task := _RAY_TASK.match(text)) and (task["type"] or task["pid"] or self._raised):
            self._take_task(index, line, task)
        elif 'File "' in text and (frame := _FRAME.match(text)):
            self._take_frame(index, line, frame)
        elif self._is_source(text):
            if self._raised is not None and not _CARETS.match(text):
                self._raised.code.append(text.strip())
                self._raised.line, self._raised.index = line, index
        elif (
            raised := _RAISED.match(text) or _ASSERTED.match(text) or (self._has_frames and _ANY_RAISED.match(text))
        ) and not raised["type"].endswith("Warning"):
            yield self._close(index, line, raised)
        elif "above exception" in text:  # "During handling of ...", "... was the direct cause of"
            self._inner, self._is_from, self._last = self._before, "direct cause" in text, None
        elif (
            before is not None
            and index == before.index + 1
            and "Warning: " in before.text
            and _PYTHON_WARNING.search(before.text)
        ):
            self._held = None if text[:1].isspace() else (index, line)  # it may be of the warning
        elif not self._goes_on(text, line):
            yield self._plain(index, line)

    @property
    def _has_frames(self) -> bool:
        return self._raised is not None and bool(self._raised.frames)

    def end(self) -> Iterator[Event]:
        """Yield what is still open: the exception of a traceback that breaks off, a line behind a warning."""
        held, self._held = self._held, None
        if held is not None:
            yield self._plain(*held)
        event, self._raised = self._raised, None
        if event is not None and (event.frames or event.task):
            raising = re.search(r"\braise (?:\w+\.)*(\w+)", " ".join(event.code[-1:]))
            event.type = raising[1] if raising else "RayTaskError" if event.task else ""
            event.text, event.level = event.line.text.strip(), event.line.level
            event.producer = producer_of(event.line, event.text)
            yield event

    def _is_data(self, text: str, line: Line) -> bool:
        """Return whether a line is of a sample, of a test that passed, or a frame of native code."""
        if self._in_passed:
            self._in_passed = not _SECTION.match(text)
            return self._in_passed
        if self._sample_end is not None:
            self._sample_lines += 1
            is_end = self._sample_end in text if self._sample_end else _SAMPLE_END.match(text) is not None
            is_over = "step" in signs_of(text) or bool(line.level) or self._sample_lines > SAMPLE_LINES
            self._sample_end = None if is_end or is_over else self._sample_end
            return not is_over
        if (
            self._raised is None
            and any(mark in text for mark in ("[", ">", "```"))
            and (sample := _SAMPLE.search(text))
        ):
            self._sample_lines = 0
            self._sample_end = f"</{sample['tag']}>" if sample["tag"] else sample["fence"] or ""
            return True
        self._in_passed = _PASSED.match(text) is not None
        return self._in_passed or _NATIVE.match(text) is not None

    def _open(self, index: int, line: Line, intro: str) -> None:
        event, before = Event(EXCEPTION, line, index, index, "", intro=intro), self._before
        at, text = self._previous
        if not intro and index - at < INTRO_LINES and _TRACEBACK.match(line.text) and not _RAISED.match(text):
            event.intro = text
            if before is not None and before.index >= at - 1:
                is_errors = before.kind in (RECORD, MENTION) and before.level in ("ERROR", "WARNING")
                event.is_reported = is_errors and before.producer in PROGRAMS
        self._raised, self._is_code, self._last = event, False, None

    def _take_task(self, index: int, line: Line, task: re.Match[str]) -> None:
        if self._raised is None:
            self._open(index, line, "")
        if self._raised is not None:
            self._raised.task = " ".join(part for part in (task["task"], task["pid"]) if part)
            self._raised.carried = self._raised.carried or task["type"] or ""
            self._raised.frames, self._raised.code, self._is_code = [], [], False
            self._raised.line, self._raised.index = line, index

    def _take_frame(self, index: int, line: Line, frame: re.Match[str]) -> None:
        number = int(frame["line"]) if frame["line"].isdigit() else 0
        row = frame["file"], number, (frame["function"] or "").strip()
        if frame["comma"] is None:  # faulthandler's: the innermost is first
            if self._in_dump and self._last is not None and self._last.kind == FATAL:
                self._last.frames.insert(0, row)
            return
        if self._raised is None:
            if not row[2]:
                return
            self._open(index, line, "")
        if self._raised is not None:
            self._raised.frames.append(row)
            self._raised.line, self._raised.index = line, index
        self._is_code, self._indent = True, len(frame["indent"])

    def _is_source(self, text: str) -> bool:
        """Return whether a line is the source line of a frame, or marks a part of it."""
        if not self._has_frames:
            return self._raised is not None and _CARETS.match(text) is not None
        indent = len(text) - len(text.lstrip(" \t|"))
        if self._is_code and indent >= self._indent and not (indent == self._indent and _RAISED.match(text)):
            self._is_code = indent > self._indent
            return True
        return bool(text.strip()) and (indent > self._indent or _CARETS.match(text) is not None)

    def _close(self, index: int, line: Line, raised: re.Match[str]) -> Event:
        """Return the exception whose last line this is."""
        event = self._raised or Event(EXCEPTION, line, index, index, "")
        type_ = raised["type"].rpartition(".")[2]
        event.line, event.index, event.text = line, index, line.text.strip()
        event.type = "AssertionError" if type_ == "assert" else type_
        event.message, event.inner, event.level = raised["text"] or "", self._inner, line.level
        event.signs, event.producer = signs_of(line.text), producer_of(line, "")
        event.carried = event.carried or raised.groupdict().get("carried") or ""
        event.is_wrapper = self._inner is not None and self._is_from
        self._raised, self._inner, self._in_dump = None, None, False
        self._before = self._last = event
        self._more = MORE_LINES
        return event

    def _goes_on(self, text: str, line: Line) -> bool:
        """Return whether a line belongs to the message, or the dump, of the event before it."""
        if _DUMP.search(text):
            self._last = self._last if self._last is not None and self._last.kind == FATAL else None
            if self._last is not None and text.startswith("Current thread"):  # others may come before it
                self._last.frames.clear()
            self._in_dump = self._last is not None and not self._last.frames
            return True
        if self._last is None or self._last.kind == FATAL or not self._more:
            return False
        is_other = line.level and (line.level, line.at) != (self._last.level, self._last.line.at)
        if is_other or (not text[0].isspace() and (signs_of(text) or _producer(text))):
            self._last = None
            return False
        self._last.is_loose = self._last.is_loose or not text[0].isspace()
        self._last.more = f"{self._last.more} {text.strip()}".strip()
        self._more -= 1
        return True

    def _plain(self, index: int, line: Line) -> Event:
        """Return the event of a line that stands alone."""
        text = line.text.strip()
        event = Event(RECORD, line, index, index, text, signs=signs_of(line.text), level=line.level)
        event.producer = producer_of(line, text)
        if fatal := _FATAL.search(text):
            event.kind, event.type = FATAL, fatal["error"] or fatal["signal"] or "abort"
            if self._last is not None and self._last.kind == FATAL and not self._last.frames:
                event.frames = self._last.frames  # of one crash: abseil tells of it, then Python
            self._last, self._more, self._in_dump = event, 0, False
        elif pod := _POD_EVENT.match(line.text):
            event.kind, event.producer, event.type = SCHEDULER, "kubernetes", pod["reason"]
            event.level = "INFO" if pod["type"] == "Normal" else "ERROR"
        elif "exit" in event.signs:
            event.kind = EXIT
        elif event.producer in ("slurm", "kubernetes", "docker"):
            event.kind = SCHEDULER
        elif ("Error: " in text or "Exception: " in text) and (named := _NAMED.search(text)):
            event.kind, event.type, event.message = MENTION, named["type"].rpartition(".")[2], named["text"]
        elif event.signs & {"step", "work"}:
            event.kind = PROGRESS
        elif "Warning: " in text and _PYTHON_WARNING.search(text):
            event.level = line.level or "WARNING"
        if event.kind != FATAL:
            self._last = None
        self._before = event
        return event


def producer_of(line: Line, text: str) -> str:
    """Return what kind of program wrote a line."""
    if producer := _producer(text):
        return producer
    if line.process == line.source:
        return "driver"
    return "engine" if _ENGINE.search(line.process) else "ray" if _RAYS.match(line.process) else "worker"


@lru_cache(100_000)  # lines repeat, and are asked for twice
def _producer(text: str) -> str:
    return next((name for name, pattern in _WHO if pattern.search(text)), "")
