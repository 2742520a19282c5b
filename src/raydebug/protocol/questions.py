"""The questions of the gateway to a process, over its control channel: one row for each.

A question is a DAP request whose command is its name; its number is the id by which the response is found. Where no
answer is needed (`breaks`, `withdraw`) it is an event, which is not answered. A process answers in any order. It
answers UNKNOWN (messages.py) to a question that its raydebug does not have, and the cause when it fails.

A new question needs its row here, its function in worker/ (`ANSWERED_BY` in worker/control_channel.py), and a verb:
the gateway, `POST /processes/NAME` and `gateway_client.ask_processes` serve each row.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

from raydebug.protocol.memory import Census, ProcessMemory
from raydebug.protocol.records import BreakpointSpec, FramesRecord, Name, Refusal, StacksRecord, Text, WorkRecord
from raydebug.protocol.spans import SpansRecord
from raydebug.protocol.training import TrainingWords

Body = TypeVar("Body")
Answer = TypeVar("Answer")

QUESTIONS: dict[str, Question[Any, Any]] = {}
"""By name."""


class Question(NamedTuple, Generic[Body, Answer]):
    """A row: types of body and answer; only the gateway asks what it has to keep account of, others ask the rest."""

    name: str
    body: type[Body]
    answer: type[Answer]
    only_gateway: bool


def _row(name: str, body: type[Body], answer: type[Answer], *, only_gateway: bool = False) -> Question[Body, Answer]:
    QUESTIONS[name] = question = Question(name, body, answer, only_gateway)
    return question


class Nothing(TypedDict):
    """The body or the answer of a question that needs none."""


class StacksBody(TypedDict, total=False):
    """Of `stacks`."""

    digests: bool  # whether they may stand for the frames of its threads
    locals: bool  # whether the user's frames have theirs


class FramesBody(TypedDict, total=False):
    """Of `frames`."""

    digests: list[Name]  # of the last answers to `stacks`


class PauseBody(TypedDict, total=False):
    """Of `pause` and `withdraw`."""

    request: Name  # identifies it; the record of the pause repeats it
    thread: Name  # that is to pause, as `stacks` names it; without it the active one


class SavePauseBody(TypedDict, total=False):
    """Of `save-pause`."""

    id: Name  # of the snapshot
    threadId: int  # as DAP numbers it


class BreaksBody(TypedDict, total=False):
    """Of `breaks`."""

    add: list[BreakpointSpec]
    remove: list[Name]  # ids


class SpansBody(TypedDict, total=False):
    """Of `spans`."""

    most: int  # spans; 0 to compare clocks only


class TimesBody(TypedDict, total=False):
    """Of `collective-times`."""

    last_s: float  # only calls of so many seconds; 0 for none


class CallTimes(TypedDict, total=False):
    """When a rank has called the collectives of a CollectiveGroup, oldest first: lists with one item for each call."""

    name: Name
    backend: Name
    ranks: list[int]
    seqs: list[int]
    ops: list[Name]
    at_ns: list[int]  # since the epoch, by the clock of the rank's node


class CollectiveTimes(TypedDict, total=False):
    """The answer to `collective-times`; empty where the process is no rank."""

    rank: int
    groups: list[CallTimes]
    now_ns: int  # by the same clock
    cpu_s: float
    collections: int  # of all objects by Python's garbage collector
    disk_bytes: int  # read; what was in the page cache does not count
    load: float  # of the node: processes that run or want to, mean of a minute
    cpus: int  # of the node


class NodeBody(TypedDict, total=False):
    """Of `node`: a process of this node that has ended, and what its Birth says of it."""

    pid: int
    cgroup: Text
    started: int


class NodeFacts(TypedDict, total=False):
    """What the node knows after the end of a process: the answer to `node`."""

    oom_kills: int
    node_oom_kills: int
    limit: int  # bytes of the cgroup; absent without a limit
    peak: int  # bytes that the cgroup has used at most
    total: int  # bytes of the machine
    kernel: list[Text]  # lines of the kernel's log that name the process, or an end by memory since its start
    full: list[Name]  # file systems without free space
    unread: list[Name]  # what could not be read, and the right that is missing
    raylet: Name  # how the raylet has ended; empty while it runs


DESCRIBE = _row("describe", Nothing, WorkRecord)
STACKS = _row("stacks", StacksBody, StacksRecord)
FRAMES = _row("frames", FramesBody, FramesRecord)
TRAINING = _row("training", Nothing, TrainingWords)
SPANS = _row("spans", SpansBody, SpansRecord)
"""Each span is returned once: one reader, the recorder of the run, asks for them."""
COLLECTIVE_TIMES = _row("collective-times", TimesBody, CollectiveTimes)
"""When a rank has called its last collectives, and what it and its node have used so far."""
MEMORY = _row("memory", Nothing, ProcessMemory)
CENSUS = _row("census", Nothing, Census)
"""Walks over all objects: seconds, in a thread of its own."""
PAUSE = _row("pause", PauseBody, Refusal, only_gateway=True)
"""Pauses the active thread at its next line, which PAUSE_EVENT (messages.py) tells; answered only if it cannot."""
WITHDRAW = _row("withdraw", PauseBody, Nothing, only_gateway=True)
"""Cancels a `pause`."""
SAVE_PAUSE = _row("save-pause", SavePauseBody, Nothing, only_gateway=True)
"""Has a snapshot sent of a paused thread; answered when the gateway has it."""
BREAKS = _row("breaks", BreaksBody, Nothing, only_gateway=True)
"""Each breakpoint added is reported by a BREAK."""
NODE = _row("node", NodeBody, NodeFacts, only_gateway=True)
"""What the node of a process that has ended knows of it; any other process of the node answers."""
