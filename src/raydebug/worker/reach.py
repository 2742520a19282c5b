"""Runs a function in a thread that works, at the line where it is; nothing is slower before or afterwards.

Main thread: Python calls what `Py_AddPendingCall` (documented C API) was given between two instructions of it. Any
other thread, and a main thread that is inside of Python's own library: traced up to its next line of the user's code.
In C code (a sleep, a collective, `ray.get`) neither comes before it has returned.

Sources: CPython 3.11 and 3.12; debugpy 1.8.22 `pydevd_tracing.set_trace_to_threads`, held by tests/ray.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from raydebug.worker import dial, whereabouts

LOOK_EVERY_S = 0.001


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
        self._traces = False
        self._tracer = self._trace  # one object: a bound method is another one at each access

    def set_out(self) -> None:
        """Begin; returns at once.

        Raises:
            OutOfReach: no way leads into that thread.
        """
        if self.ident != threading.main_thread().ident:
            self._traces = True
            _trace_thread(self.ident, self._tracer)
            return
        _coming.append(self)
        if _add_pending_call(_arrive, None) != 0:
            _coming.remove(self)
            raise OutOfReach("Python's list of pending calls is full")

    def withdraw(self) -> None:
        """Give up; a function that runs already goes on."""
        self._done = True
        with contextlib.suppress(ValueError):
            _coming.remove(self)
        self._end_tracing()

    def arrive(self, frame: FrameType | None) -> None:
        """Run the function in the calling thread, or at the next line of it that is the user's."""
        if self._done:
            return
        if frame is not None and whereabouts.is_users(frame) and not whereabouts.is_ours(frame):
            self._run(frame)
            return
        self._traces = True
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
        if event == "line" and not whereabouts.is_ours(frame):
            _unmark(frame, self._tracer)
            _settrace()(None)
            self._run(frame)
            return None
        return self._tracer

    def _run(self, frame: FrameType) -> None:
        self._done = True
        self._end_tracing()
        self._act(frame)

    def _end_tracing(self) -> None:
        if self._traces and sys.version_info >= (3, 12):
            hook = threading.gettrace()
            threading.settrace_all_threads(None)  # type: ignore[arg-type]
            threading.settrace(hook)  # type: ignore[arg-type]


_coming: list[Reach] = []


def _come_in(_argument: Any) -> int:
    frame = sys._getframe(1)
    while _coming:
        try:
            _coming.pop(0).arrive(frame)
        except BaseException as error:  # noqa: BLE001 - it must not end here: ctypes would print it and go on
            thread = threading.Thread(target=_raise_in_main, args=(type(error),), name="raydebug-raise", daemon=True)
            thread.pydev_do_not_trace = True  # type: ignore[attr-defined]  # pydevd's own mark for its helpers
            thread.start()
    return 0


def _raise_in_main(kind: type[BaseException]) -> None:
    """Raise in the main thread what ended a pause: KeyboardInterrupt, where Ray cancels the task that is paused."""
    main = threading.main_thread().ident or 0
    while _is_inside(sys._current_frames().get(main), _come_in.__code__):
        time.sleep(LOOK_EVERY_S)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(kind))


def _is_inside(frame: FrameType | None, code: CodeType) -> bool:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


_PendingCall = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_arrive = _PendingCall(_come_in)  # C calls it later: it must not be collected
_add_pending_call = ctypes.pythonapi.Py_AddPendingCall
_add_pending_call.argtypes = [_PendingCall, ctypes.c_void_p]
_add_pending_call.restype = ctypes.c_int


def _trace_thread(ident: int, tracer: Any) -> None:
    frame = sys._current_frames().get(ident)
    if frame is None:
        raise OutOfReach("the thread has ended")
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
