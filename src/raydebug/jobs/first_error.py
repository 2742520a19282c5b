"""The first real error of a job: find the tracebacks in its files, and separate causes from consequences.

One process's error makes the processes that wait for it fail too: with the end of a process, a lost connection, or a
wrapped copy of the first error. Those are its cascade.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from raydebug.cluster.dashboard import Dashboard, JobInfo
from raydebug.jobs.logs import DRIVER, find_sources
from raydebug.render import without_ansi

MOST_LINES = 400  # of one traceback; anything longer is broken output
# Prefixes of a line: Ray's name of the process (twice where one forwards the other's), torch's rank, a logger's
# level and time (vllm 0.24-0.28 logging_utils/formatter.py; Python's own default).
_PROCESS = re.compile(r"^\((?P<who>[\w.:\-<>]+ (?:rank=\d+ )?pid=\d+(?:, ip=[\d.]+)?)\) ?")
_RANK = re.compile(r"^\[(?P<who>rank\d+)\]: ?")
_LOGGER = re.compile(r"^(?:ERROR|CRITICAL|WARNING|INFO) (?P<at>\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? \[[^\]]+\] ?")
_START = re.compile(r"Traceback \(most recent call last\):\s*$")
# After this line comes the traceback of an error that travelled to another process, without `Traceback`.
_WRAPPED = re.compile(r"ray\.exceptions\.RayTaskError(?:\(\w+\))?: ray::(?P<task>[\w.<>]+)\(\) \(pid=(?P<pid>\d+)")
_END = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:\([\w.]+\))?(?::\s?(?P<text>.*))?$")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
# Messages of a crash without a traceback: Python, abseil, libstdc++, the kernel, torch.
_CRASH = re.compile(
    r"^(?P<kind>Fatal Python error|\*\*\* SIG\w+ received|terminate called after throwing|Segmentation fault"
    r"|Out of memory: Killed process|CUDA error)\b[: ]*(?P<text>.*)$"
)
_OOM = re.compile(r"(?P<text>\d+ Workers \(tasks / actors\) killed due to memory pressure \(OOM\))")  # ray 2.60 raylet
# The last line of a traceback whose beginning is not in the file.
_ALONE = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?(?P<kind>[A-Z]\w*(?:Error|Exception))(?:\(\w+\))?: (?P<text>\S.*)$")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)')
_OF_PACKAGES = re.compile(r"/(?:site-packages|dist-packages|lib/python3[.\d]*)/|^<")
# Errors of a process when another one, or its connection, has ended.
FOLLOWERS = frozenset((
    *("RayTaskError", "RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError"),
    *("OwnerDiedError", "NodeDiedError", "ObjectLostError", "ObjectFetchTimedOutError", "TaskCancelledError"),
    *("LocalRayletDiedError", "EngineDeadError", "DistBackendError", "DistNetworkError", "BrokenPipeError"),
    *("ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "EOFError", "CancelledError"),
    *("KeyboardInterrupt", "SystemExit", "IncompleteReadError", "ServerDisconnectedError", "AioRpcError"),
    *("ChildFailedError", "CalledProcessError", "InstantiationException"),
    *("ProcessRaisedException", "ProcessExitedException"),  # torch.multiprocessing.spawn, of an error in a child
))  # fmt: skip
_FOLLOWING = re.compile(
    r"Engine ?core initialization failed|See root cause above|Connection closed by peer"
    r"|no materializable trajectories"  # verl 0.9.1: every rollout of a batch failed, each with an error of its own
    r"|(?:actor|worker|owner) (?:has )?died|Worker proc .* died|WorkerProc initialization failed|Failed core proc",
    re.IGNORECASE,
)


def is_library(path: str) -> bool:
    """Return whether a file belongs to Python's library or a package, or is no file."""
    return bool(_OF_PACKAGES.search(path))


@dataclass(frozen=True)
class LoggedError:
    """One error in a log file.

    Args:
        source: the process whose file it is.
        line: of the file, from 1, where it begins.
        kind: the exception's class without its module, or the runtime's message of a crash.
        text: its message, first line.
        lines: the traceback, without colours and prefixes.
        said_by: the process in the line's prefix, if the file has lines of several processes.
        task: the remote function that raised it, if known.
        pid: the process that raised it, if known.
        at: time of the log, `MM-DD HH:MM:SS`; empty without one.
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
        """Whether it is a consequence of another process's end."""
        return self.kind in FOLLOWERS or bool(_FOLLOWING.search(self.text))

    @property
    def title(self) -> str:
        """Its type and message on one line."""
        return f"{self.kind}: {self.text}" if self.text else self.kind

    @property
    def who(self) -> str:
        """The process or task that raised it, as far as known."""
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
        own = [frame for frame in self.frames if not is_library(frame[0])]
        return "".join(f"{file}:{line}" for file, line in (own or self.frames)[-1:])

    @property
    def is_own(self) -> bool:
        """Whether it was raised in the user's code, and not in an installed package."""
        return bool(self.frames) and not is_library(self.frames[-1][0])


@dataclass
class Verdict:
    """The first error and its consequences; `first` is None if no error was found."""

    first: LoggedError | None = None
    cascade: list[LoggedError] = field(default_factory=list)


def find_first_error(dashboard: Dashboard, job: JobInfo) -> Verdict:
    """Return the first error of a job and its consequences.

    Args:
        dashboard: the cluster's.
        job: the job, as the dashboard describes it.

    Raises:
        RaydebugError: the dashboard does not answer.
    """
    found: list[LoggedError] = []
    for source in sorted(find_sources(dashboard, job), key=lambda s: s.role == DRIVER):  # the driver fails last
        found += find_errors(source.title, dashboard.log_text(source.node_id, source.name).splitlines())
    return judge_errors(found)


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
        source: the process whose file it is, for messages.
        lines: of the file; lines of several processes may alternate if prefixes tell them apart.
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
            if alone := _error_in_one_line(line):
                found.append(LoggedError(source, number, *alone, (line,), who, at=at))
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


def _error_in_one_line(line: str) -> tuple[str, str] | None:
    """Return type and message of an error that is on one line."""
    if found := _CRASH.match(line) or _ALONE.match(line):
        return found["kind"], found["text"]
    if found := _OOM.search(line):
        return "OutOfMemory", found["text"]
    return None


def judge_errors(errors: Sequence[LoggedError]) -> Verdict:
    """Separate the first real error from its consequences.

    An error raised in the user's own code comes before all others: libraries report it again in their own words. Else,
    if an error travelled to another process, the first of that kind: errors before it may have been caught. Else the
    first one: later errors are mostly its consequences.

    Args:
        errors: of all files; if some have no time, files of workers come before the driver's.
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
    """Return the last line of a log that is not blank."""
    lines = [_bare(line)[2].strip() for line in log.splitlines()[-200:]]
    return next((line for line in reversed(lines) if line), "(it printed nothing)")[:300]


def _bare(raw: str) -> tuple[str, str, str]:
    """Return the process and the time in a line's prefix, and the line without it."""
    line = without_ansi(raw.rstrip("\r\n"))
    who, at = "", ""
    while True:
        if found := _PROCESS.match(line) or _RANK.match(line):
            who = found["who"]
        elif found := _LOGGER.match(line):
            at = found["at"]
        else:
            return who, at, line
        line = line[found.end() :]
