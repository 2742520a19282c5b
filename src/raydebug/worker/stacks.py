"""Collect the stacks of this process: all threads and asyncio tasks, with what each waits for.

No code of the user's classes is called; thread_waits.py says which locals are read.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from types import FrameType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, TypeVar

from raydebug.protocol.node_facts import cpu_seconds, io_bytes
from raydebug.protocol.questions import FramesBody, StacksBody
from raydebug.protocol.records import (
    MAX_ITEMS,
    FramesRecord,
    OpenCall,
    StackFrame,
    StacksRecord,
    ThreadStack,
    digest_of,
)
from raydebug.protocol.secrets import scrubbed
from raydebug.protocol.snapshot import SavedValue
from raydebug.worker import flight_recorder, records
from raydebug.worker.frame_locals import CO_OPTIMIZED, locals_of
from raydebug.worker.frames import MAX_NAME, active_thread, is_users, line_at, outwards, own_threads
from raydebug.worker.saved_values import Values
from raydebug.worker.thread_waits import note_waits, shared_memory_id

MAX_FRAMES, MAX_THREADS, MAX_TASKS = 64, 200, 100
MAX_AWAITED = 1000  # coroutines that await one another
OUTERMOST = 16  # of the frames of a deep stack
MAX_LOCALS, LOCALS_S, LOCALS_BYTES = 40, 1.0, 200_000  # of a frame; of a look
MAX_FILES = 4096
FILES = "/proc/self/fd"
SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - only what processes have open there is looked at
MAX_OBJECTS = 10_000  # of all threads: 0.6 MB of an answer
# asyncio's own sets of tasks: CPython 3.11 asyncio/tasks.py `_all_tasks`; 3.12 and 3.13 have the other two.
TASK_SETS = ("_all_tasks", "_scheduled_tasks", "_eager_tasks")
# Of a Cython coroutine of Ray; of an async generator in `async for`.
WRAPPERS = ("coroutine_wrapper", "async_generator_asend")
NATIVE = (GetSetDescriptorType, MemberDescriptorType)
_Stack = TypeVar("_Stack", bound="tuple[Any, int, list[FrameType]]")
_WORLD = "WORLD_SIZE"  # torch/distributed/run.py; verl 0.9.1 single_controller/base/worker.py


def collect(*, with_locals: bool = False) -> StacksRecord:
    """Return the stacks of this process, without those of raydebug and the debugger."""
    describe = partial(_describe, values=Values(time.monotonic() + LOCALS_S, LOCALS_BYTES, read_tensors=False)
                       if with_locals else None)  # fmt: skip
    active = active_thread()
    threads = {thread.ident: thread for thread in threading.enumerate()}
    seen: list[tuple[threading.Thread | None, int, list[FrameType]]] = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda one: one[0] != active):
        thread = threads.get(ident)
        # Not by getattr: a class of the user's may have a __getattr__.
        attributes = {} if thread is None else object.__getattribute__(thread, "__dict__")
        if ident in own_threads or attributes.get("is_pydev_daemon_thread", False):
            continue
        seen.append((thread, ident, callers(frame)))
    found: list[ThreadStack] = []
    called: list[OpenCall] = []
    for thread, ident, frames in _of_each_kind(seen, MAX_THREADS):
        found.append(describe(scrubbed(thread.name) if thread is not None else f"thread {ident}", frames, thread))
        if (call := open_call(found[-1]["name"], frames)) is not None:
            called.append(call)
        if thread is not None and thread.native_id is not None:
            found[-1]["cpu_s"] = cpu_seconds(f"self/task/{thread.native_id}")
    tasks = list(stacks_of_tasks())
    shown = [
        describe(scrubbed(f"task {task.get_name()}"), frames, task)
        for task, _, frames in _of_each_kind(tasks, MAX_TASKS)
    ]
    world = os.environ.get(_WORLD, "")
    record: StacksRecord = {**records.describe_process(), **records.describe_work()}  # type: ignore[typeddict-item]
    record["world"] = int(world) if world.isdigit() else None
    record["threads"] = found + shown
    left = MAX_OBJECTS
    for stack in record["threads"]:
        for ids in (stack.get("objects", []), stack.get("polls", [])):
            del ids[left:]
            left -= len(ids)
    record["calls"] = called
    record["left_out"] = len(seen) - len(found) + len(tasks) - len(shown)
    with contextlib.suppress(Exception):  # torch may be partly imported, or of another version
        if own := flight_recorder.own_rank():
            record["rank"], record["world"] = own
            record["collectives"] = flight_recorder.read_groups()
    with contextlib.suppress(Exception):
        if groups := flight_recorder.read_ray_groups([frames for _, _, frames in seen]):
            record["collectives"] = [*record.get("collectives", []), *groups]
    with contextlib.suppress(OSError):
        record["listens"], record["pipes"] = read_open_files()
    ended = os.times()
    record["children_cpu_s"] = round(ended.children_user + ended.children_system, 2)
    record["io_bytes"] = io_bytes()
    return record


_sent: deque[dict[str, list[StackFrame]]] = deque(maxlen=4)  # by digest; several clients may ask at one time


def stacks_for(body: StacksBody) -> StacksRecord:
    """Return the stacks of this process, if asked for with the digests of their frames: `frames_of` knows the last."""
    record = collect(with_locals=body.get("locals", False))
    if not body.get("digests"):
        return record
    sent = {}
    for thread in record["threads"]:
        frames = thread.pop("frames")
        thread["digest"] = digest_of(frames)
        sent[thread["digest"]] = frames
    _sent.append(sent)
    return record


def frames_of(body: FramesBody) -> FramesRecord:
    """Return the frames that digests stand for."""
    known = {digest: frames for sent in _sent for digest, frames in sent.items() if digest in body["digests"]}
    return {"known": [{"digest": digest, "frames": frames} for digest, frames in known.items()]}


def _of_each_kind(stacks: list[_Stack], limit: int) -> list[_Stack]:
    """Return up to `limit` of these stacks in their order, first of all one of each kind: with the same frames."""
    if len(stacks) <= limit:
        return stacks
    first: dict[tuple[tuple[int, int], ...], int] = {}
    for number, (_, _, frames) in enumerate(stacks):
        first.setdefault(tuple((id(frame.f_code), frame.f_lineno) for frame in frames), number)
    others = {*range(len(stacks))}.difference(first.values())
    return [stacks[number] for number in sorted([*first.values(), *sorted(others)][:limit])]


def callers(frame: FrameType | None) -> list[FrameType]:
    """Return a frame and its callers, innermost first."""
    return _shorten([*outwards(frame)])


def _shorten(frames: list[FrameType]) -> list[FrameType]:
    """Leave out frames in the middle of a deep stack: the outermost ones say for what a thread works."""
    return frames if len(frames) <= MAX_FRAMES else frames[: MAX_FRAMES - OUTERMOST] + frames[-OUTERMOST:]


def _describe(name: str, frames: list[FrameType], owner: Any, values: Values | None) -> ThreadStack:
    stack: ThreadStack = {"name": name[:MAX_NAME], "frames": []}
    for frame in frames:
        file, line = frame.f_code.co_filename, frame.f_lineno or 0
        place: StackFrame = {"file": file, "line": line, "function": frame.f_code.co_qualname[:MAX_NAME]}
        if frame is frames[0] or (is_users(frame) and "-packages/" not in file):
            place["text"] = line_at(file, line)
            if values is not None and frame.f_code.co_flags & CO_OPTIMIZED:
                found = values.add([*locals_of(frame).items()][:MAX_LOCALS], depth=0)
                place["locals"] = [f"{name} = {_text_of(values.saved[at])}" for name, at in found.items()]
        stack["frames"].append(place)
    note_waits(stack, frames, owner)
    return stack


def _text_of(value: SavedValue) -> str:
    if about := value.get("tensor"):
        return f"{value['type']} {about['shape']} {about['dtype']} {about['device']}"
    if "text" in value or value.get("redacted"):
        text = scrubbed(value.get("text", "(a secret)"))[:MAX_NAME]
        return repr(text) if value["type"] == "str" and not value.get("redacted") else text
    return f"{value['type']}, {value['length']} items" if "length" in value else value["type"]


def stacks_of_tasks() -> Iterator[tuple[Any, int, list[FrameType]]]:
    """Yield asyncio's tasks with their stacks, innermost frame first; those that wait for another task come last."""
    tasks: Any = sys.modules.get("asyncio.tasks")
    if tasks is None:
        return
    found = [task for name in TASK_SETS for task in _copied(getattr(tasks, name, ())) if type(task) is tasks.Task]
    found.sort(key=lambda task: type(getattr(task, "_fut_waiter", None)) is tasks.Task)
    for task in [task for task in found if not task.done()]:
        with contextlib.suppress(Exception):
            frames = list(_awaiting(task.get_coro()))
            if frames:
                yield task, 0, _shorten(frames[::-1])


def _copied(tasks: Any) -> list[Any]:
    for _ in range(5):  # another thread may add a task meanwhile
        with contextlib.suppress(RuntimeError):
            return list(tasks)
    return []


def _awaiting(coroutine: Any) -> Iterator[FrameType]:
    for _ in range(MAX_AWAITED):
        if type(coroutine).__name__ in WRAPPERS:
            coroutine = gc.get_referents(coroutine)[0]
        # One of C code is of Python's own coroutines or Cython's; others are the user's.
        members = vars(type(coroutine))
        prefix = next((kind for kind in ("cr", "gi", "ag") if type(members.get(f"{kind}_frame")) in NATIVE), None)
        if prefix is None:
            return
        frame = getattr(coroutine, f"{prefix}_frame")
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, f"{prefix}_yieldfrom" if prefix == "gi" else f"{prefix}_await", None)


# Others wait for answers of this process at its ports and pipes


def read_open_files() -> tuple[list[int], list[int]]:
    """Return the TCP ports that this process listens on, and the ids of its pipes: inodes, or `shared_memory_id`.

    Shared memory, in which queues are, counts as a pipe.
    The kernel is asked about each socket: its table of all connections takes 8 ms to read where there are some hundred.
    """
    ports, pipes = set(), set()
    for name in os.listdir(FILES)[:MAX_FILES]:
        with contextlib.suppress(OSError, ValueError):  # it was closed meanwhile
            kind, _, inode = os.readlink(f"{FILES}/{name}").partition(":")
            if kind == "pipe":
                pipes.add(int(inode.strip("[]")))
            elif kind.startswith(SHARED_MEMORY):
                pipes.add(shared_memory_id(int(name)))
            elif kind == "socket" and (port := _listening_port(int(name))):
                ports.add(port)
    return sorted(ports)[:MAX_ITEMS], sorted(pipes)[:MAX_ITEMS]


def _listening_port(number: int) -> int | None:
    """Return the port of a listening socket; None of any other."""
    # Without SOCK_NONBLOCK this call itself makes the program's descriptor non-blocking, where the program has set a
    # default timeout (CPython 3.11 to 3.13 Modules/socketmodule.c, `init_sockobject`).
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0, fileno=number)
    try:
        address = own.getsockname() if own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) else None
    finally:
        own.detach()  # it is not closed here: it belongs to the program
    return int(address[1]) if isinstance(address, tuple) else None


# Ages of calls


class Seen:
    """Stands in for the trace function of a frame that has none. Where something traces, it does nothing."""

    __slots__ = ("at_s",)

    def __init__(self) -> None:
        self.at_s = time.monotonic()

    def __call__(self, *_event: Any) -> Seen:
        return self


def call_age_s(frame: FrameType) -> float | None:
    """Return the seconds since this was first asked of a call, 0 the first time; None if a debugger traces it.

    Its mark lives in the frame, as long as the call: frames of CPython 3.11 to 3.13 have no other place for it that the
    user's code does not see, and a reference to a frame would keep the locals of a call that has returned.
    """
    if frame.f_trace is None:
        frame.f_trace = Seen()
    mark = frame.f_trace
    return round(time.monotonic() - mark.at_s, 3) if isinstance(mark, Seen) else None


def open_call(thread: str, frames: Sequence[FrameType]) -> OpenCall | None:
    """Return the outermost call of the user's code in a stack; None without one, or where a debugger traces it.

    Args:
        thread: its name.
        frames: innermost first.
    """
    inside = [frame for frame in frames if is_users(frame) and frame.f_code.co_name != "<module>"]
    own = [frame for frame in inside if "-packages/" not in frame.f_code.co_filename]
    for frame in (own or inside)[-1:]:
        seen_s = call_age_s(frame)
        if seen_s is not None:
            code = frame.f_code
            return {
                "thread": thread,
                "function": code.co_qualname[:MAX_NAME],
                "file": code.co_filename,
                "line": frame.f_lineno or 0,
                "age_s": seen_s,
            }
    return None
