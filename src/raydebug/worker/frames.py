"""Whose frame is this, which thread runs the user's code, and where it is: found by frames only, from any thread."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from raydebug.worker import source

if TYPE_CHECKING:  # these types cost each process 2 ms
    from raydebug.protocol.records import Location

# Ray 2.60.0 _raylet.pyx: the name of the thread of an async actor's event loop; held by tests/ray/test_contracts.py.
EVENT_LOOP = "AsyncIO Thread:"
MAX_NAME = 250
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_PACKAGES = ("/site-packages/", "/dist-packages/")
_RAY = "/ray/"
_DEBUGGER = ("/debugpy/", "/pydevd/", "/_pydevd_bundle/")


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


def is_program(path: str) -> bool:
    """Return whether a file belongs to the user's program itself, not to an installed package or to Python."""
    return not any(folder in path for folder in _PACKAGES) and not path.startswith((_LIBRARY, _OWN, "<"))


def place_of(frame: FrameType | None) -> str:
    """Return FILE:LINE FUNCTION of the nearest caller that belongs to the user's program; empty if none does."""
    while frame is not None and not is_program(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"[:1000]


def is_ours(frame: FrameType | None) -> bool:
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


def start_thread(target: Callable[..., object], name: str, *arguments: object) -> threading.Thread:
    """Run a function in a thread of ours: the debugger neither traces nor lists it, and it takes no signals."""
    thread = threading.Thread(target=target, name=name, args=arguments, daemon=True)
    thread.pydev_do_not_trace = thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS)
    try:
        thread.start()  # with the mask of who starts it
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread


def active_thread() -> int:
    """Return the thread that runs the user's code: the main thread, or the one in which Ray runs an actor's methods."""
    frames = sys._current_frames()
    main = threading.main_thread().ident or 0
    if users_frame(frames.get(main)) is not None:
        return main
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in frames.items():  # a thread pool of Ray's own, not started by Python
        if ident != main and not _was_started_by_python(frame) and users_frame(frame) is not None:
            return ident
    return next((ident for ident in frames if names.get(ident, "").startswith(EVENT_LOOP)), main)


def location_of(ident: int) -> Location:
    """Return where a thread runs: its name, and the innermost frame of the user's, if any."""
    innermost = sys._current_frames().get(ident)
    frame = users_frame(innermost) or innermost
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


def users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame of the user's, from a frame outwards; None without one."""
    while frame is not None and not is_users(frame):
        frame = frame.f_back
    return frame


def _was_started_by_python(frame: FrameType) -> bool:
    outermost = frame
    while outermost.f_back is not None:
        outermost = outermost.f_back
    return outermost.f_code.co_filename == threading.__file__
