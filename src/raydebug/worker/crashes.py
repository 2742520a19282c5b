"""Send a snapshot of each crash of this process to the gateway, which keeps the first of each kind and rank.

The gateway first answers whether it wants the snapshot. When 200 processes crash in the same way, most of them only
wait for this answer, and need no CPU time meanwhile. A thread sends the snapshot.
"""

from __future__ import annotations

import base64
import os
import sys
import threading
import time
import traceback  # noqa: F401 - Python 3.13 itself imports it to print an exception, where no fork waits for it
from collections.abc import Callable
from types import FrameType
from typing import Any

from raydebug import worker
from raydebug.protocol import messages, wire
from raydebug.protocol.questions import SavePauseBody
from raydebug.protocol.snapshot import SnapshotSummary
from raydebug.worker import dial_in
from raydebug.worker.frames import active_thread, is_debuggers, is_users, outwards, start_thread

ANSWER_S = 0.75  # how long a crash waits for the answer of a busy gateway
# How long a crash waits until its snapshot is sent: mostly 20 ms. Its process is often ended next, by itself or by Ray.
SENT_S = 5.0
MAX_OF_PROCESS = 10
_lock = threading.Lock()
_seen: set[str] = set()  # kinds of crash


def note_crash(error: BaseException) -> None:
    """Send a snapshot of an uncaught exception of a task, a thread or the program. Never raises.

    An exit, an interrupt, and an error that another task raised are no crashes.
    """
    began = time.monotonic()
    try:
        if not _is_crash(error):
            return
        with worker.fork_guard:
            from raydebug.worker import snapshot  # not at the start of every process
        frames = snapshot.frames_of(error)
        summary = snapshot.summarize(error, frames, "crash")
        with _lock:
            if summary["same"] in _seen or len(_seen) >= MAX_OF_PROCESS:
                return
            _seen.add(summary["same"])
        delivery = _Delivery(summary)
        if delivery.is_wanted(ANSWER_S):
            thread = threading.current_thread().name
            delivery.give(snapshot.write(error, frames, summary, thread))
            delivery.wait(began + SENT_S - time.monotonic())
    except Exception as failure:  # noqa: BLE001 - it must not replace the job's own error
        worker.log(f"no snapshot of this crash: {type(failure).__name__}")


def _is_crash(error: BaseException) -> bool:
    kind = type(error)
    if not issubclass(kind, Exception):
        return False
    ray: Any = sys.modules.get("ray.exceptions")
    if ray is None:
        return True
    # ray.get raises these for a task or an actor that has crashed; its process sends the snapshot.
    if issubclass(kind, ray.RayActorError):
        with worker.fork_guard:
            from raydebug.worker.saved_values import attributes_of
        return not any(name == "_actor_init_failed" and one is True for name, one in attributes_of(error))
    return not issubclass(kind, ray.RayTaskError | ray.TaskCancelledError)


def save_pause(body: SavePauseBody) -> Callable[[Callable[..., None]], None]:
    """Send a snapshot of a paused thread, or of the active one; the answer follows when the gateway has it."""
    with worker.fork_guard:
        from raydebug.worker import pause, snapshot, suspended_threads
    named = {thread.ident or 0: thread for thread in threading.enumerate()}
    ident = active_thread()
    if (wanted := body.get("threadId")) is not None:
        ident = next((one for one, thread in named.items() if suspended_threads.dap_id(thread) == wanted), 0)
    if (paused_at := sys._current_frames().get(ident)) is None:
        raise LookupError("its thread has ended")
    error = pause.shown_errors.get(ident)
    frames = _paused_frames(paused_at) if error is None else snapshot.frames_of(error)
    summary = snapshot.summarize(error, frames, "pause")
    summary["id"] = body["id"]
    name = named[ident].name if ident in named else f"thread {ident}"  # one that Python has not started
    file = snapshot.write(error, frames, summary, name)
    return lambda answer: _Delivery(summary, lambda cause: answer(None if cause else {}, cause)).give(file)


def _paused_frames(frame: FrameType | None) -> list[tuple[FrameType, int]]:
    """Return the frames of a paused thread, innermost first, without the debugger's."""
    frames: list[tuple[FrameType, int]] = []
    is_inside = True
    for one in outwards(frame):
        if is_inside and is_debuggers(one):
            frames.clear()  # the debugger called these
        else:
            is_inside = is_inside and not is_users(one)
            frames.append((one, one.f_lineno))
    return frames[:60]


class _Delivery:
    """Sends one snapshot to the gateway, in its own thread."""

    def __init__(self, summary: SnapshotSummary, on_end: Callable[[str], None] = lambda _: None) -> None:
        self._summary, self._file, self._on_end = summary, b"", on_end
        self._offer = {**summary, "message": ""}  # its secrets are known once the locals are read
        self._wanted = True
        self._answered, self._given, self._done = threading.Event(), threading.Event(), threading.Event()
        start_thread(self._run, "raydebug-snapshot")

    def is_wanted(self, limit_s: float) -> bool:
        """Return the gateway's answer; True if there is none within the limit."""
        self._answered.wait(limit_s)
        return self._wanted

    def give(self, file: bytes) -> None:
        """Send the file of the snapshot."""
        self._file = file
        self._given.set()

    def wait(self, limit_s: float) -> None:
        """Wait until it is sent, up to a limit."""
        self._done.wait(max(0.0, limit_s))

    def _run(self) -> None:
        reason = "the gateway does not want it"
        try:
            with dial_in.proven_connection(messages.SNAPSHOT) as connection:
                connection.sendall(wire.encode(wire.event(3, messages.OFFER, self._offer)))
                self._wanted = dial_in.receive(connection, messages.WANTED).get("wanted") is True
                self._answered.set()
                if self._wanted and self._given.wait(dial_in.DIAL_TIMEOUT_S):
                    body = {"message": self._summary["message"], "data": base64.b64encode(self._file).decode("ascii")}
                    connection.sendall(wire.encode(wire.event(4, messages.SNAPSHOT, body)))
                    dial_in.receive(connection, messages.KEPT)
                    reason = ""
        except Exception as error:  # noqa: BLE001 - no gateway, or a lost connection
            self._wanted = False
            is_ours = isinstance(error, OSError | dial_in.NoGateway)
            reason = (str(error) if is_ours else "") or type(error).__name__
            worker.log(f"no snapshot of this {self._summary['kind']}: {reason}")
        finally:
            self._answered.set()
            self._done.set()
            self._on_end(reason)


os.register_at_fork(after_in_child=_seen.clear)
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
