"""The first real error of a job: tracebacks are found in its files, and what only follows is told from causes. Pure.

An error in one process is seen by many: whoever waits for it raises an error of its own, about the end of a process, a
lost connection, or a wrapped copy of the first. Those are its cascade.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MOST_LINES = 400  # of one traceback; a longer one is broken output
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What stands before a line: Ray's name of the process (twice where one forwards the other's), torch's rank, a logger's
# level and time (vllm 0.24-0.28 logging_utils/formatter.py; Python's own default).
_PROCESS = re.compile(r"^\((?P<who>[\w.:\-<>]+ (?:rank=\d+ )?pid=\d+(?:, ip=[\d.]+)?)\) ?")
_RANK = re.compile(r"^\[(?P<who>rank\d+)\]: ?")
_LOGGER = re.compile(r"^(?:ERROR|CRITICAL|WARNING|INFO) (?P<at>\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? \[[^\]]+\] ?")
_START = re.compile(r"Traceback \(most recent call last\):\s*$")
# An error that travelled to another process comes with its own traceback behind this line, and without `Traceback`.
_WRAPPED = re.compile(r"ray\.exceptions\.RayTaskError(?:\(\w+\))?: ray::(?P<task>[\w.<>]+)\(\) \(pid=(?P<pid>\d+)")
_END = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:\([\w.]+\))?(?::\s?(?P<text>.*))?$")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
# What a runtime says of a crash, without a traceback: Python, abseil, libstdc++, the kernel, torch.
_CRASH = re.compile(
    r"^(?P<kind>Fatal Python error|\*\*\* SIG\w+ received|terminate called after throwing|Segmentation fault"
    r"|Out of memory: Killed process|CUDA error)\b[: ]*(?P<text>.*)$"
)
_OOM = re.compile(r"(?P<text>\d+ Workers \(tasks / actors\) killed due to memory pressure \(OOM\))")  # ray 2.60 raylet
# The last line of a traceback whose beginning is not in the file: it was cut off, or written line by line elsewhere.
_ALONE = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?(?P<kind>[A-Z]\w*(?:Error|Exception))(?:\(\w+\))?: (?P<text>\S.*)$")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)')
_OF_PACKAGES = re.compile(r"/(?:site-packages|dist-packages|lib/python3[.\d]*)/|^<")
# What a process says when another one, or its connection, has ended.
FOLLOWERS = frozenset((
    *("RayTaskError", "RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError"),
    *("OwnerDiedError", "NodeDiedError", "ObjectLostError", "ObjectFetchTimedOutError", "TaskCancelledError"),
    *("LocalRayletDiedError", "EngineDeadError", "DistBackendError", "DistNetworkError", "BrokenPipeError"),
    *("ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "EOFError", "CancelledError"),
    *("KeyboardInterrupt", "SystemExit", "IncompleteReadError", "ServerDisconnectedError", "AioRpcError"),
    *("ChildFailedError", "CalledProcessError", "InstantiationException"),
))  # fmt: skip
_FOLLOWING = re.compile(
    r"Engine ?core initialization failed|See root cause above|Connection closed by peer"
    r"|no materializable trajectories"  # verl 0.9.1: every rollout of a batch failed, each with an error of its own
    r"|(?:actor|worker|owner) (?:has )?died|Worker proc .* died|WorkerProc initialization failed|Failed core proc",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LoggedError:
    """One error, as a file has it.

    Args:
        source: whose file.
        line: of the file, from 1, where it begins.
        kind: the exception's class without its module, or what the runtime said of a crash.
        text: its message, first line.
        lines: the traceback, without colours and prefixes.
        said_by: the process that a prefix names, where the file has several processes' lines.
        task: the remote function that raised it, where the error tells.
        pid: the process that raised it, where the error tells.
        at: time of the log, `MM-DD HH:MM:SS`; empty where lines have none.
    """

    source: str
    line: int
    kind: str
    text: str
    lines: tuple[str, ...]
    said_by: str = ""
    task: str = ""
    pid: int | None = None
    at: str = ""

    @property
    def follows(self) -> bool:
        """Whether it tells of another process's end, and not of a cause."""
        return self.kind in FOLLOWERS or bool(_FOLLOWING.search(self.text))

    @property
    def title(self) -> str:
        """Its type and message on one line."""
        return f"{self.kind}: {self.text}" if self.text else self.kind

    @property
    def who(self) -> str:
        """Who raised it, as well as the log tells."""
        if self.task:
            return f"{self.task}, pid {self.pid}"
        return self.said_by.replace(" pid=", ", pid ") or self.source

    @property
    def frames(self) -> list[tuple[str, int]]:
        """Files and lines of its traceback, innermost last."""
        return [(found["file"], int(found["line"])) for line in self.lines if (found := _FRAME.match(line))]

    @property
    def place(self) -> str:
        """The innermost line that is not of an installed package; else the innermost; empty without frames."""
        own = [frame for frame in self.frames if not _OF_PACKAGES.search(frame[0])]
        return "".join(f"{file}:{line}" for file, line in (own or self.frames)[-1:])

    @property
    def is_own(self) -> bool:
        """Whether it was raised in the user's code, and not in an installed package."""
        return bool(self.frames) and not _OF_PACKAGES.search(self.frames[-1][0])


@dataclass
class Verdict:
    """What went wrong first, and what followed it; `first` is None where no error was found."""

    first: LoggedError | None = None
    cascade: list[LoggedError] = field(default_factory=list)


@dataclass
class _Block:
    """A traceback that is being read."""

    line: int
    lines: list[str]
    task: str = ""
    pid: int | None = None


def find_errors(source: str, lines: Iterable[str]) -> list[LoggedError]:
    """Return the errors in a file, in its order.

    Args:
        source: whose file it is, for people.
        lines: of the file; those of several processes may lie between one another, where a prefix tells them apart.
    """
    found: list[LoggedError] = []
    open_blocks: dict[str, _Block] = {}
    at = ""
    for number, raw in enumerate(lines, start=1):
        who, stamp, line = _bare(raw)
        at = stamp or at
        block = open_blocks.get(who)
        if _START.search(line):
            open_blocks[who] = _Block(number, [line])
        elif wrapped := _WRAPPED.search(line):
            open_blocks[who] = _Block(number, [line], wrapped["task"], int(wrapped["pid"]))
        elif block is None:
            if told := _told_alone(line):
                found.append(LoggedError(source, number, *told, (line,), who, at=at))
        elif not line.strip() or line[0] in " \t+|":
            block.lines.append(line)
            if len(block.lines) > MOST_LINES:
                del open_blocks[who]
        elif line.startswith(_CHAIN):
            del open_blocks[who]
        else:
            block.lines.append(line)
            end = _END.match(line)
            if end is not None:
                kind = end["kind"].rpartition(".")[2]
                text = (end["text"] or "").strip()
                found.append(
                    LoggedError(source, block.line, kind, text, tuple(block.lines), who, block.task, block.pid, at)
                )
            del open_blocks[who]
    return found


def _told_alone(line: str) -> tuple[str, str] | None:
    """Return type and message of an error that one line tells."""
    if found := _CRASH.match(line) or _ALONE.match(line):
        return found["kind"], found["text"]
    if found := _OOM.search(line):
        return "OutOfMemory", found["text"]
    return None


def judge_errors(errors: Sequence[LoggedError]) -> Verdict:
    """Tell the first real error from what followed it.

    One that the user's own code raised comes before all others: libraries report it on, each in its words. Else, where
    an error travelled to another process, the first of that kind: one that somebody caught may stand before it. Else
    the first: those that follow mostly come of it.

    Args:
        errors: of all files; where not all of them have a time, the files of those who raise before the files of those
            who hear of it.
    """
    causes = [error for error in errors if not error.follows]
    if causes and all(error.at for error in causes):
        causes.sort(key=lambda error: error.at)
    own = [error for error in causes if error.is_own]
    travelled = [error.kind for error in causes if error.task][-1:]
    of_kind = [error for error in causes if error.kind in travelled]
    first = next(iter(own or of_kind or causes or errors), None)
    return Verdict(first, [error for error in errors if error is not first])


def last_words(log: str) -> str:
    """Return the last line of a log that says something."""
    lines = [_bare(line)[2].strip() for line in log.splitlines()[-200:]]
    return next((line for line in reversed(lines) if line), "(it printed nothing)")[:300]


def _bare(raw: str) -> tuple[str, str, str]:
    """Return who wrote a line, when, and the line without what says so."""
    line = _COLOUR.sub("", raw.rstrip("\r\n"))
    who, at = "", ""
    while True:
        if found := _PROCESS.match(line) or _RANK.match(line):
            who = found["who"]
        elif found := _LOGGER.match(line):
            at = found["at"]
        else:
            return who, at, line
        line = line[found.end() :]
