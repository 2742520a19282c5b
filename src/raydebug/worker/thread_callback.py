"""Run a callback in another thread at its next line of the user's code.

The thread is traced until then, and nothing is slower before or afterwards.

A main thread turns tracing on itself, in a pending call (`Py_AddPendingCall`, documented C API). For any other thread
it is turned on from here. In C code (a sleep, a collective, `ray.get`) the next line comes after the call has returned.

The callback must not run inside the pending call: on CPython 3.11 a second pending call makes a traced main thread spin
forever (ceval.c: DO_TRACING of RESUME checks the eval breaker, which stays set because pending calls do not nest).

Sources: CPython 3.11 and 3.12; debugpy 1.8.22 `pydevd_tracing.set_trace_to_threads`, held by tests/ray.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from raydebug.worker import frames, pydevd_session
from raydebug.worker.suspended_threads import python_settrace


class Untraceable(Exception):
    """A thread cannot be stopped from outside in this Python; the text says why."""


class ThreadCallback:
    """A callback that is to run in a thread once, with the user's frame."""

    def __init__(self, ident: int, callback: Callable[[FrameType], None]) -> None:
        self.ident = ident
        self._callback = callback
        self._done = False
        self._traces_others = False
        self._tracer = self._trace  # one object: a bound method is another one at each access

    def schedule(self) -> None:
        """Arm the callback (idempotent); does not block.

        Raises:
            Untraceable: that thread cannot be traced.
        """
        if self.ident != threading.main_thread().ident:
            self._traces_others = _trace_thread(self.ident, self._tracer) or self._traces_others
        else:
            _in_main_thread(self._trace_here)

    def retarget(self, ident: int) -> ThreadCallback:
        """Cancel it, and return the same callback for another thread."""
        self.cancel()
        return ThreadCallback(ident, self._callback)

    def cancel(self) -> None:
        """Disarm the callback; one that runs already is not interrupted."""
        self._done = True
        self._end_tracing_of_others()

    def _end_tracing_of_others(self) -> None:
        if self._traces_others:  # else the tracers of all threads are the program's own
            _end_tracing_of_all()

    def _trace_here(self, frame: FrameType | None) -> None:
        if not self._done and not frames.is_ours(frame):  # paused or about to be: describe() retries later
            _mark(frame, self._tracer)
            python_settrace()(self._tracer)

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if self._done or threading.get_ident() != self.ident:
            if sys.gettrace() is self._tracer:
                _return_tracing()
            return None
        if not frames.is_users(frame):
            if frame.f_trace is not None:
                frame.f_trace = None
            return None
        if event not in ("line", "return") or frames.is_ours(frame):
            return self._tracer
        self._done = True
        _unmark(frame, self._tracer)
        python_settrace()(None)
        self._end_tracing_of_others()
        self._callback(frame)
        return None


_waiting: list[Callable[[FrameType | None], None]] = []
_is_pending = False


def _in_main_thread(call: Callable[[FrameType | None], None]) -> None:
    """Let the main thread call a function with its frame, between two of its instructions."""
    global _is_pending
    _waiting[:] = [call]
    if _is_pending:  # never a second one: see this module's docstring
        return
    _is_pending = True
    if _add_pending_call(_run_waiting_pointer, None) != 0:
        _is_pending = False
        raise Untraceable("Python's list of pending calls is full")


def _run_waiting(_argument: Any) -> int:
    global _is_pending
    frame = sys._getframe(1)
    while _waiting:
        _waiting.pop()(frame)
    _is_pending = False
    return 0


_PendingCall = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_run_waiting_pointer = _PendingCall(_run_waiting)  # C calls it later: it must not be collected
_add_pending_call = ctypes.pythonapi.Py_AddPendingCall
_add_pending_call.argtypes = [_PendingCall, ctypes.c_void_p]
_add_pending_call.restype = ctypes.c_int


def _trace_thread(ident: int, tracer: Any) -> bool:
    """Trace a thread; return whether it is traced now."""
    frame = sys._current_frames().get(ident)
    if frame is None or frames.is_ours(frame):  # it has ended, or it pauses: describe() retries later
        return False
    if sys.version_info >= (3, 12):
        _mark(frame, tracer)
        hook = threading.gettrace()
        threading.settrace_all_threads(tracer)  # the others' tracer removes itself at their next line
        threading.settrace(hook)  # type: ignore[arg-type]
        return True
    pydevd_session.import_pydevd()
    import pydevd_tracing

    if pydevd_tracing.set_trace_to_threads(tracer, thread_idents=[ident], create_dummy_thread=False) != 0:
        raise Untraceable("debugpy cannot trace a running thread here (Python 3.11 on a processor other than x86_64)")
    _mark(sys._current_frames().get(ident), tracer)
    return True


def _end_tracing_of_all() -> None:
    if sys.version_info >= (3, 12):  # where the tracing of one thread costs all of them
        hook = threading.gettrace()
        threading.settrace_all_threads(None)  # type: ignore[arg-type]
        threading.settrace(hook)  # type: ignore[arg-type]


def _mark(frame: FrameType | None, tracer: Any) -> None:
    """Make this the only tracer of each running frame of the user's.

    pydevd leaves its own tracer in frames of an earlier pause, which would take over the thread's tracing.
    """
    for one in frames.outwards(frame):
        one.f_trace = tracer if frames.is_users(one) else None


def _unmark(frame: FrameType | None, tracer: Any) -> None:
    for one in frames.outwards(frame):
        if one.f_trace is tracer:
            one.f_trace = None


def _return_tracing() -> None:
    """End our tracing of the calling thread; restore pydevd's if a client has set breakpoints."""
    python_settrace()(None)
    pydevd = sys.modules.get("pydevd")
    debugger = pydevd.get_global_debugger() if pydevd is not None else None
    if sys.version_info < (3, 12) and debugger is not None and debugger.breakpoints and not debugger.pydb_disposed:
        debugger.enable_tracing()


def _forget_in_fork() -> None:
    global _is_pending
    _is_pending = False
    _waiting.clear()  # the parent's pending call, if it runs here too, finds nothing to do


os.register_at_fork(after_in_child=_forget_in_fork)
