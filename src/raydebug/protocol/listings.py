"""JSON documents that the gateway returns over HTTP: its lists of pauses, processes, breakpoints and its own tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NotRequired, TypedDict, TypeVar, cast

from raydebug.protocol.records import (
    Id,
    Limits,
    Location,
    Name,
    Owner,
    Policy,
    ProcessIds,
    StackFrame,
    StacksFacts,
    Stop,
    Text,
    ThreadStack,
)

Answer = TypeVar("Answer")


class JobIds(TypedDict):
    """The job of a pause: Ray's id, and the submission id."""

    job_id: Name | None
    job: Name | None


class PauseFacts(Stop, ProcessIds, JobIds, Owner, Limits):
    """What a process has said of a pause and of itself, in the order of the JSON documents; None where unknown."""


class ListedPause(PauseFacts):
    """A pause in GET /pauses and `raydebug paused --json`."""

    id: str
    since_s: float | None
    expires_in_s: float | None
    state: str  # waiting or attached
    # Only of clusters without a gateway:
    is_driver: NotRequired[bool]
    threads: NotRequired[int]
    debugger_port: NotRequired[int | None]


class ProcessFacts(ProcessIds):
    """What the lists of processes and of stacks have in common."""

    job: Name | None
    job_id: Name | None
    rank: int | None
    actor: Name | None


class ListedProcess(ProcessFacts):
    """A process in GET /processes and `raydebug ps --processes --json`."""

    title: Text | None
    argv: Text | None
    is_driver: bool | None
    doing: Location | None
    answers: bool
    pauses: NotRequired[list[str]]


class ListedStacks(ProcessFacts, StacksFacts):
    """The stacks of a process in POST /stacks and `raydebug stacks --json`."""

    is_driver: bool | None
    actor_id: Name | None
    instance: str
    role: str
    state: str  # answered or silent (messages.py)
    age_s: float | None  # of the stacks: 0.0, as they are taken when they are asked for
    pauses: NotRequired[list[Id]]
    native: NotRequired[list[ThreadStack]]  # with C frames, of `stacks --native`
    # As seen from outside, of a process that does not answer:
    stopped: NotRequired[bool]  # by a signal
    asleep: NotRequired[Name]  # in the kernel, where no signal reaches it (state D): the function of the kernel
    gone: NotRequired[bool]  # there is no such process
    cpu_s: NotRequired[float]  # CPU time of all its threads
    unread: NotRequired[Text]  # why it could not be read


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
    role: NotRequired[str]  # as in ListedStacks
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
