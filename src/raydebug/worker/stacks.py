"""Collect the stacks of this process: all threads and asyncio tasks, with what each waits for.

No code of the user's classes is called. Locals are read only in known functions of the standard library and of Ray, and
to find locks, whose exact types are checked.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from raydebug.protocol.questions import FramesBody, StacksBody
from raydebug.protocol.records import FramesRecord, OpenCall, StackFrame, StacksRecord, ThreadStack, digest_of
from raydebug.worker import calls, flight_recorder, records, source
from raydebug.worker.frames import MAX_NAME, active_thread, is_users

MAX_FRAMES, MAX_THREADS, MAX_TASKS, MAX_OBJECTS = 64, 200, 100, 20
MAX_PARSED_BYTES = 400_000  # of a source file that is searched for the `with` blocks of a frame
LOCKS: tuple[type, ...] = (type(threading.Lock()), type(threading.RLock()))
# asyncio's own sets of tasks: CPython 3.11 asyncio/tasks.py `_all_tasks`; 3.12 and 3.13 have the other two.
TASK_SETS = ("_all_tasks", "_scheduled_tasks", "_eager_tasks")
# Of a Cython coroutine of Ray; of an async generator in `async for`.
WRAPPERS = ("coroutine_wrapper", "async_generator_asend")
_Stack = TypeVar("_Stack", bound="tuple[Any, int, list[FrameType]]")
_WORLD = "WORLD_SIZE"  # torch/distributed/run.py; verl 0.9.1 single_controller/base/worker.py


def collect() -> StacksRecord:
    """Return the stacks of this process, without those of raydebug and the debugger."""
    active = active_thread()
    threads = {thread.ident: thread for thread in threading.enumerate()}
    seen: list[tuple[threading.Thread | None, int, list[FrameType]]] = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda one: one[0] != active):
        thread = threads.get(ident)
        if ident == threading.get_ident() or getattr(thread, "is_pydev_daemon_thread", False):
            continue
        seen.append((thread, ident, callers(frame)))
    found: list[ThreadStack] = []
    called: list[OpenCall] = []
    for thread, ident, frames in _of_each_kind(seen, MAX_THREADS):
        found.append(_describe(thread.name if thread is not None else f"thread {ident}", frames))
        if (call := calls.open_call(found[-1]["name"], frames)) is not None:
            called.append(call)
        if thread is not None and thread.native_id is not None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                found[-1]["cpu_s"] = _cpu_s(thread.native_id)
    tasks = list(stacks_of_tasks())
    shown = [_describe(f"task {task.get_name()}", frames) for task, _, frames in _of_each_kind(tasks, MAX_TASKS)]
    world = os.environ.get(_WORLD, "")
    record: StacksRecord = {**records.describe_process(), **records.describe_work()}  # type: ignore[typeddict-item]
    record["world"] = int(world) if world.isdigit() else None
    record["threads"] = found + shown
    record["calls"] = called
    record["left_out"] = len(seen) - len(found) + len(tasks) - len(shown)
    with contextlib.suppress(Exception):  # torch may be partly imported, or of another version
        if own := flight_recorder.own_rank():
            record["rank"], record["world"] = own
            record["collectives"] = flight_recorder.read_groups()
    return record


_sent: deque[dict[str, list[StackFrame]]] = deque(maxlen=4)  # by digest; several clients may ask at one time


def stacks_for(body: StacksBody) -> StacksRecord:
    """Return the stacks of this process, if asked for with the digests of their frames: `frames_of` knows the last."""
    record = collect()
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
    return {"known": [{"digest": one, "frames": known[one]} for one in known]}


def _of_each_kind(stacks: list[_Stack], limit: int) -> list[_Stack]:
    """Return up to `limit` of these stacks in their order, first of all one of each kind: with the same frames."""
    if len(stacks) <= limit:
        return stacks
    first: dict[tuple[tuple[int, int], ...], int] = {}
    for number, (_, _, frames) in enumerate(stacks):
        first.setdefault(tuple((id(frame.f_code), frame.f_lineno) for frame in frames), number)
    others = {*range(len(stacks))}.difference(first.values())
    return [stacks[number] for number in sorted([*first.values(), *sorted(others)][:limit])]


def _cpu_s(native_id: int) -> float:
    """Return the CPU time of a thread in seconds: proc_pid_stat(5), utime and stime."""
    text = Path(f"/proc/self/task/{native_id}/stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def callers(frame: FrameType | None) -> list[FrameType]:
    """Return a frame and its callers, innermost first."""
    frames: list[FrameType] = []
    while frame is not None and len(frames) < MAX_FRAMES:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _describe(name: str, frames: list[FrameType]) -> ThreadStack:
    stack: ThreadStack = {"name": name[:MAX_NAME], "frames": [_place(frame) for frame in frames]}
    for place, frame in zip(stack["frames"], frames, strict=True):
        if frame is frames[0] or (is_users(frame) and "-packages/" not in frame.f_code.co_filename):
            place["text"] = source.line_at(frame.f_code.co_filename, frame.f_lineno or 0)
    for frame in frames[:8]:  # a wait is in the innermost ones
        with contextlib.suppress(Exception):
            _note_wait(stack, frame)
    with contextlib.suppress(Exception):
        _note_locks(stack, frames)
    return stack


def _place(frame: FrameType) -> StackFrame:
    code = frame.f_code
    return {"file": code.co_filename, "line": frame.f_lineno or 0, "function": code.co_qualname[:MAX_NAME]}


def stacks_of_tasks() -> Iterator[tuple[Any, int, list[FrameType]]]:
    """Yield asyncio's tasks with their stacks, innermost frame first; those that wait for another task come last."""
    tasks: Any = sys.modules.get("asyncio.tasks")
    if tasks is None:
        return
    found = [task for name in TASK_SETS for task in _copied(getattr(tasks, name, ())) if type(task) is tasks.Task]
    found.sort(key=lambda task: type(getattr(task, "_fut_waiter", None)) is tasks.Task)
    for task in [one for one in found if not one.done()]:
        with contextlib.suppress(Exception):
            frames = list(_awaiting(task.get_coro()))
            if frames:
                yield task, 0, frames[::-1]


def _copied(tasks: Any) -> list[Any]:
    for _ in range(5):  # another thread may add a task meanwhile
        with contextlib.suppress(RuntimeError):
            return list(tasks)
    return []


def _awaiting(coroutine: Any) -> Iterator[FrameType]:
    for _ in range(MAX_FRAMES):
        if type(coroutine).__name__ in WRAPPERS:
            coroutine = gc.get_referents(coroutine)[0]
        prefix = next((one for one in ("cr", "gi", "ag") if hasattr(coroutine, f"{one}_frame")), None)
        if prefix is None:
            return
        frame = getattr(coroutine, f"{prefix}_frame")
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, f"{prefix}_yieldfrom" if prefix == "gi" else f"{prefix}_await", None)


# What a thread waits for


def _note_wait(stack: ThreadStack, frame: FrameType) -> None:
    path, function = frame.f_code.co_filename, frame.f_code.co_name
    if path.endswith("/ray/_private/worker.py") and function in ("get", "wait"):
        given = frame.f_locals.get("object_refs" if function == "get" else "ray_waitables")
        found: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
        kind = getattr(sys.modules.get("ray"), "ObjectRef", None)
        stack["objects"] = [one.hex() for one in found[:MAX_OBJECTS] if type(one) is kind]
    elif path == _source_of("subprocess") and function in ("wait", "_wait", "_try_wait"):
        child = frame.f_locals["self"].pid
        if type(child) is int:
            stack["child"] = child
    elif path == _source_of("socket") and function == "readinto":
        stack.setdefault("host", _peer(frame.f_locals["self"]._sock))
    elif path == _source_of("socket") and function == "create_connection":
        stack.setdefault("host", "{}:{}".format(*frame.f_locals["address"][:2]))
    elif path.endswith("/httpcore/_backends/sync.py") and function == "read":
        stack.setdefault("host", _peer(frame.f_locals["self"]._sock))


def _source_of(module: str) -> str:
    return getattr(sys.modules.get(module), "__file__", "") or ""


def _peer(connection: socket.socket) -> str:
    return "{}:{}".format(*connection.getpeername()[:2])


def _note_locks(stack: ThreadStack, frames: list[FrameType]) -> None:
    """Note the locks that `with` blocks of the frames hold, and the one that the innermost frame waits for."""
    holds = []
    for frame in frames:
        if not is_users(frame) or "-packages/" in frame.f_code.co_filename:  # parsing torch takes seconds
            continue
        for first, last, body, name in _with_blocks(frame.f_code.co_filename):
            if not first <= (frame.f_lineno or 0) <= last or frame.f_code.co_firstlineno > first:
                continue
            lock = _look_up(name, frame)
            if type(lock) not in LOCKS:
                continue
            if frame.f_lineno >= body:
                holds.append(hex(id(lock)))
            elif frame is frames[0]:
                stack["wants"] = hex(id(lock))
    if holds:
        stack["holds"] = holds


@functools.lru_cache(64)
def _with_blocks(path: str) -> list[tuple[int, int, int, tuple[str, ...]]]:
    """Return first and last line, first line of the body, and dotted name of what each `with` statement enters."""
    text = "".join(source.lines_of(path))
    if not text or len(text) > MAX_PARSED_BYTES or "with " not in text:
        return []
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.With):
            for item in node.items:
                name = _dotted(item.context_expr)
                if name:
                    found.append((node.lineno, node.end_lineno or 0, node.body[0].lineno, name))
    return found


def _dotted(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return (*before, node.attr) if before else ()
    return (node.id,) if isinstance(node, ast.Name) else ()


def _look_up(name: tuple[str, ...], frame: FrameType) -> object:
    value = frame.f_locals.get(name[0], frame.f_globals.get(name[0]))
    for attribute in name[1:]:
        value = object.__getattribute__(value, "__dict__").get(attribute)
    return value
