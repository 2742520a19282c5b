"""The last words of this process: what it tells the gateway as it ends, over the control channel it has anyway.

At an exit it says so; `os._exit` says where it was called; at a fatal signal faulthandler writes the stack into the
same connection, by the system call `write` only. So nothing is left on the node, and a process that was ended by
SIGKILL is one that said nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from operator import index
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from raydebug import worker
from raydebug.protocol import messages, node_facts, wire

if TYPE_CHECKING:
    from raydebug.protocol.death import LastWords
    from raydebug.protocol.questions import NodeBody, SpansRecord

# Limit of what a thread of the user waits for another one that sends, and then for a gateway that does not read.
SEND_S = 0.2
_plain_exit, _plain_kill = os._exit, os.kill
_plain_faults = {name: getattr(faulthandler, name) for name in ("enable", "disable", "is_enabled")}
_Connection = tuple[socket.socket, Any]  # and the lock of who sends
_connection: _Connection | None = None
_has_faults = False


def install(connection: socket.socket, sending: Any) -> None:
    """Say the last words over a connection; faulthandler stays where the user or Ray has it on."""
    global _connection, _has_faults
    _connection = connection, sending
    if os._exit is _plain_exit:
        worker.replace(os, "_exit", _exit)
        worker.replace(os, "kill", _kill)
        atexit.register(say, _words_of_exit)
        atexit.register(say_spans)  # the last one registered is called first
    is_rays = any(a.endswith(node_facts.RAY_WORKER) for a in sys.orig_argv[1:3])  # its `connect` enables faulthandler
    if not faulthandler.is_enabled() and not is_rays:
        faulthandler.enable(connection.fileno(), all_threads=False)
        _has_faults = True
        for name, stand_in in (("enable", _enable), ("disable", _disabled), ("is_enabled", _disabled)):
            worker.replace(faulthandler, name, stand_in)


def leave() -> None:
    """Forget the connection, before it is closed: another file may get its number."""
    global _connection
    _connection = None
    if _has_faults:
        _leave_faults()
        faulthandler.disable()


def _leave_faults() -> None:
    global _has_faults
    _has_faults = False
    for name, plain in _plain_faults.items():
        setattr(faulthandler, name, plain)


def _enable(*arguments: Any, **options: Any) -> None:
    """Stand in for `faulthandler.enable` while ours is on: from its call on it is the program's, and stays."""
    _plain_faults["enable"](*arguments, **options)
    _leave_faults()


def _disabled() -> bool:
    """Stand in for `faulthandler.is_enabled` and `disable` while ours is on: the program's own is not."""
    return False


def describe_node(body: NodeBody) -> Mapping[str, Any]:
    """Return what this node knows of a process that has ended."""
    return node_facts.node_facts(body.get("pid", 0), body.get("cgroup", ""), body.get("started", 0))


def _exit(status: int) -> NoReturn:
    """Stand in for `os._exit`."""
    try:
        caller = sys._getframe(1)
        say_spans()
        say(lambda: _words_of_os_exit(status, caller))
    finally:
        _plain_exit(status)


def _kill(pid: Any, signal: Any, /) -> None:
    """Stand in for `os.kill`, which Popen and Process use too: say who ends whom."""
    with contextlib.suppress(TypeError):  # the plain one says it in its own words
        target, number, caller = index(pid), index(signal), sys._getframe(1)
        if target > 0 and number > 0:
            say(lambda: {"pid": target, "signal": number, "place": _place(caller, caller.f_lineno)}, messages.KILLS)
    _plain_kill(pid, signal)


def _words_of_os_exit(status: int, caller: FrameType) -> LastWords:
    if caller.f_code.co_filename.endswith("/multiprocessing/popen_fork.py"):  # the end of any child
        return {"how": messages.EXIT, "code": int(status)}
    thread = threading.current_thread().name[:250]
    return {"how": messages.OS_EXIT, "code": int(status), "place": _place(caller, caller.f_lineno), "thread": thread}


def _words_of_exit() -> LastWords:
    words: LastWords = {"how": messages.EXIT}
    error, trace = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
    if error is not None:
        words["error"] = type(error).__name__[:250]
        if isinstance(error, OSError) and type(error.errno) is int:
            words["reason"] = f"[Errno {error.errno}] {os.strerror(error.errno)}"
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None:
        words["place"] = _place(trace.tb_frame, trace.tb_lineno)
    return words


def _place(innermost: FrameType, line: int) -> str:
    """Return the user's innermost frame, else the innermost."""
    from raydebug.worker.frames import users_frame  # each process would pay for it at its start

    frame = users_frame(innermost) or innermost
    number = line if frame is innermost else frame.f_lineno
    return f"{frame.f_code.co_filename}:{number} {frame.f_code.co_qualname}"[:2000]


def say_spans() -> None:
    """Send the spans that nobody has asked for yet."""
    ring = sys.modules.get("raydebug.worker.spans")
    if ring is None:
        return
    for _ in range(ring.MOST_ANSWERS):  # other threads may go on making spans
        if not ring.has_spans():
            return
        said: SpansRecord = {}

        def words(said: SpansRecord = said) -> SpansRecord:
            said.update(ring.spans_since({}))
            return said

        if not say(words, messages.LAST_SPANS):
            ring.count_lost(said)
            return


def say(words: Callable[[], Mapping[str, Any]], event: str = messages.BYE, over: _Connection | None = None) -> bool:
    """Send a message; return whether it was sent.

    It waits up to SEND_S for another thread that sends, then up to SEND_S for a gateway that does not read. Over which
    connection: by default the one of `install`.
    """
    try:
        used = over or _connection
        if used is None or not used[1].acquire(timeout=SEND_S):
            return False
        try:
            _send(used[0], wire.encode(wire.event(0, event, dict(words()))))
        finally:
            used[1].release()
    except Exception as error:  # the process goes on, or ends, as it wanted to
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_globals.get("__name__", "").startswith(("raydebug.", "json")):
            raise  # by a signal handler of the program, while this thread waited
        worker.log(f"a message to the gateway is lost: {type(error).__name__}")
        return False
    return True


def _send(connection: socket.socket, data: bytes) -> None:
    deadline, rest = time.monotonic() + SEND_S, memoryview(data)
    while rest:
        try:
            rest = rest[connection.send(rest, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            writable = select.poll()  # select.select takes no descriptor above 1023
            writable.register(connection, select.POLLOUT)
            if not writable.poll(max(0.0, deadline - time.monotonic()) * 1000):
                leave()  # of a message that is cut, no other one may follow
                connection.shutdown(socket.SHUT_RDWR)  # its thread connects again
                raise
