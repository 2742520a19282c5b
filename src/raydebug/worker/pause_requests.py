"""Pause a running process on request of a client: its active thread pauses at its next line of the user's code.

The request arrives over the control channel. The thread is traced until then, and nothing is slower before or
afterwards.

A main thread turns tracing on itself, in a pending call (`Py_AddPendingCall`, documented C API). For any other thread
it is turned on from here. In C code (a sleep, a collective, `ray.get`) the next line comes after the call has returned.

The callback must not run inside the pending call: on CPython 3.11 a second pending call makes a traced main thread spin
forever (ceval.c: DO_TRACING of RESUME checks the eval breaker, which stays set because pending calls do not nest).

Sources: CPython 3.11 and 3.12; debugpy 1.8.22 `pydevd_tracing.set_trace_to_threads`, held by tests/ray.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from raydebug.protocol import messages
from raydebug.protocol.records import Location, Refusal, WorkRecord
from raydebug.worker import pause, pydevd_session, records, source
from raydebug.worker.suspended_threads import python_settrace

# Ray 2.60.0 _raylet.pyx: the name of the thread of an async actor's event loop; held by tests/ray/test_contracts.py.
EVENT_LOOP = "AsyncIO Thread:"
MAX_NAME = 250

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_PACKAGES = ("/site-packages/", "/dist-packages/")
_RAY = "/ray/"
_DEBUGGER = ("/debugpy/", "/pydevd/", "/_pydevd_bundle/")

_pending: dict[str, ThreadCallback] = {}


def pause_for(request: str, send: Callable[[str, Refusal], None]) -> None:
    """Pause the active thread of this process at its next line.

    Args:
        request: identifies the request; the pause's record repeats it.
        send: sends a message to the gateway: PAUSE_REFUSED if the thread cannot be paused.
    """

    def refuse(cause: str) -> None:
        send(messages.PAUSE_REFUSED, {"request": request, "cause": cause})

    def suspend(frame: FrameType) -> None:
        if _pending.pop(request, None) is not None:
            pause.pause_at(frame, kind="requested", request=request, refuse=refuse)

    callback = _pending[request] = ThreadCallback(active_thread(), suspend)
    try:
        callback.schedule()
    except Exception as error:  # noqa: BLE001 - the client gets the reason; the job is not affected
        _pending.pop(request, None)
        refuse(str(error) if isinstance(error, Untraceable) else f"{type(error).__name__}: {error}")


def withdraw(request: str | None = None) -> None:
    """Cancel a pending request, or all of them: no client waits for the pause any longer."""
    for one in [request] if request is not None else list(_pending):
        callback = _pending.pop(one, None)
        if callback is not None:
            callback.cancel()


def describe() -> WorkRecord:
    """Return what this process is, and where its active thread runs.

    Re-arm pending pause requests: the active thread may have changed, or a debugger replaced our trace function.
    """
    active = active_thread()
    for request, callback in list(_pending.items()):
        current = callback if callback.ident == active else callback.retarget(active)
        if request in _pending:  # it has not run just now
            _pending[request] = current
            with contextlib.suppress(Untraceable):
                current.schedule()
    return {**records.describe_process(), **records.describe_work(), "doing": _location_of(active)}


# The active thread, found by its frames only, from any thread


def is_users(frame: FrameType) -> bool:
    """Return whether a frame belongs to the user's program or to a package it uses, not to Python, Ray or the debugger.

    Such a frame holds no lock that a pause needs; those of `threading`, `importlib` and this package may.
    """
    path = frame.f_code.co_filename
    if path.startswith("<"):  # namedtuple and dataclasses make functions of text, too
        return frame.f_globals.get("__name__") == "__main__" and not path.startswith("<frozen ")
    if path.startswith(_OWN):
        return False
    package = next((path.partition(folder)[2] for folder in _PACKAGES if folder in path), None)
    if package is None:
        return not path.startswith(_LIBRARY)
    return not f"/{package}".startswith((_RAY, *_DEBUGGER))


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether a frame or one of its callers belongs to us or the debugger: it is paused, or about to be."""
    while frame is not None:
        if is_debuggers(frame):
            return True
        frame = frame.f_back
    return False


def is_debuggers(frame: FrameType) -> bool:
    """Return whether a frame is of our hooks or of pydevd."""
    path = frame.f_code.co_filename
    return path.startswith(_OWN) or any(part in path for part in _DEBUGGER)


def active_thread() -> int:
    """Return the thread that runs the user's code: the main thread, or the one in which Ray runs an actor's methods."""
    frames = sys._current_frames()
    main = threading.main_thread().ident or 0
    if _users_frame(frames.get(main)) is not None:
        return main
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in frames.items():  # a thread pool of Ray's own, not started by Python
        if ident != main and not _was_started_by_python(frame) and _users_frame(frame) is not None:
            return ident
    return next((ident for ident in frames if names.get(ident, "").startswith(EVENT_LOOP)), main)


def _location_of(ident: int) -> Location:
    """Return where a thread runs: its name, and the innermost frame of the user's, if any."""
    innermost = sys._current_frames().get(ident)
    frame = _users_frame(innermost) or innermost
    name = next((thread.name for thread in threading.enumerate() if thread.ident == ident), f"thread {ident}")
    name = name[:MAX_NAME]
    if frame is None or innermost is None:
        return {"thread": name}
    path, line = frame.f_code.co_filename, frame.f_lineno
    location: Location = {"thread": name, "file": path, "line": line, "function": frame.f_code.co_qualname[:MAX_NAME]}
    location["text"] = source.line_at(path, line)
    if innermost is not frame:
        location["inside"] = f"{os.path.basename(innermost.f_code.co_filename)}:{innermost.f_code.co_name}"
    return location


def _users_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not is_users(frame):
        frame = frame.f_back
    return frame


def _was_started_by_python(frame: FrameType) -> bool:
    outermost = frame
    while outermost.f_back is not None:
        outermost = outermost.f_back
    return outermost.f_code.co_filename == threading.__file__


# A callback in another thread, at its next line of the user's code


class Untraceable(Exception):
    """A thread cannot be stopped from outside in this Python; the text says why."""


class ThreadCallback:
    """A callback that is to run in a thread.

    Args:
        ident: the thread.
        callback: called there once, with the user's frame.
    """

    def __init__(self, ident: int, callback: Callable[[FrameType], None]) -> None:
        self.ident = ident
        self._callback = callback
        self._done = False
        self._tracer = self._trace  # one object: a bound method is another one at each access

    def schedule(self) -> None:
        """Arm the callback (idempotent); does not block.

        Raises:
            Untraceable: that thread cannot be traced.
        """
        if self.ident != threading.main_thread().ident:
            _trace_thread(self.ident, self._tracer)
        else:
            _in_main_thread(self._trace_here)

    def retarget(self, ident: int) -> ThreadCallback:
        """Cancel it, and return the same callback for another thread."""
        self.cancel()
        return ThreadCallback(ident, self._callback)

    def cancel(self) -> None:
        """Disarm the callback; one that runs already is not interrupted."""
        self._done = True
        _end_tracing_of_all()

    def _trace_here(self, frame: FrameType | None) -> None:
        if not self._done and not _is_ours(frame):  # paused or about to be: describe() retries later
            _mark(frame, self._tracer)
            python_settrace()(self._tracer)

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if self._done or threading.get_ident() != self.ident:
            if sys.gettrace() is self._tracer:
                _return_tracing()
            return None
        if not is_users(frame):
            if frame.f_trace is not None:
                frame.f_trace = None
            return None
        if event not in ("line", "return") or _is_ours(frame):
            return self._tracer
        self._done = True
        _unmark(frame, self._tracer)
        python_settrace()(None)
        _end_tracing_of_all()
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


def _trace_thread(ident: int, tracer: Any) -> None:
    frame = sys._current_frames().get(ident)
    if frame is None:
        raise Untraceable("the thread has ended")
    if _is_ours(frame):
        return
    if sys.version_info >= (3, 12):
        _mark(frame, tracer)
        hook = threading.gettrace()
        threading.settrace_all_threads(tracer)  # the others' tracer removes itself at their next line
        threading.settrace(hook)  # type: ignore[arg-type]
        return
    pydevd_session.import_pydevd()
    import pydevd_tracing

    if pydevd_tracing.set_trace_to_threads(tracer, thread_idents=[ident], create_dummy_thread=False) != 0:
        raise Untraceable("debugpy cannot trace a running thread here (Python 3.11 on a processor other than x86_64)")
    _mark(sys._current_frames().get(ident), tracer)


def _end_tracing_of_all() -> None:
    if sys.version_info >= (3, 12):  # where the tracing of one thread costs all of them
        hook = threading.gettrace()
        threading.settrace_all_threads(None)  # type: ignore[arg-type]
        threading.settrace(hook)  # type: ignore[arg-type]


def _mark(frame: FrameType | None, tracer: Any) -> None:
    """Make this the only tracer of each running frame of the user's.

    pydevd leaves its own tracer in frames of an earlier pause, which would take over the thread's tracing.
    """
    while frame is not None:
        frame.f_trace = tracer if is_users(frame) else None
        frame = frame.f_back


def _unmark(frame: FrameType | None, tracer: Any) -> None:
    while frame is not None:
        if frame.f_trace is tracer:
            frame.f_trace = None
        frame = frame.f_back


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
    _pending.clear()
    _waiting.clear()  # the parent's pending call, if it runs here too, finds nothing to do


os.register_at_fork(after_in_child=_forget_in_fork)
