"""The watchdog: faulthandler's timer writes the stacks of this process if its control thread has not run for too long.

The timer (CPython 3.11 to 3.13) reads frames without Python's lock (GIL). This is safe while native code holds the
lock. But a process that was stopped (SIGSTOP, docker pause) may resume while its frames are read, and then end with a
segmentation fault: 2 of 54 did. So it is off unless the user sets RAYDEBUG_WATCHDOG to a number of seconds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import socket
import threading
import time
from typing import Any

from raydebug import worker
from raydebug.protocol import messages, variables

BEATS_PER_LIMIT = 3
_arm_timer = faulthandler.dump_traceback_later
_used_by_others = False
_current: Watchdog | None = None
_lock = threading.Lock()  # a fork waits until the timer is set, and cancels it: see _before_fork


def limit_s() -> float:
    """Return after how many seconds without its control thread a process writes its stacks; 0 for never."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(os.environ.get(variables.WATCHDOG, "")))
    return 0.0


def install() -> None:
    """Detect when the program uses faulthandler's only timer itself; ours stays off then."""

    def dump_traceback_later(*args: Any, **kwargs: Any) -> None:
        global _used_by_others
        _used_by_others = True
        _arm_timer(*args, **kwargs)

    faulthandler.dump_traceback_later = dump_traceback_later
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


class Watchdog:
    """The timer of this process, which the control thread resets while it waits for messages."""

    def __init__(self) -> None:
        global _current
        self._limit_s = limit_s()
        self._armed_at = time.monotonic()
        self._socket: socket.socket | None = None
        _current = self

    def wait_for(self, connection: socket.socket) -> None:
        """Wait until a connection is readable. Meanwhile reset the timer BEATS_PER_LIMIT times per limit."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        while True:
            due_s = self._armed_at + self._limit_s / BEATS_PER_LIMIT - time.monotonic()
            if due_s > 0 and poll.poll(due_s * 1000):
                return
            if due_s <= 0:
                self._beat()

    def close(self) -> None:
        """Cancel the timer and close its connection."""
        with _lock:
            if self._socket is not None:
                self.cancel()
                self._socket.close()
                self._socket = None

    def _beat(self) -> None:
        with worker.fork_guard:
            from raydebug.worker import dial_in
        is_late = time.monotonic() - self._armed_at > self._limit_s
        self._armed_at = time.monotonic()
        if self._socket is None and not _used_by_others:
            with contextlib.suppress(dial_in.NoGateway):
                self._socket = dial_in.proven_connection(messages.WATCHDOG)
                self._socket.setblocking(False)  # resetting the timer waits until a text is written
        elif self._socket is not None and is_late:
            with contextlib.suppress(OSError):
                self._socket.send(messages.RUNS_AGAIN)
        with _lock:
            self.arm()

    def arm(self) -> None:
        """Set the timer, unless the program uses it itself."""
        if self._socket is not None and not _used_by_others:
            _arm_timer(self._limit_s, file=self._socket.fileno())

    def cancel(self) -> None:
        """Cancel the timer, if it is ours."""
        if self._socket is not None and not _used_by_others:
            faulthandler.cancel_dump_traceback_later()

    def forget(self) -> None:
        """Close this child's copy of its parent's connection."""
        if self._socket is not None:
            self._socket.close()


# A child that is forked while the timer runs blocks for ever when it sets or cancels a timer: faulthandler joins a
# thread that only the parent has (seen on CPython 3.11, 3.12 and 3.13).


def _before_fork() -> None:
    _lock.acquire()
    if _current is not None:
        _current.cancel()


def _after_in_parent() -> None:
    if _current is not None:
        _current.arm()
    _lock.release()


def _after_in_child() -> None:
    global _current
    if _current is not None:
        _current.forget()
    _current = None
    _lock.release()
