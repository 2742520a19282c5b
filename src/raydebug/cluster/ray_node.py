"""Decides whether a Ray node is alive: one rule for a local cluster's supervisor and for entrypoints/node.py.

A node is dead when its raylet or GCS process has ended, or when a port that has answered refuses connections. A process
that exists and gives no answer is slow: a machine that is busy with a training is no reason to end the training. Only
after HUNG_AFTER_S without any answer is it called hung, and its owner decides what becomes of it.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import psutil

from raydebug import process
from raydebug.errors import RaydebugError

PROBE_PERIOD_S = 2.0
PROBE_TIMEOUT_S = 10.0
SLOW_AFTER_S = 5.0
HUNG_AFTER_S = 300.0
REFUSALS = 2  # one after the other; a full backlog drops connections, it does not refuse them
START_LIMIT_S = 300.0
START_QUIET_S = 90.0  # a start whose logs have not grown for so long has failed
START_LINE_S = 10.0
# Ray gives up on a node that is not there after 15 to 60 s of waiting for one of its processes (ray 2.60.0
# _private/node.py raylet_start_wait_time_s, services.py RAY_DASHBOARD_STARTUP_TIMEOUT_S). What it refuses, it refuses
# before that.
RAY_GIVES_UP_S = 15.0
STACK_TIMEOUT_S = 30.0
READ_BYTES = 64 * 1024  # of the end of a log
LAST_LINES, LAST_CHARS = 3, 300
STACK_FRAMES = 8
# Ray's own processes, children of `ray start` (ray 2.60.0 _private/services.py), by the names that the kernel has.
RAYLET, GCS = "the raylet", "Ray's head (gcs_server)"
PROGRAMS = {"raylet": RAYLET, "gcs_server": GCS}
# Who serves a page: Python, so that py-spy can show its stack.
_SERVERS = {RAYLET: ("ray::DashboardAgent", "/dashboard/agent.py"), GCS: ("/dashboard/dashboard.py",)}

_RAY_ERROR = re.compile(r"[\d-]+ [\d:,]+\s+ERROR ")  # of a line by Ray's logging (ray 2.60.0 _private/ray_logging)
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
Answer = Literal["ok", "none", "refused"]
_Fact = TypeVar("_Fact")


def ask(url: str, token: str = "", timeout_s: float = PROBE_TIMEOUT_S) -> Answer:
    """Ask a health page once, with the cluster's token where the page wants one.

    Returns:
        `ok` for status 200, `refused` where nothing listens, `none` for all else: no answer in time, or the page says
        that the part behind it gives none within 0.1 s (ray 2.60.0 dashboard/modules/reporter/utils.py).
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - our own http:// addresses
        with _NO_PROXY.open(request, timeout=timeout_s) as answer:
            return "ok" if answer.status == 200 else "none"
    except urllib.error.URLError as error:
        return "refused" if isinstance(error.reason, ConnectionRefusedError) else "none"
    except (OSError, ValueError, http.client.HTTPException):  # the last: what answers does not speak HTTP
        return "none"


class Part:
    """The results of the probes of one part of a node, by its name; `clock` is a monotonic time in seconds."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._answered = clock()
        self._refusals = 0

    def note(self, answer: Answer) -> None:
        """Record the outcome of a probe."""
        self._refusals = self._refusals + 1 if answer == "refused" else 0
        if answer == "ok":
            self._answered = self._clock()

    @property
    def refuses(self) -> bool:
        """Whether its port has refused connections often enough to count as closed."""
        return self._refusals >= REFUSALS

    @property
    def silent_s(self) -> float:
        """Seconds since its last answer."""
        return self._clock() - self._answered


@dataclass(frozen=True)
class NodeCondition:
    """The condition of a node.

    Args:
        state: `up`, `slow` (nothing is ended), `hung` (the owner decides) or `dead`.
        reason: one line that says why; empty for `up`.
        silent_s: seconds since the last answer of a part that is slow or hung.
    """

    state: Literal["up", "slow", "hung", "dead"] = "up"
    reason: str = ""
    silent_s: float = 0.0


def judge(ended: list[str], parts: list[Part]) -> NodeCondition:
    """Return the condition of a node from its processes that have ended and the probes of its parts. Pure."""
    if ended:  # the raylet's end ends the others, so both names are possible
        return NodeCondition("dead", f"{' and '.join(ended)} {'has' if len(ended) == 1 else 'have'} ended")
    for part in parts:
        if part.refuses:
            return NodeCondition("dead", f"{part.name} is gone: its health page refuses connections")
    slowest = max(parts, key=lambda part: part.silent_s)
    reason = f"no answer for {slowest.silent_s:.0f} s from {slowest.name}, whose process exists"
    if slowest.silent_s >= HUNG_AFTER_S:
        return NodeCondition("hung", reason, slowest.silent_s)
    if slowest.silent_s >= SLOW_AFTER_S:
        return NodeCondition("slow", reason, slowest.silent_s)
    return NodeCondition()


class RayNode:
    """Watch a running node: its processes by their ids, its health pages in threads of their own.

    Args:
        ray_pid: process id of its `ray start --block`.
        pages: URL of the health page of each part, by the part's name (PROGRAMS).
    """

    def __init__(self, ray_pid: int, pages: Mapping[str, str]) -> None:
        self._ray = psutil.Process(ray_pid)
        names = ((_known(program.name, ""), program) for program in below(self._ray))
        self._programs = {PROGRAMS[name]: program for name, program in names if name in PROGRAMS}
        self._parts = [Part(name) for name in pages]
        self._closed = threading.Event()
        self._stack = ""
        for part, url in zip(self._parts, pages.values(), strict=True):
            threading.Thread(target=self._probe, args=(part, url), daemon=True).start()

    def close(self) -> None:
        """End the probes: after the node's end its ports may be another program's."""
        self._closed.set()

    def look(self) -> NodeCondition:
        """Return the node's condition now. Fast, except the first time that it is hung."""
        found = judge([name for name, program in self._programs.items() if not runs(program)], self._parts)
        if found.state != "hung":
            self._stack = ""
            return found
        if not self._stack:
            self._stack = self._explain_silence()
        return replace(found, reason=f"{found.reason}; {self._stack}")

    def _probe(self, part: Part, url: str) -> None:
        while not self._closed.wait(PROBE_PERIOD_S):
            part.note(ask(url))  # these pages want no token (ray 2.60.0 dashboard/http_server_agent.py)

    def _explain_silence(self) -> str:
        """Return the state of the processes behind the silent part, and the stack of the one that is Python."""
        part = max(self._parts, key=lambda part: part.silent_s).name
        said = [f"{part}: {_state(self._programs[part])}"] if part in self._programs else []
        for program in below(self._ray):
            arguments: list[str] = _known(program.cmdline, [])
            if any(argument.endswith(_SERVERS[part]) for argument in arguments):
                said.append(f"stack of its page's process ({_state(program)}): {stack_of(program.pid)}")
                break
        return "; ".join(said)


class Startup:
    """How long to wait for a starting node: as long as Ray's logs grow, up to a limit.

    The folder of the logs may not exist yet.
    """

    def __init__(self, logs: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._logs, self._clock = logs, clock
        self._began = self._grew = self._said = clock()
        self._size_bytes = 0

    def is_over(self) -> str | None:
        """Return why waiting longer is useless; None while it is not."""
        now, size_bytes = self._clock(), _size_bytes(self._logs)
        if size_bytes != self._size_bytes:
            self._size_bytes, self._grew = size_bytes, now
        if now - self._began >= START_LIMIT_S:
            return f"Ray has not come up within {START_LIMIT_S:.0f} s"
        if now - self._grew >= START_QUIET_S:
            return f"Ray has not come up, and its logs have not grown for {START_QUIET_S:.0f} s"
        return None

    def line(self, waits_for: str) -> str | None:
        """Return a progress line every START_LINE_S; None in between."""
        now = self._clock()
        if now - self._said < START_LINE_S:
            return None
        self._said = now
        return f"waiting for {waits_for} for {now - self._began:.0f} s; Ray's logs grew {now - self._grew:.0f} s ago"


def last_words(log: Path, count: int = LAST_LINES) -> str:
    """Return the last lines that a program wrote to its log, on one line; before them Ray's last one of level ERROR."""
    try:
        with log.open("rb") as file:  # a site's banner for each connection makes a long one
            file.seek(max(0, file.seek(0, 2) - READ_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError as error:
        return f"(no log: {error.strerror})"
    lines = [line.strip()[:LAST_CHARS] for line in text.splitlines() if line.strip()]
    errors = [line for line in lines[:-count] if _RAY_ERROR.match(line)]
    return " / ".join([*errors[-1:], *lines[-count:]]) or "(it printed nothing)"


def has_dashboard(ray_pid: int) -> bool:
    """Return whether a dashboard runs below `ray start`: one that cannot listen is not started, and Ray goes on."""
    argvs: list[list[str]] = [_known(program.cmdline, []) for program in below(psutil.Process(ray_pid))]
    return any(word.endswith(_SERVERS[GCS]) for argv in argvs for word in argv)


def stack_of(pid: int) -> str:
    """Return the stack of a Python process on one line, innermost frame first, or why py-spy cannot tell it."""
    spy = Path(sys.executable).parent / "py-spy"  # ray[default] brings it
    if not spy.exists():
        return "(py-spy is not installed)"
    try:  # --nonblocking: a process that is stopped cannot be stopped again
        text = process.run([str(spy), "dump", "--nonblocking", "--pid", str(pid)], timeout_s=STACK_TIMEOUT_S)
    except RaydebugError as failure:
        return f"({failure.cause})"
    frames = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return " < ".join(frames[:STACK_FRAMES])


def runs(program: psutil.Process) -> bool:
    """Return whether a process runs; a zombie has ended."""
    return _known(lambda: program.is_running() and program.status() != psutil.STATUS_ZOMBIE, False)


def below(ancestor: psutil.Process) -> list[psutil.Process]:
    """Return all descendants of a process; none if it has ended."""
    return _known(lambda: list(ancestor.children(recursive=True)), [])


def _known(read: Callable[[], _Fact], otherwise: _Fact) -> _Fact:
    """Return a fact of a process; `otherwise` if it has ended."""
    try:
        return read()
    except psutil.Error:
        return otherwise


def _state(program: psutil.Process) -> str:
    return f"pid {program.pid}, {_known(program.status, 'gone')}"


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total
