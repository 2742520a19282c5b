"""Note what a thread or a task of asyncio waits for: Ray's objects, futures, threads, sockets, pipes, processes, locks.

What waits and what others have of it are joined by ids: `awaits` and `wants` of one thread are in `holds` of another.
Locals are read only in known functions of the standard library and of Ray, and to find locks, sockets and Ray's
references, whose exact types are checked; no code of the user's classes is called.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import socket
import sys
import threading
import time
from collections import deque
from itertools import chain, islice
from types import FrameType
from typing import Any, Literal

from raydebug.protocol.records import MAX_ITEMS, ThreadStack
from raydebug.worker.frame_locals import locals_of
from raydebug.worker.frames import is_users, lines_of

MAX_PARSED_BYTES = 400_000  # of a source file that is searched for the `with` blocks of a frame
LOCKS: tuple[type, ...] = (type(threading.Lock()), type(threading.RLock()))
WAITS_FOR_CHILD = ("wait", "_wait", "_try_wait", "poll")
INNERMOST, OUTERMOST = 12, 8  # frames in which a wait is, and that say for whom a thread works
POLLING_FRAMES = 3  # the user's innermost ones, whose locals are searched for what a loop polls
PLAIN = (list, tuple, set, frozenset, deque)
MAX_FUTURES = 100  # of one wait
MAX_VALUES = 10_000  # of one stack's containers, that are searched for Ray's references
FUTURES = ("_asyncio", "asyncio.futures", "asyncio.tasks", "concurrent.futures._base")
# The callback of a future that gets the result of another one, and its variable for that one: CPython 3.10 to 3.13
# asyncio/futures.py `_chain_future`, asyncio/tasks.py `shield`.
COPIES = {"_chain_future.<locals>._call_check_cancel": "source", "shield.<locals>._outer_done_callback": "inner"}
SOCKET_CALLS = ("recv", "recv_into", "recvfrom", "accept", "connect", "send", "sendall")


def note_waits(stack: ThreadStack, frames: list[FrameType], owner: Any) -> None:
    """Note what a stack waits for.

    Args:
        stack: where.
        frames: of the stack, innermost first.
        owner: the thread or the task of asyncio, where it is known.
    """
    holds = [] if owner is None else [hex(id(owner))]
    for frame in frames[:INNERMOST]:
        with contextlib.suppress(Exception):  # a race with the thread, which runs on
            _note_wait(stack, frame)
    with contextlib.suppress(Exception):
        _note_call(stack, frames[0])
    for frame in frames[-OUTERMOST:]:
        with contextlib.suppress(Exception):
            if frame.f_code.co_name == "run" and _is_of(frame, "concurrent.futures.thread"):
                holds.append(hex(id(locals_of(frame)["self"].future)))
    if not isinstance(owner, threading.Thread):  # which may be of a class of the user's
        with contextlib.suppress(Exception):
            _note_future(stack, getattr(owner, "_fut_waiter", None))
    with contextlib.suppress(Exception):
        holds += _note_locks(stack, frames)
    with contextlib.suppress(Exception):
        _note_polled(stack, frames)
    if holds:
        stack["holds"] = holds[:MAX_ITEMS]


def _note_call(stack: ThreadStack, frame: FrameType) -> None:
    """Note a wait in C that a frame calls; the object that is called decides, not what it is called."""
    code, at = frame.f_code, frame.f_lasti
    place = next(islice(code.co_positions(), at // 2, None), (None, None, None, None))
    *owners, function = _called(code.co_filename, place) or ("",)
    owner = _look_up(tuple(owners), frame) if owners else None
    if type(owner) is socket.socket and function in SOCKET_CALLS:
        stack["in_call"] = "socket"
        with contextlib.suppress(OSError):  # it listens, or is not connected yet
            stack.setdefault("host", _peer(owner))
    elif type(owner) in LOCKS and function == "acquire":
        stack["in_call"], stack["wants"] = "acquire", hex(id(owner))
    elif function and _look_up((*owners, function), frame) is time.sleep:
        stack["in_call"] = "sleep"


@functools.lru_cache(1024)
def _called(path: str, place: tuple[int | None, int | None, int | None, int | None]) -> tuple[str, ...]:
    """Return the dotted name that the call at a place of a source file calls; empty if there is no such call."""
    line, end, start_column, end_column = place
    lines = [text.encode() for text in lines_of(path)[(line or 1) - 1 : end]] if line else []
    if not lines or start_column is None:
        return ()
    lines[-1] = lines[-1][:end_column]  # columns are bytes
    lines[0] = lines[0][start_column:]
    call = ast.parse(b"".join(lines), mode="eval").body
    return _dotted(call.func) if isinstance(call, ast.Call) else ()


def _note_wait(stack: ThreadStack, frame: FrameType) -> None:
    path, function = frame.f_code.co_filename, frame.f_code.co_name
    if path.endswith("/ray/_private/worker.py") and function in ("get", "wait"):
        _add_objects(stack, "objects", [locals_of(frame).get("object_refs" if function == "get" else "ray_waitables")])
    elif path.endswith(("/subprocess.py", "/multiprocessing/popen_fork.py")) and function in WAITS_FOR_CHILD:
        if type(child := locals_of(frame)["self"].pid) is int:
            stack["child"] = child
    elif path.endswith("/multiprocessing/connection.py") and "self" in locals_of(frame):
        stack.setdefault("pipe", os.fstat(locals_of(frame)["self"]._handle).st_ino)
    elif path.endswith("/device_communicators/shm_broadcast.py") and function in ("dequeue", "enqueue"):  # vLLM 0.28
        ring = locals_of(frame)["self"].buffer.shared_memory
        stack.setdefault("pipe", shared_memory_id(ring._fd))
    elif _is_of(frame, "threading") and function in ("join", "_wait_for_tstate_lock"):
        _add(stack, [hex(id(locals_of(frame)["self"]))])
    elif _is_of(frame, "concurrent.futures._base") and function in ("result", "exception"):
        _note_future(stack, locals_of(frame)["self"])
    elif _is_of(frame, "concurrent.futures._base") and function in ("wait", "as_completed"):
        local = locals_of(frame)
        for future in _some(local.get("pending") or local.get("not_done") or local["fs"]):
            _note_future(stack, future)
    elif _is_of(frame, "asyncio.tasks") and function in ("_wait", "wait_for"):
        for future in _some(locals_of(frame)["fs"] if function == "_wait" else [locals_of(frame).get("fut")]):
            _note_future(stack, future)
    elif _is_of(frame, "asyncio.taskgroups") and function == "__aexit__":
        for task in _some(locals_of(frame)["self"]._tasks):
            _note_future(stack, task)
    else:
        _note_host(stack, frame)


def _note_host(stack: ThreadStack, frame: FrameType) -> None:
    path, function = frame.f_code.co_filename, frame.f_code.co_name
    if _is_of(frame, "socket") and function == "readinto":
        stack.setdefault("host", _peer(locals_of(frame)["self"]._sock))
    elif _is_of(frame, "socket") and function == "create_connection":
        stack.setdefault("host", "{}:{}".format(*locals_of(frame)["address"][:2]))
    elif path.endswith("/httpcore/_backends/sync.py") and function == "read":
        stack.setdefault("host", _peer(locals_of(frame)["self"]._sock))
    elif path.endswith(("/httpcore/_async/connection.py", "/httpcore/_sync/connection.py")):
        origin = locals_of(frame)["self"]._origin  # httpcore 1.0 _models.py Origin
        stack.setdefault("host", f"{origin.host.decode()}:{origin.port}")
    elif path.endswith("/aiohttp/client.py") and function == "_request":
        url = locals_of(frame)["url"]
        if type(url).__module__.startswith("yarl"):  # aiohttp 3
            stack.setdefault("host", f"{url.host}:{url.port}")


@functools.lru_cache(32)
def _source_of(module: str) -> str:
    return getattr(sys.modules[module], "__file__", "") or ""


def _is_of(frame: FrameType, module: str) -> bool:
    return module in sys.modules and frame.f_code.co_filename == _source_of(module)


def shared_memory_id(file: int) -> int:
    """Return the same number in each process that has this memory open; it is negative, as no pipe's is."""
    return -os.fstat(file).st_ino


def _peer(connection: socket.socket) -> str:
    return "{}:{}".format(*connection.getpeername()[:2])


# Futures


def _note_future(stack: ThreadStack, future: Any) -> None:
    """Note what a future of asyncio or of concurrent.futures waits for: a task, an object of Ray, or its own id."""
    tasks: Any = sys.modules.get("asyncio.tasks")
    futures, seen = deque([future]), set[int]()
    while futures and len(seen) < MAX_ITEMS:
        future = futures.popleft()
        if id(future) in seen or type(future).__module__ not in FUTURES or future.done():
            continue
        seen.add(id(future))
        if tasks is not None and type(future) is tasks.Task:
            _add(stack, [hex(id(future))])
        elif tasks is not None and type(future) is tasks._GatheringFuture:
            futures.extend(future._children[:MAX_FUTURES])
        elif reference := getattr(future, "__dict__", {}).get("object_ref"):  # ray 2.60.0 includes/object_ref.pxi
            _add_objects(stack, "objects", [reference])
        elif (copied := _copied_from(future)) is not None:
            futures.append(copied)
        else:
            _add(stack, [hex(id(future))])


def _copied_from(future: Any) -> Any:
    """Return the future whose result this one gets."""
    callbacks = getattr(future, "_callbacks", None) or getattr(future, "_done_callbacks", None) or ()
    for given in list(callbacks):
        callback = given[0] if type(given) is tuple else given
        if variable := COPIES.get(getattr(callback, "__qualname__", "")):
            cells = dict(zip(callback.__code__.co_freevars, callback.__closure__, strict=True))
            return cells[variable].cell_contents
    return None


def _some(futures: Any) -> list[Any]:
    return list(islice(futures, MAX_FUTURES)) if type(futures) in PLAIN else []


def _add(stack: ThreadStack, ids: list[str]) -> None:
    known = stack.setdefault("awaits", [])
    known += [name for name in ids if name not in known][: MAX_ITEMS - len(known)]


# Objects of Ray


def _add_objects(stack: ThreadStack, field: Literal["objects", "polls"], given: list[Any]) -> None:
    kind = getattr(sys.modules.get("ray"), "ObjectRef", None)
    objects = stack.setdefault(field, [])
    values, seen, left = deque(given), set[int](), MAX_VALUES
    while values and len(objects) < MAX_ITEMS:
        value = values.popleft()
        if type(value) is kind:
            objects.append(value.hex())
        if not (type(value) is dict or type(value) in PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))  # a dict may hold itself, or another one many times
        inside = chain(value, value.values()) if type(value) is dict else value
        items = list(islice(inside, min(left, MAX_ITEMS)))  # one call of C: no other thread changes it meanwhile
        left -= len(items)
        values.extend(item for item in items if type(value) is dict or type(item) is kind or type(item) is tuple)
    if not objects:
        del stack[field]


def _note_polled(stack: ThreadStack, frames: list[FrameType]) -> None:
    """Note the objects that a sleeping loop has in its locals: `while not ray.wait(...): sleep(...)`."""
    if stack.get("objects") or not (frames[0].f_code.co_name == "sleep" or stack.get("in_call") == "sleep"):
        return
    given: list[Any] = []
    for frame in [frame for frame in frames if is_users(frame)][:POLLING_FRAMES]:
        local = locals_of(frame)
        given += list(local.values())
        owner = local.get("self")
        with contextlib.suppress(Exception):
            given += list(object.__getattribute__(owner, "__dict__").values())
    if given:
        _add_objects(stack, "polls", given)


# Locks


def _note_locks(stack: ThreadStack, frames: list[FrameType]) -> list[str]:
    """Return the locks that `with` blocks of the frames hold, and note the one that the innermost frame waits for."""
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
    return holds


@functools.lru_cache(64)
def _with_blocks(path: str) -> list[tuple[int, int, int, tuple[str, ...]]]:
    """Return first and last line, first line of the body, and dotted name of what each `with` statement enters."""
    text = "".join(lines_of(path))
    if not text or len(text) > MAX_PARSED_BYTES or "with " not in text:
        return []
    return [
        (node.lineno, node.end_lineno or 0, node.body[0].lineno, name)
        for node in ast.walk(ast.parse(text)) if isinstance(node, ast.With)
        for item in node.items if (name := _dotted(item.context_expr))
    ]  # fmt: skip


def _dotted(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return (*before, node.attr) if before else ()
    return (node.id,) if isinstance(node, ast.Name) else ()


def _look_up(name: tuple[str, ...], frame: FrameType) -> object:
    value = locals_of(frame).get(name[0], frame.f_globals.get(name[0]))
    for attribute in name[1:]:
        value = object.__getattribute__(value, "__dict__").get(attribute)
    return value
