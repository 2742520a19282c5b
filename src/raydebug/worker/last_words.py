"""The last words of this process: what it tells the gateway as it ends, over the control channel it has anyway.

At an exit it says so; `os._exit` says where it was called; at a fatal signal faulthandler writes the stack into the
same connection, by the system call `write` only. So nothing is left on the node, and a process that was ended by
SIGKILL is one that said nothing.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from raydebug import worker
from raydebug.protocol import messages, node_facts, wire

if TYPE_CHECKING:
    from raydebug.protocol.death import Kill, LastWords
    from raydebug.protocol.questions import NodeBody
    from raydebug.protocol.spans import SpansRecord

SEND_S = 0.2  # limit of what a thread of the user waits for another one that sends
RAY_WORKER = "/default_worker.py"  # ray 2.41 to 2.60 _private/workers/: `connect` enables faulthandler there
_plain_exit, _plain_kill = os._exit, os.kill
_connection: tuple[socket.socket, Any] | None = None  # and the lock of who sends
_has_faults = False


def install(connection: socket.socket, sending: Any) -> None:
    """Say the last words over a connection; faulthandler stays where the user or Ray has it on."""
    global _connection, _has_faults
    _connection = connection, sending
    if os._exit is _plain_exit:
        os._exit, os.kill = _exit, _kill
        atexit.register(_say, _words_of_exit)
        atexit.register(say_spans)  # the last one registered is called first
    if not faulthandler.is_enabled() and not any(a.endswith(RAY_WORKER) for a in sys.orig_argv[1:3]):
        faulthandler.enable(connection.fileno(), all_threads=False)
        _has_faults = True


def leave() -> None:
    """Forget the connection, before it is closed: another file may get its number."""
    global _connection, _has_faults
    _connection = None
    if _has_faults:
        _has_faults = False
        faulthandler.disable()


def describe_node(body: NodeBody) -> Mapping[str, Any]:
    """Return what this node knows of a process that has ended."""
    return node_facts.node_facts(body.get("pid", 0), body.get("cgroup", ""))


def _exit(status: int) -> NoReturn:
    """Stand in for `os._exit`."""
    try:
        caller = sys._getframe(1)
        say_spans()
        _say(lambda: _words_of_os_exit(status, caller))
    finally:
        _plain_exit(status)


def _kill(pid: int, number: int) -> None:
    """Stand in for `os.kill`, which Popen and Process use too: say who ends whom."""
    if pid > 0 and number > 0:
        caller = sys._getframe(1)
        _say(lambda: {"pid": pid, "signal": int(number), "place": _place(caller, caller.f_lineno)}, messages.KILLS)
    _plain_kill(pid, number)


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
    from raydebug.worker.frames import is_users  # each process would pay for it at its start

    frame: FrameType | None = innermost
    while frame is not None and not is_users(frame):
        frame = frame.f_back
    frame = frame or innermost
    number = line if frame is innermost else frame.f_lineno
    return f"{frame.f_code.co_filename}:{number} {frame.f_code.co_qualname}"[:2000]


def say_spans() -> None:
    """Send the spans that nobody has asked for yet."""
    ring = sys.modules.get("raydebug.worker.span_ring")
    if ring is None:
        return
    for _ in range(ring.MOST_ANSWERS):  # other threads may go on making spans
        if not ring.has_spans():
            return
        said: SpansRecord = {}

        def words(said: SpansRecord = said) -> SpansRecord:
            said.update(ring.said_spans({}))
            return said

        if not _say(words, messages.LAST_SPANS):
            ring.count_lost(said)
            return


def _say(words: Callable[[], LastWords | Kill | SpansRecord], event: str = messages.BYE) -> bool:
    """Send a message, and wait at most SEND_S for a gateway that does not read; return whether it was sent."""
    try:
        if _connection is None or not (sending := _connection[1]).acquire(timeout=SEND_S):
            return False
        try:
            _send(_connection[0], wire.encode(wire.event(0, event, dict(words()))))
        finally:
            sending.release()
    except Exception as error:  # noqa: BLE001 - the process goes on, or ends, as it wanted to
        worker.log(f"a message to the gateway is lost: {type(error).__name__}")
        return False
    return True


def _send(connection: socket.socket, data: bytes) -> None:
    deadline, rest = time.monotonic() + SEND_S, memoryview(data)
    while rest:
        try:
            rest = rest[connection.send(rest, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            if not select.select([], [connection], [], max(0.0, deadline - time.monotonic()))[1]:
                leave()  # of a message that is cut, no other one may follow
                connection.shutdown(socket.SHUT_RDWR)  # its thread connects again
                raise
