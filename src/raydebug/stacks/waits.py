"""What a process waits for, from the innermost frames of its stack; and the words of a verdict.

The known waits are data: PATTERNS has rows of (file, function, kind, words).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal, TypeAlias, TypedDict

from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.records import StackFrame, ThreadStack
from raydebug.render import command, runs
from raydebug.stacks.groups import active_thread, place_of

CERTAIN, LIKELY = "certain", "likely"
SEARCHED_FRAMES = 10  # innermost ones of a stack
COLLECTIVE: Final = "collective"
# docs/09-hangs.md explains each; a test compares.
VerdictKind: TypeAlias = Literal[
    "collective-mismatch", "missing-rank", "crashed-peer", "deadlock", "ray-get", "mailbox", "queue", "data-loader",
    "network", "subprocess", "sleep", "gil", "paused", "moving", "unknown", "none",
]  # fmt: skip
WaitKind: TypeAlias = VerdictKind | Literal["collective"]  # a verdict says what is wrong with it

_GROUPS = "init_process_group|new_group|split_group"
COLLECTIVES = rf"^(all_|reduce|broadcast|barrier|gather|scatter|monitored|send|recv|batch_isend|{_GROUPS})"
# Most specific first. Sources: torch 2.11 and 2.13, ray 2.60.0, CPython 3.11 to 3.13, httpcore 1, aiohttp 3.
PATTERNS: tuple[tuple[str, str, WaitKind, str], ...] = (
    (r"/torch/distributed/distributed_c10d\.py$", COLLECTIVES, COLLECTIVE, "{function}"),
    (r"/torch/utils/data/dataloader\.py$", r"_get_data|_try_get_data", "data-loader", "a worker of its DataLoader"),
    (r"/ray/_private/worker\.py$", r"^(get|wait)$", "ray-get", "ray.{function}"),
    (r"/ray/util/queue\.py$|/multiprocessing/queues\.py$|/lib/python3\.\d+/queue\.py$|/asyncio/queues\.py$",
     r"(^|\.)(get|put)$", "queue", "a queue ({function})"),
    (r"/subprocess\.py$", r"(^|\.)(wait|_wait|communicate|_communicate)$", "subprocess", "a process that it started"),
    (r"/httpcore/|/aiohttp/|/http/client\.py$|/urllib3/|/requests/", r"", "network", "an HTTP response"),
    (r"/ssl\.py$|/lib/python3\.\d+/socket\.py$|/asyncio/streams\.py$", r"", "network", "a network connection"),
)  # fmt: skip
SLEEP = re.compile(r"\b(time\.)?sleep\(")


class Verdict(TypedDict):
    """What the job waits for."""

    kind: VerdictKind
    certainty: str
    text: str
    next: str | None
    pids: list[int]
    ranks: list[int]


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
        return name_process(self.process)


def wait_of(process: ListedStacks) -> Wait:
    """Return what the active thread of a process waits for."""
    thread = active_thread(process)
    at = place_of(thread.get("frames", []))
    found = next(matches(thread), None)
    if found is not None:
        return Wait(*found, process, at, thread)
    frames = thread.get("frames", [])
    if frames and SLEEP.search(frames[0].get("text", "")):
        return Wait("sleep", "time.sleep", process, at, thread)
    return Wait("unknown", "", process, at, thread)


def matches(thread: ThreadStack) -> Iterator[tuple[WaitKind, str]]:
    """Yield kind and words of each pattern that a stack matches, most specific first."""
    for path, function, kind, words in PATTERNS:
        for frame in thread.get("frames", [])[:SEARCHED_FRAMES]:
            name = frame.get("function", "")
            if re.search(path, frame.get("file", "")) and re.search(function, name.rpartition(".")[2]):
                yield kind, words.format(function=name.rpartition(".")[2]) + _detail(kind, thread)


def _detail(kind: str, thread: ThreadStack) -> str:
    if kind == "ray-get" and thread.get("objects"):
        return f" of object {', '.join(thread['objects'][:3])}"
    if kind == "network" and thread.get("host"):
        return f" from {thread['host']}"
    if kind == "subprocess" and thread.get("child"):
        return f" (pid {thread['child']})"
    return ""


def holds_gil(process: ListedStacks, thread: ThreadStack) -> bool:
    """Return whether a thread of a process that does not answer holds Python's lock, as far as is known."""
    return not process.get("stopped") and thread.get("gil", False)


# Words


def name_process(process: ListedStacks) -> str:
    """Name a process for people: `rank 1 of Trainer`, `driver (pid 7)`."""
    role = process["role"] if len(process["role"]) <= 40 else PurePath(process["role"].split()[0]).name
    return f"rank {process['rank']} of {role}" if process["rank"] is not None else f"{role} (pid {process['pid']})"


def name_ranks(waits: Sequence[Wait]) -> str:
    """Name processes by their ranks in short form: `rank 0-3,7`; those without ranks by their number."""
    ranks = [one.process["rank"] for one in waits if one.process["rank"] is not None]
    return f"rank {','.join(runs(ranks))}" if ranks else f"{len(waits)} process{'es' if len(waits) > 1 else ''}"


def count(processes: Sequence[ListedStacks]) -> str:
    """Return the beginning of a sentence: `rank 1 of Trainer is`, `3 processes are`."""
    if len(processes) == 1:
        return f"{name_process(processes[0])} is"
    return f"{len(processes)} processes are"


def attach(process: ListedStacks) -> str:
    """Return the command that opens a debugger in a process."""
    return command("raydebug", "attach", "--pid", str(process["pid"]))


def make_verdict(
    kind: VerdictKind, certainty: str, text: str, next_command: str | None, processes: Sequence[ListedStacks] = ()
) -> Verdict:
    """Return a verdict that names these processes."""
    return {
        "kind": kind,
        "certainty": certainty,
        "text": text,
        "next": next_command,
        "pids": [one["pid"] or 0 for one in processes],
        "ranks": sorted({one["rank"] for one in processes if one["rank"] is not None}),
    }
