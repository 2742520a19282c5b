"""What a thread waits for, from the innermost frames of its stack; and what follows for a job from each kind of wait.

Both are tables: KINDS has what is known of a wait, PATTERNS by which file and function it is recognised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypedDict

from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.names import name_process, pid_option
from raydebug.protocol.records import StackFrame, ThreadStack
from raydebug.render import command
from raydebug.stacks.groups import active_thread, is_library, place_of

CERTAIN, LIKELY = "certain", "likely"
LOGS = "raydebug diagnose"
SEARCHED_FRAMES = 10  # innermost ones of a stack
COLLECTIVE: Final = "collective"


class End(IntEnum):
    """How well a thread at the end of a chain explains that its job stands; the lowest one is the cause."""

    UNPLACED = 0  # a task that no process has
    SILENT = 1
    WAITS = 2  # for something that is not ours
    STANDS = 3  # at a line, in no known wait
    MOVES = 4
    OPEN = 5  # from here on another process may be what it waits for
    SLEEPS = 6
    POLLS = 7
    OBJECT = 8
    IDLE = 9


class Job(IntEnum):
    """What a job with a verdict does."""

    STOPPED = 0  # it cannot go on
    HANGS = 1  # it does not go on, as far as it is seen
    GOES_ON = 2
    PAUSED = 3
    IDLE = 4


class Kind(NamedTuple):
    """What is known of a kind of wait, or of another verdict.

    Args:
        job: what its job does.
        end: how well a thread in this wait explains that.
        is_sure: this is what stops the job, if the thread stands there in two looks.
        at_once: one look is enough: its node has seen it.
        of_peer: it is for another process, which is then the longest call.
        has_reason: the training may know what for, such as a sample.
        may_lock: a cycle of such waits is a deadlock.
        spins: a thread uses CPU time while it waits.
    """

    job: Job = Job.HANGS
    end: End = End.WAITS
    is_sure: bool = False
    at_once: bool = False
    of_peer: bool = False
    has_reason: bool = False
    may_lock: bool = False
    spins: bool = False


KINDS = {
    # Waits of a thread
    COLLECTIVE: Kind(end=End.OBJECT, of_peer=True, spins=True),  # no verdict: that says what is wrong with it
    "ray-get": Kind(end=End.OBJECT, of_peer=True, may_lock=True, spins=True),
    "mailbox": Kind(Job.STOPPED, may_lock=True),
    "queue": Kind(end=End.OPEN, of_peer=True, has_reason=True, spins=True),
    "engine": Kind(end=End.OPEN, has_reason=True, spins=True),
    "data-loader": Kind(),
    "network": Kind(is_sure=True),
    "subprocess": Kind(is_sure=True),
    "lock": Kind(is_sure=True, has_reason=True, may_lock=True),
    "sleep": Kind(end=End.SLEEPS, of_peer=True, has_reason=True),
    "unknown": Kind(end=End.STANDS),
    # What its node says of a process that does not answer
    "gil": Kind(is_sure=True, at_once=True),
    "stopped": Kind(Job.STOPPED, is_sure=True, at_once=True),
    "disk": Kind(Job.STOPPED, is_sure=True, at_once=True),
    "gone": Kind(Job.STOPPED, is_sure=True, at_once=True),
    # Verdicts on a job
    "collective-mismatch": Kind(Job.STOPPED),
    "missing-rank": Kind(),
    "crashed-peer": Kind(Job.STOPPED),
    "deadlock": Kind(Job.STOPPED),
    "training": Kind(is_sure=True),
    "computes": Kind(),
    "slow-rank": Kind(Job.GOES_ON),
    "starting": Kind(Job.GOES_ON),
    "moving": Kind(Job.GOES_ON),
    "paused": Kind(Job.PAUSED),
    "none": Kind(Job.IDLE),
}
"""docs/09-hangs.md explains each verdict; a test compares."""

_GROUPS = "init_process_group|new_group|split_group"
COLLECTIVES = rf"^(all_|reduce|broadcast|barrier|gather|scatter|monitored|send|recv|batch_isend|{_GROUPS})"
_LIBRARY = r"/lib/python3\.\d+/"
# Most specific first; searched are the frames that the user's innermost one has called. Sources: torch 2.11 and 2.13,
# ray 2.60.0, vLLM 0.28, CPython 3.10 to 3.13, httpcore 1, aiohttp 3, pyzmq 27.
PATTERNS: tuple[tuple[str, str, str, str], ...] = (
    (r"/torch/distributed/distributed_c10d\.py$", COLLECTIVES, COLLECTIVE, "{function}"),
    (r"/ray/util/collective/collective\.py$", r"^(all|barrier|reduce|broadcast|send|recv|synchronize)", COLLECTIVE,
     "{function}"),
    (r"/vllm/distributed/(device_communicators/pynccl|utils)\.py$",
     r"^(all_|reduce|broadcast|barrier|send|recv|gather)", COLLECTIVE, "{function}"),
    (r"/vllm/distributed/device_communicators/shm_broadcast\.py$", r"^(dequeue|acquire_read)$", "queue",
     "a message of vLLM's queue"),
    (r"/vllm/distributed/device_communicators/shm_broadcast\.py$", r"^(enqueue|acquire_write)$", "queue",
     "room in vLLM's queue"),
    (r"/torch/utils/data/dataloader\.py$", r"_get_data|_try_get_data", "data-loader", "a worker of its DataLoader"),
    (r"/vllm/v1/engine/(core_client|async_llm|llm_engine)\.py$", r"^(get_output|generate|step|_?call_utility)",
     "engine", "an answer of its vLLM engine"),
    (r"/ray/_private/worker\.py$", r"^(get|wait)$", "ray-get", "ray.{function}"),
    (r"/ray/util/queue\.py$|/multiprocessing/queues\.py$|/lib/python3\.\d+/queue\.py$|/asyncio/queues\.py$",
     r"(^|\.)(get|put)$", "queue", "a queue ({function})"),
    (r"/multiprocessing/pool\.py$", r"^(get|wait)$", "queue", "a result of its process pool"),
    (r"/subprocess\.py$|/multiprocessing/popen_fork\.py$", r"^(wait|_wait|poll|_?communicate)$", "subprocess",
     "a process that it started"),
    (r"/multiprocessing/connection\.py$", r"", "queue", "a pipe ({function})"),
    (r"-packages/zmq/", r"", "network", "a message of ZeroMQ"),
    (r"/httpcore/|/aiohttp/|/http/client\.py$|/urllib3/|/requests/", r"", "network", "an HTTP response"),
    (rf"/ssl\.py$|{_LIBRARY}socket\.py$|/asyncio/streams\.py$", r"", "network", "a network connection"),
    (rf"{_LIBRARY}concurrent/futures/", r"^(result|exception|wait|as_completed)$", "lock", "a future ({function})"),
    (rf"{_LIBRARY}threading\.py$", r"^(join|_wait_for_tstate_lock)$", "lock", "a thread (join)"),
    (rf"{_LIBRARY}(threading|asyncio/locks)\.py$", r"^(wait|wait_for|acquire)$", "lock",
     "a lock or an event ({function})"),
    (rf"{_LIBRARY}asyncio/tasks\.py$", r"^(sleep)$", "sleep", "asyncio.sleep"),
)  # fmt: skip
# Calls of C in the innermost line, as the process found them (worker/thread_waits.py).
CALLS = {
    "sleep": ("sleep", "time.sleep"),
    "acquire": ("lock", "a lock or an event (acquire)"),
    "socket": ("network", "a network connection"),
}


class Link(TypedDict):
    """A process or thread in the chain of those that wait for each other, and what it waits for."""

    pid: int | None
    rank: int | None
    who: str
    at: str
    kind: str  # how it waits for the next one; for the last link the kind of its own wait
    waits_for: str
    looks: int  # in how many looks it was seen to wait for the next one


class Verdict(TypedDict):
    """What the job waits for."""

    kind: str
    certainty: str
    text: str
    next: str | None
    pids: list[int]  # the process at the end of the chain comes first
    instances: list[str]  # of the same processes: several nodes may have a pid
    ranks: list[int]
    chain: list[Link]  # who waits for whom, down to that process; empty where nobody waits for it
    call_age_s: float | None  # for how long that process has been in its outermost call


@dataclass(frozen=True, eq=False)
class Wait:
    """What a thread of a process waits for.

    Args:
        kind: a row of KINDS.
        what: in words.
        at: the user's frame, or the innermost one.
    """

    kind: str
    what: str
    process: ListedStacks
    at: StackFrame
    thread: ThreadStack

    @property
    def who(self) -> str:
        """The process, in words."""
        return who(self.process)


def wait_of(process: ListedStacks, thread: ThreadStack | None = None) -> Wait:
    """Return what a thread of a process waits for, the active one by default."""
    thread = active_thread(process) if thread is None else thread
    other = ("lock", "a lock") if "wants" in thread else ("unknown", "")
    return Wait(*next(matches(thread), other), process, place_of(thread.get("frames", [])), thread)


def matches(thread: ThreadStack) -> Iterator[tuple[str, str]]:
    """Yield kind and words of each known wait that a stack is in, most specific first."""
    frames = thread.get("frames", [])
    own = next((n for n, frame in enumerate(frames) if not is_library(frame.get("file", ""))), len(frames))
    for path, function, kind, words in PATTERNS:
        for frame in frames[: min(own, SEARCHED_FRAMES)]:
            name = frame.get("function", "").rpartition(".")[2]
            if re.search(path, frame.get("file", "")) and re.search(function, name):
                yield kind, words.format(function=name) + _detail(kind, thread)
    if (call := CALLS.get(thread.get("in_call", ""))) is not None:
        yield call[0], call[1] + _detail(call[0], thread)


def _detail(kind: str, thread: ThreadStack) -> str:
    if kind == "ray-get" and (objects := thread.get("objects")):
        more = f" and {len(objects) - 2} more" if len(objects) > 3 else ""
        return f" of object {', '.join(objects[: 2 if more else 3])}{more}"
    if kind == "network" and thread.get("host"):
        return f" from {thread['host']}"
    return f" (pid {thread['child']})" if kind == "subprocess" and thread.get("child") else ""


def holds_gil(process: ListedStacks, thread: ThreadStack) -> bool:
    """Return whether a thread of a process that does not answer holds Python's lock, as far as is known."""
    return not process.get("stopped") and thread.get("gil", False)


# Words


def who(process: ListedStacks) -> str:
    """Name a process in a sentence: `Trainer rank 1`, `driver (pid 7)`."""
    return name_process(process) + (f" (pid {process['pid']})" if process["rank"] is None else "")


def for_seconds(age_s: float | None) -> str:
    """Return for how long something has gone on, as the end of a phrase; empty if that is unknown."""
    return "" if age_s is None else f" for {age_s:.0f} s"


def count(processes: Sequence[ListedStacks]) -> str:
    """Return the beginning of a sentence: `Trainer rank 1 is`, `3 processes are`."""
    if len(processes) == 1:
        return f"{who(processes[0])} is"
    return f"{len(processes)} processes are"


def attach(process: ListedStacks, thread: ThreadStack | None = None) -> str:
    """Return the command that opens a debugger in a process: in its active thread, or in another one."""
    option = [] if thread is None or thread is active_thread(process) else ["--thread", thread["name"]]
    return command("raydebug", "attach", "--pid", pid_option(process), *option)


def show_locals(process: ListedStacks) -> str:
    """Return the command that shows a process which waits: it comes to no line of Python at which it could pause."""
    return command("raydebug", "stacks", "--locals", pid_option(process))


def make_verdict(
    kind: str, certainty: str, text: str, next_command: str | None, processes: Sequence[ListedStacks] = ()
) -> Verdict:
    """Return a verdict that names these processes, the one at the end of the chain first."""
    return {
        "kind": kind,
        "certainty": certainty,
        "text": text,
        "next": next_command,
        "pids": [process["pid"] or 0 for process in processes],
        "instances": [process["instance"] for process in processes],
        "ranks": sorted({process["rank"] for process in processes if process["rank"] is not None}),
        "chain": [],
        "call_age_s": None,
    }
