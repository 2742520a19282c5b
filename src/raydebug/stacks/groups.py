"""Group processes by role and by the stack of the thread that runs the user's code; outliers come first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypedDict

from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.records import StackFrame, ThreadStack

# Ray's loop of a worker that has nothing to do (ray 2.60.0): the innermost frame of Python is one of these.
IDLE = (("/ray/_private/worker.py", "main_loop"), ("/ray/_private/workers/default_worker.py", "<module>"))
# The last folder is ours, where it runs from a checkout.
_OF_PACKAGES = re.compile(r"/(?:site-packages|dist-packages|lib/python3[.\d]*|src/raydebug/worker)/|^<")
OUTLIER_BELOW = 1 / 3  # of the processes of a role
# Libraries that a trainer calls. If it is a package itself (verl), its own frames say more than theirs.
BELOW_TRAINERS = re.compile(r"-packages/(torch|ray|tensordict|numpy|uvloop)/|/lib/python3[.\d]*/(?!.*-packages/)|^<")
EVENT_LOOP = "AsyncIO Thread:"  # the thread of an async actor's loop (ray 2.60.0 _raylet.pyx)
# Loops of servers and pools, and what they call while they have no request and no work.
_SERVES = re.compile(
    r"/(?:(?:socketserver|multiprocessing/managers|asyncio/base_events)\.py \S*serve_forever|socket\.py \S*accept"
    r"|multiprocessing/pool\.py worker|uvicorn/server\.py \S+)$"
)
_IS_AWAITED = re.compile(
    r"/lib/python3[.\d]*/(?:selectors|threading|asyncio/\w+|multiprocessing/(?:connection|queues|synchronize))\.py$"
    r"|-packages/uvloop/"
)
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib/python3[.\d]*)/")


class StackGroup(TypedDict):
    """Processes of one role with the same stack."""

    role: str
    ranks: list[int]
    pids: list[int]
    instances: list[str]  # of the same processes: several nodes may have a pid
    frames: list[StackFrame]  # of the first process, innermost first
    outlier: bool


def active_thread(process: ListedStacks) -> ThreadStack:
    """Return the thread or asyncio task that runs the user's code; empty if the process has not answered."""
    threads = process["threads"]
    tasks = [thread for thread in threads[1:] if thread["name"].startswith("task ")]
    candidates = [*tasks, *threads[:1]] if threads and _waits_in_loop(threads[0]) else [*threads[:1], *tasks]
    empty: ThreadStack = {"name": "", "frames": []}
    own = [thread for thread in candidates if users_frame(thread.get("frames", []))]
    if not own and threads and _waits_in_loop(threads[0]):  # tasks of a trainer that is a package itself
        own = [task for task in tasks if any(not BELOW_TRAINERS.search(f.get("file", "")) for f in task["frames"])]
    return next(iter((*own, *threads, empty)))


def _waits_in_loop(thread: ThreadStack) -> bool:
    """Return whether a thread is in the event loop of asyncio, and runs no task of the user's now."""
    if _is_in_uvloop(thread):
        return True
    for frame in thread.get("frames", []):
        if frame.get("file", "").endswith("/asyncio/base_events.py"):
            return True
        if users_frame([frame]):
            return False
    return False


def _is_in_uvloop(thread: ThreadStack) -> bool:
    """Return whether a thread is in a loop of uvloop, which is compiled: its caller is the innermost frame."""
    frames = thread.get("frames", [])
    inner = frames[0] if frames else {}
    file, function = inner.get("file", ""), inner.get("function", "").rpartition(".")[2]
    is_rays = file.endswith("/threading.py") and thread["name"].startswith(EVENT_LOOP)
    return function == "run" and (is_rays or file.endswith("/asyncio/runners.py"))


def active_frames(process: ListedStacks) -> list[StackFrame]:
    """Return the stack of the user's code, innermost frame first; empty if it is unknown."""
    return active_thread(process).get("frames", [])


def is_idle(process: ListedStacks) -> bool:
    """Return whether a process is an idle Ray worker."""
    return is_idle_thread(active_thread(process))


def is_idle_thread(thread: ThreadStack) -> bool:
    """Return whether a thread is in the loop of a Ray worker or of asyncio, and has nothing to do."""
    frames = thread.get("frames", [])
    inner = frames[0] if frames else {}
    in_loop = inner.get("file", "").endswith("/selectors.py") or _is_in_uvloop(thread)
    if in_loop and all(BELOW_TRAINERS.search(f["file"]) for f in frames):
        return True
    return any(inner.get("file", "").endswith(path) and inner.get("function", "").endswith(name) for path, name in IDLE)


def is_idle_server(frames: Sequence[StackFrame]) -> bool:
    """Return whether a thread is in the loop of a server or of a process pool, and has no request or work."""
    for frame in frames:
        file = frame.get("file", "")
        if _SERVES.search(f"{file} {frame.get('function', '')}"):
            return True
        if not _IS_AWAITED.search(file):
            return False
    return False


def group(processes: Iterable[ListedStacks]) -> list[StackGroup]:
    """Return the groups of the processes that answered and are not idle, outliers first, then by role."""
    by_stack: dict[tuple[str, object], list[ListedStacks]] = {}
    for process in processes:
        if process["threads"] and not is_idle(process):
            by_stack.setdefault((process["role"], _key(active_frames(process))), []).append(process)
    sizes: dict[str, int] = {}
    for (role, _), members in by_stack.items():
        sizes[role] = sizes.get(role, 0) + len(members)
    groups: list[StackGroup] = [
        {
            "role": role,
            "ranks": sorted({process["rank"] for process in members if process["rank"] is not None}),
            "pids": [process["pid"] or 0 for process in members],
            "instances": [process["instance"] for process in members],
            "frames": active_frames(members[0]),
            "outlier": len(members) < OUTLIER_BELOW * sizes[role],
        }
        for (role, _), members in by_stack.items()
    ]
    return sorted(groups, key=lambda one: (not one["outlier"], one["role"], one["ranks"], one["pids"]))


def _key(frames: Sequence[StackFrame]) -> object:
    """Return a key that is the same for equal stacks; line numbers count in the user's files only."""
    return tuple(
        (frame.get("file"), frame.get("function"), None if is_library(frame.get("file", "")) else frame.get("line"))
        for frame in frames
    )


def is_library(path: str) -> bool:
    """Say whether a file belongs to Python's library or a package, or is no file."""
    return bool(_OF_PACKAGES.search(path))


def place(frame: StackFrame) -> str:
    """Return a frame as `file:line function`; the path of a library is left out."""
    file = _LIBRARY.sub("", frame.get("file", "?"))
    return f"{file}:{frame.get('line', 0)} {frame.get('function', '?')}"


def users_frame(frames: Sequence[StackFrame]) -> StackFrame | None:
    """Return the innermost frame that belongs neither to Python's library nor to a package."""
    return next(iter(users_frames(frames)), None)


def place_of(frames: Sequence[StackFrame]) -> StackFrame:
    """Return the frame that says where a thread is: the user's innermost one, a trainer's, or the innermost of all."""
    trainers = [frame for frame in frames if not BELOW_TRAINERS.search(frame.get("file", ""))]
    candidates = [*users_frames(frames)[:1], *trainers[:1], *frames[:1]]
    return candidates[0] if candidates else {}


def users_frames(frames: Sequence[StackFrame]) -> list[StackFrame]:
    """Return the frames that belong neither to Python's library nor to a package."""
    return [frame for frame in frames if not is_library(frame.get("file", ""))]
