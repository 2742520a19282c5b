"""Runs a function in a thread that works, at its next line of the user's code; nothing is slower before or afterwards.

The thread is traced for as long as that takes: a main thread turns the tracing on itself, in a pending call of Python's
(`Py_AddPendingCall`, documented C API); for any other thread it is turned on from here. In C code (a sleep, a
collective, `ray.get`) there is no next line before it has returned.

The function must not run inside of the pending call: on CPython 3.11 a second one that is added meanwhile makes a main
thread that is traced spin for ever (ceval.c: DO_TRACING of RESUME checks the eval breaker, which stays set as pending
calls do not nest, and begins anew).

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

from raydebug.worker import dial, whereabouts


class OutOfReach(Exception):
    """A thread cannot be stopped from outside in this Python; the text says why."""


class Reach:
    """A function on its way into a thread.

    Args:
        ident: the thread.
        act: called there once, with the frame of the user's that runs.
    """

    def __init__(self, ident: int, act: Callable[[FrameType], None]) -> None:
        self.ident = ident
        self._act = act
        self._done = False
        self._tracer = self._trace  # one object: a bound method is another one at each access

    def set_out(self) -> None:
        """Begin, or begin anew; returns at once.

        Raises:
            OutOfReach: no way leads into that thread.
        """
        if self.ident != threading.main_thread().ident:
            _trace_thread(self.ident, self._tracer)
        else:
            _in_main_thread(self._trace_here)

    def to(self, ident: int) -> Reach:
        """Give up, and return the same for another thread."""
        self.withdraw()
        return Reach(ident, self._act)

    def withdraw(self) -> None:
        """Give up; a function that runs already goes on."""
        self._done = True
        _end_tracing_of_all()

    def _trace_here(self, frame: FrameType | None) -> None:
        if not self._done and not whereabouts.is_ours(frame):  # it is paused, or about to be: tried again later
            _mark(frame, self._tracer)
            _settrace()(self._tracer)

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if self._done or threading.get_ident() != self.ident:
            if sys.gettrace() is self._tracer:
                _give_tracing_back()
            return None
        if not whereabouts.is_users(frame):
            if frame.f_trace is not None:
                frame.f_trace = None
            return None
        if event not in ("line", "return") or whereabouts.is_ours(frame):
            return self._tracer
        self._done = True
        _unmark(frame, self._tracer)
        _settrace()(None)
        _end_tracing_of_all()
        self._act(frame)
        return None


_waiting: list[Callable[[FrameType | None], None]] = []
_is_pending = False


def _in_main_thread(call: Callable[[FrameType | None], None]) -> None:
    """Let the main thread call a function with its frame, between two instructions of it."""
    global _is_pending
    _waiting[:] = [call]
    if _is_pending:  # never a second one: see this module's docstring
        return
    _is_pending = True
    if _add_pending_call(_come_in_pointer, None) != 0:
        _is_pending = False
        raise OutOfReach("Python's list of pending calls is full")


def _come_in(_argument: Any) -> int:
    global _is_pending
    frame = sys._getframe(1)
    while _waiting:
        _waiting.pop()(frame)
    _is_pending = False
    return 0


_PendingCall = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_come_in_pointer = _PendingCall(_come_in)  # C calls it later: it must not be collected
_add_pending_call = ctypes.pythonapi.Py_AddPendingCall
_add_pending_call.argtypes = [_PendingCall, ctypes.c_void_p]
_add_pending_call.restype = ctypes.c_int


def _trace_thread(ident: int, tracer: Any) -> None:
    frame = sys._current_frames().get(ident)
    if frame is None:
        raise OutOfReach("the thread has ended")
    if whereabouts.is_ours(frame):
        return
    if sys.version_info >= (3, 12):
        _mark(frame, tracer)
        hook = threading.gettrace()
        threading.settrace_all_threads(tracer)  # the others' tracer removes itself at their next line
        threading.settrace(hook)  # type: ignore[arg-type]
        return
    dial.import_pydevd()
    import pydevd_tracing

    if pydevd_tracing.set_trace_to_threads(tracer, thread_idents=[ident], create_dummy_thread=False) != 0:
        raise OutOfReach("debugpy cannot trace a running thread here (Python 3.11 on a processor other than x86_64)")
    _mark(sys._current_frames().get(ident), tracer)


def _end_tracing_of_all() -> None:
    if sys.version_info >= (3, 12):  # where the tracing of one thread costs all of them
        hook = threading.gettrace()
        threading.settrace_all_threads(None)  # type: ignore[arg-type]
        threading.settrace(hook)  # type: ignore[arg-type]


def _mark(frame: FrameType | None, tracer: Any) -> None:
    """Let a tracer, and nobody else, see the next line of each frame of the user's that runs already.

    pydevd leaves its own tracer in frames of an earlier pause, and that one takes the thread's tracing over.
    """
    while frame is not None:
        frame.f_trace = tracer if whereabouts.is_users(frame) else None
        frame = frame.f_back


def _unmark(frame: FrameType | None, tracer: Any) -> None:
    while frame is not None:
        if frame.f_trace is tracer:
            frame.f_trace = None
        frame = frame.f_back


def _settrace() -> Callable[[Any], None]:
    """Return Python's own sys.settrace: pydevd puts one in its place that complains."""
    pydevd_tracing = sys.modules.get("pydevd_tracing")
    own = pydevd_tracing.TracingFunctionHolder._original_tracing if pydevd_tracing is not None else None
    return own or sys.settrace


def _give_tracing_back() -> None:
    """End our tracing of the calling thread; pydevd's goes on where a client has set breakpoints."""
    _settrace()(None)
    pydevd = sys.modules.get("pydevd")
    debugger = pydevd.get_global_debugger() if pydevd is not None else None
    if sys.version_info < (3, 12) and debugger is not None and debugger.breakpoints and not debugger.pydb_disposed:
        debugger.enable_tracing()


def _forget_in_fork() -> None:
    global _is_pending
    _is_pending = False
    _waiting.clear()  # should the parent's pending call be called here too, it finds nothing to do


os.register_at_fork(after_in_child=_forget_in_fork)
