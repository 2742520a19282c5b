"""What a process waits for, from the innermost frames of its stack; and the words of a verdict.

The known waits are data: PATTERNS has rows of (file, function, kind, words).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypedDict

from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.names import name_process
from raydebug.protocol.records import StackFrame, ThreadStack
from raydebug.render import command
from raydebug.stacks.groups import active_thread, is_library, place_of

CERTAIN, LIKELY = "certain", "likely"
LOGS = "raydebug diagnose"
SEARCHED_FRAMES = 10  # innermost ones of a stack
COLLECTIVE: Final = "collective"
# docs/09-hangs.md explains each; a test compares.
VerdictKind: TypeAlias = Literal[
    "collective-mismatch", "missing-rank", "crashed-peer", "deadlock", "ray-get", "mailbox", "queue", "data-loader",
    "engine", "network", "subprocess", "lock", "sleep", "gil", "stopped", "disk", "gone", "paused", "computes",
    "training", "starting", "moving", "slow-rank", "unknown", "none",
]  # fmt: skip
WaitKind: TypeAlias = VerdictKind | Literal["collective"]  # a verdict says what is wrong with it

_GROUPS = "init_process_group|new_group|split_group"
COLLECTIVES = rf"^(all_|reduce|broadcast|barrier|gather|scatter|monitored|send|recv|batch_isend|{_GROUPS})"
_LIBRARY = r"/lib/python3\.\d+/"
# Most specific first; searched are the frames that the user's innermost one has called. Sources: torch 2.11 and 2.13,
# ray 2.60.0, vLLM 0.28, CPython 3.10 to 3.13, httpcore 1, aiohttp 3.
PATTERNS: tuple[tuple[str, str, WaitKind, str], ...] = (
    (r"/torch/distributed/distributed_c10d\.py$", COLLECTIVES, COLLECTIVE, "{function}"),
    (r"/ray/util/collective/collective\.py$", r"^(all|barrier|reduce|broadcast|send|recv|synchronize)", COLLECTIVE,
     "{function}"),
    (r"/vllm/distributed/(device_communicators/pynccl|utils)\.py$",
     r"^(all_|reduce|broadcast|barrier|send|recv|gather)", COLLECTIVE, "{function}"),
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
    (r"/httpcore/|/aiohttp/|/http/client\.py$|/urllib3/|/requests/", r"", "network", "an HTTP response"),
    (rf"/ssl\.py$|{_LIBRARY}socket\.py$|/asyncio/streams\.py$", r"", "network", "a network connection"),
    (rf"{_LIBRARY}concurrent/futures/", r"^(result|exception|wait|as_completed)$", "lock", "a future ({function})"),
    (rf"{_LIBRARY}threading\.py$", r"^(join|_wait_for_tstate_lock)$", "lock", "a thread (join)"),
    (rf"{_LIBRARY}(threading|asyncio/locks)\.py$", r"^(wait|wait_for|acquire)$", "lock",
     "a lock or an event ({function})"),
    (rf"{_LIBRARY}asyncio/tasks\.py$", r"^(sleep)$", "sleep", "asyncio.sleep"),
)  # fmt: skip
# Calls of C in the user's own line.
CALLS: tuple[tuple[re.Pattern[str], WaitKind, str], ...] = (
    (re.compile(r"\b(time\.)?sleep\("), "sleep", "time.sleep"),
    (re.compile(r"\.(acquire)\("), "lock", "a lock or an event (acquire)"),
    (re.compile(r"\.(recv|recv_into|recvfrom|accept|connect|sendall)\("), "network", "a network connection"),
)


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

    kind: VerdictKind
    certainty: str
    text: str
    next: str | None
    pids: list[int]  # the process at the end of the chain comes first
    ranks: list[int]
    chain: list[Link]  # who waits for whom, down to that process; empty where nobody waits for it
    call_age_s: float | None  # for how long that process has been in its outermost call


@dataclass(frozen=True, eq=False)
class Wait:
    """What the active thread of a process waits for.

    Args:
        what: in words.
        at: the user's frame, or the innermost one.
    """

    kind: WaitKind
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
    at = place_of(thread.get("frames", []))
    other: tuple[WaitKind, str] = ("lock", "a lock") if "wants" in thread else ("unknown", "")
    return Wait(*next(matches(thread), other), process, at, thread)


def matches(thread: ThreadStack) -> Iterator[tuple[WaitKind, str]]:
    """Yield kind and words of each known wait that a stack is in, most specific first."""
    frames = thread.get("frames", [])
    own = next((n for n, one in enumerate(frames) if not is_library(one.get("file", ""))), len(frames))
    for path, function, kind, words in PATTERNS:
        for frame in frames[: min(own, SEARCHED_FRAMES)]:
            name = frame.get("function", "").rpartition(".")[2]
            if re.search(path, frame.get("file", "")) and re.search(function, name):
                yield kind, words.format(function=name) + _detail(kind, thread)
    text = frames[0].get("text", "") if frames else ""
    for call, kind, words in CALLS:
        if call.search(text):
            yield kind, words + _detail(kind, thread)


def _detail(kind: str, thread: ThreadStack) -> str:
    if kind == "ray-get" and (objects := thread.get("objects")):
        more = f" and {len(objects) - 2} more" if len(objects) > 3 else ""
        return f" of object {', '.join(objects[: 2 if more else 3])}{more}"
    if kind == "network" and thread.get("host"):
        return f" from {thread['host']}"
    if kind == "subprocess" and thread.get("child"):
        return f" (pid {thread['child']})"
    return ""


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


def attach(process: ListedStacks) -> str:
    """Return the command that opens a debugger in a process."""
    return command("raydebug", "attach", "--pid", str(process["pid"]))


def make_verdict(
    kind: VerdictKind, certainty: str, text: str, next_command: str | None, processes: Sequence[ListedStacks] = ()
) -> Verdict:
    """Return a verdict that names these processes, the one at the end of the chain first."""
    return {
        "kind": kind,
        "certainty": certainty,
        "text": text,
        "next": next_command,
        "pids": [one["pid"] or 0 for one in processes],
        "ranks": sorted({one["rank"] for one in processes if one["rank"] is not None}),
        "chain": [],
        "call_age_s": None,
    }
