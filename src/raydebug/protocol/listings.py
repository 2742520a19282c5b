"""JSON documents that the gateway returns over HTTP: its lists of pauses, processes, breakpoints and its own tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NotRequired, TypedDict, TypeVar, cast

from raydebug.protocol.records import (
    CollectiveGroup,
    Id,
    Location,
    Policy,
    StackFrame,
    ThreadStack,
    TripwireRecord,
    Watchdog,
)

Answer = TypeVar("Answer")


class ListedPause(TypedDict, total=False):
    """A pause in GET /pauses and `raydebug paused --json`; None for facts that are unknown."""

    id: str
    kind: str | None
    file: str | None
    line: int | None
    function: str | None
    thread: str | None
    exception: str | None
    where: str | None
    tripwire: TripwireRecord | None
    rank: int | None
    step: int | None
    pid: int
    child_of: int | None
    ip: str | None
    node_id: str | None
    worker_id: str | None
    job_id: str | None
    job: str | None
    task: str | None
    task_id: str | None
    attempt: int | None
    actor: str | None
    actor_id: str | None
    compiled: bool | None
    watchdog: Watchdog | None
    since_s: float | None
    expires_in_s: float | None
    state: str  # waiting or attached
    # Only of clusters without a gateway:
    is_driver: bool
    threads: int
    debugger_port: int | None


class ListedProcess(TypedDict, total=False):
    """A process in GET /processes and `raydebug ps --processes --json`."""

    pid: int
    child_of: int | None
    ip: str
    node_id: str | None
    worker_id: str | None
    job: str | None
    job_id: str | None
    rank: int | None
    actor: str | None
    title: str | None
    argv: str | None
    is_driver: bool | None
    doing: Location | None
    answers: bool
    pauses: list[str]


class ListedStacks(TypedDict):
    """The stacks of a process in POST /stacks and `raydebug stacks --json`."""

    pid: int | None
    child_of: int | None
    ip: str
    node_id: str | None
    worker_id: str | None
    job: str | None
    job_id: str | None
    rank: int | None
    world: int | None  # ranks of its training group
    actor_id: str | None
    actor: str | None
    is_driver: bool | None
    instance: str
    role: str
    state: str  # answered or silent (messages.py)
    age_s: float | None  # how old the stacks are
    threads: list[ThreadStack]
    left_out: NotRequired[int]  # threads and tasks that are not listed: there are too many
    pauses: NotRequired[list[Id]]
    collectives: NotRequired[list[CollectiveGroup]]  # of torch's process groups
    native: NotRequired[list[ThreadStack]]  # with C frames, of `stacks --native`
    stopped: NotRequired[bool]  # by a signal, as seen from outside


def with_frames(thread: ThreadStack, known: Mapping[str, list[StackFrame]]) -> ThreadStack:
    """Return the stack of a thread with the frames that its digest stands for.

    >>> with_frames({"name": "t", "digest": "d", "cpu_s": 1.0}, {"d": [{"line": 3}]})
    {'name': 't', 'frames': [{'line': 3}], 'cpu_s': 1.0}
    """
    if "digest" not in thread:
        return thread
    rest = {name: value for name, value in thread.items() if name not in ("name", "digest")}
    return cast(ThreadStack, {"name": thread.get("name", ""), "frames": known[thread["digest"]], **rest})


class ListedAnswer(TypedDict, Generic[Answer]):
    """What a process has answered in POST /processes/NAME."""

    process: ListedProcess
    instance: str
    state: str  # answered, silent, ended, unknown or failed (messages.py)
    answer: Answer | None
    cause: str  # of a failure


class BreakpointState(TypedDict):
    """The state of a breakpoint in one process."""

    pid: int | None
    ip: str | None
    state: str  # set, waiting, sent or failed (messages.py)
    message: str


class ListedBreakpoint(TypedDict):
    """A breakpoint in GET /breaks and `raydebug break list --json`."""

    id: str
    where: str
    policy: Policy | None
    job: str | None
    source: str | None
    processes: list[BreakpointState]


class GatewayTask(TypedDict):
    """A background task of the gateway in GET /status."""

    name: str
    state: str  # running or restarting
    restarts: int
    reason: str | None
