"""The questions of the gateway to a process, over its control channel: one row for each.

A question is a DAP request whose command is its name; its number is the id by which the response is found. Where no
answer is needed (`breaks`, `withdraw`) it is an event, which is not answered. A process answers in any order. It
answers UNKNOWN (messages.py) to a question that its raydebug does not have, and the cause when it fails.

A new question needs its row here, its function in worker/ (`ANSWERED_BY` in worker/control_channel.py), and a verb:
the gateway, `POST /processes/NAME` and `gateway_client.ask_processes` serve each row.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

from raydebug.protocol.records import BreakpointSpec, FramesRecord, Name, Refusal, StacksRecord, Text, WorkRecord

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
    threadId: int  # as DAP numbers it; without one it is the active thread


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


# What a process says of its memory; all sizes are in bytes.


class DeviceMemory(TypedDict, total=False):
    """A GPU of the process's node, and what the process has of it."""

    gpu: Name  # the driver's UUID
    used: int  # of all processes
    total: int
    own: int  # of this process, by the driver; left out where it knows the process by another id
    reserved: int  # by torch's allocator
    pool: int  # of vLLM's allocator that can sleep, which torch does not count
    asleep: int  # the part of `pool` that sleeps, and is not on the GPU


class NodeMemory(TypedDict, total=False):
    """The host memory of a node, and of the container of the process."""

    total: int
    available: int
    cached: int
    shared: int
    shm: int  # in /dev/shm
    limit: int  # of the cgroup; left out without one
    used: int  # of the cgroup


class ProcessMemory(TypedDict, total=False):
    """The answer to `memory`."""

    rss: int
    pss: int  # memory that processes share is divided between them
    shared: int  # in `pss`: shared memory
    peak: int  # of `rss`
    peak_phase: Name  # of the training, in which the peak was reached
    parent: int  # process id
    forked: Text  # the line that made this process a fork of its parent
    node: NodeMemory
    gpus: list[DeviceMemory]


class Holder(TypedDict, total=False):
    """What is held under one name; `[*]` stands for all items of a container."""

    holder: Text
    kind: Name  # tensor, cuda tensor, array, graph, mapped, bytes or objects
    what: Name  # shape and type of the first one
    count: int
    bytes: int


class Census(TypedDict, total=False):
    """The answer to `census`: who holds the memory of a process, the largest first."""

    holders: list[Holder]
    cut: bool  # the time, or the memory that the walk may take, was over before all was seen
    left: int  # bytes that the process has more after the walk than before it


# The spans that have ended in a process: phases, parts of samples, requests to an engine.

MOST_AT_ONCE = 1000  # spans of one answer; a record holds no longer list (records.py)
REQUEST = "request"  # the name of a request to an engine


class SpanRecord(TypedDict, total=False):
    """A span; its times are nanoseconds of the process's CLOCK_MONOTONIC."""

    name: Name
    began_ns: int
    ended_ns: int
    thread: int
    task: int  # of asyncio
    of: Name  # the number of a step, the uid of a sample, the id of a request
    note: Name  # the tools of a sample
    first_ns: int  # of a request: its first output
    prompt: int  # its tokens
    tokens: int  # that were made


class SpansRecord(TypedDict, total=False):
    """The answer to `spans`, and what a process says of itself as it ends.

    The gateway adds when it has sent the question and received the answer: so the clocks of nodes are compared.
    """

    spans: list[SpanRecord]
    lost: int  # spans that were dropped since the last answer
    more: bool  # the process has more of them
    now_ns: int  # of the process's CLOCK_MONOTONIC
    wall_ns: int  # what the process's own clock is ahead of it
    sent_ns: int  # of the gateway's CLOCK_MONOTONIC, as are the next
    received_ns: int
    gateway_wall_ns: int  # what the gateway's clock is ahead of it


# What a training says of itself. Each process sends the part that it knows: the trainer its step, an agent worker its
# samples, an engine its requests.


class OpenSample(TypedDict, total=False):
    """A sample that is not finished."""

    uid: Name
    state: Name  # in the trainer's own words: running, pending, generating, ...
    turn: int  # of the conversation, from 1
    tool: Name  # that it has called
    url: Text  # that it waits for
    age_s: float


class OpenReward(TypedDict, total=False):
    """A call of a reward function that has not returned."""

    data_source: Name
    function: Name
    url: Text  # of the judge or model that it asks
    age_s: float


class OpenRequest(TypedDict, total=False):
    """A request to an engine that has no answer."""

    id: Name
    engine: int  # process id of the engine; left out where it is unknown, or there are several
    tokens: int  # made so far
    age_s: float


class WeightSync(TypedDict, total=False):
    """A synchronisation of weights that has begun and not ended."""

    side: Name  # of this process: trainer, rollout, or both
    missing: Name  # the side that has not joined, as far as this process knows
    age_s: float


class TrainingWords(TypedDict, total=False):
    """What a process of a training knows of its work; lists have the oldest ones first."""

    step: int
    phase: Name  # in the trainer's own words: gen, reward, update_actor, ...
    phase_age_s: float
    starting: bool  # no step has begun
    ended: int  # counts the phases, samples and parts of samples that have ended
    samples: list[OpenSample]
    samples_total: int  # more than `samples` has, where there are too many
    rewards: list[OpenReward]
    requests: list[OpenRequest]
    sync: WeightSync


# The rows

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
"""Has a snapshot sent of a thread; answered when the gateway has it."""
BREAKS = _row("breaks", BreaksBody, Nothing, only_gateway=True)
"""Each breakpoint added is reported by a BREAK."""
NODE = _row("node", NodeBody, NodeFacts, only_gateway=True)
"""What the node of a process that has ended knows of it; any other process of the node answers."""
