"""The watchdog: a timer of Python writes this process's stacks when its control thread has not run for too long.

Off unless RAYDEBUG_WATCHDOG names seconds. faulthandler's timer (CPython 3.11 to 3.13) reads frames without Python's
lock (GIL). Nothing changes them while native code holds the lock; but a process that was only stopped (SIGSTOP, docker
pause) goes on while its frames are read, and may die of a segmentation fault: 2 of 54 did. So the user decides.
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
    """Note any use of faulthandler's only timer, which is then left to its user."""

    def dump_traceback_later(*args: Any, **kwargs: Any) -> None:
        global _used_by_others
        _used_by_others = True
        _arm_timer(*args, **kwargs)

    faulthandler.dump_traceback_later = dump_traceback_later
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


class Watchdog:
    """The timer of this process, set again and again by the control thread while that waits for messages."""

    def __init__(self) -> None:
        global _current
        self._limit_s = limit_s()
        self._armed_at = time.monotonic()
        self._socket: socket.socket | None = None
        _current = self

    def wait_for(self, connection: socket.socket) -> None:
        """Wait until a connection can be read; set the timer as often as needed, the first time after a while."""
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
        from raydebug.worker import dial_in

        is_late = time.monotonic() - self._armed_at > self._limit_s
        self._armed_at = time.monotonic()
        if self._socket is None and not _used_by_others:
            with contextlib.suppress(dial_in.NoGateway):
                self._socket = dial_in.proven_connection(messages.WATCHDOG)
                self._socket.setblocking(False)  # setting the timer again waits for a text that is being written
        elif self._socket is not None and is_late:
            with contextlib.suppress(OSError):
                self._socket.send(messages.RUNS_AGAIN)
        with _lock:
            self.arm()

    def arm(self) -> None:
        """Set the timer, unless somebody else uses it."""
        if self._socket is not None and not _used_by_others:
            _arm_timer(self._limit_s, file=self._socket.fileno())

    def cancel(self) -> None:
        """Cancel the timer, if it is ours."""
        if self._socket is not None and not _used_by_others:
            faulthandler.cancel_dump_traceback_later()

    def forget(self) -> None:
        """Close the connection in a child, whose parent has the same one."""
        if self._socket is not None:
            self._socket.close()


# A fork with a timer leaves a child that waits for ever when it sets or cancels one: faulthandler joins a thread that
# only the parent has (seen on CPython 3.11, 3.12 and 3.13).


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
