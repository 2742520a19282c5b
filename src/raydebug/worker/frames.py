"""Whose frame is this, which thread runs the user's code, and where it is: found by frames only, from any thread.

Lines of source files are read in the process that runs them: stacks, listings and snapshots show no other lines.
"""

from __future__ import annotations

import functools
import linecache
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from raydebug.protocol.secrets import scrubbed

if TYPE_CHECKING:  # these types cost each process 2 ms
    from raydebug.protocol.records import Location

# Ray 2.60.0 _raylet.pyx: the name of the thread of an async actor's event loop; held by tests/ray/test_contracts.py.
EVENT_LOOP = "AsyncIO Thread:"
MAX_NAME = 250
MAX_SOURCE_BYTES = 4_000_000  # of a source file
MAX_LINE = 200  # characters of one line
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


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def place_of(frame: FrameType | None) -> str:
    """Return FILE:LINE FUNCTION of the nearest caller that belongs to the user's program; empty if none does."""
    own = next((one for one in outwards(frame) if is_program(one.f_code.co_filename)), None)
    return "" if own is None else f"{own.f_code.co_filename}:{own.f_lineno} {own.f_code.co_qualname}"[:1000]


def is_ours(frame: FrameType | None) -> bool:
    """Return whether a frame or one of its callers belongs to us or the debugger: it is paused, or about to be."""
    return any(map(is_debuggers, outwards(frame)))


def is_debuggers(frame: FrameType) -> bool:
    """Return whether a frame is of our hooks or of pydevd."""
    path = frame.f_code.co_filename
    return path.startswith(_OWN) or any(part in path for part in _DEBUGGER)


own_threads: set[int] = set()
"""Idents of our own threads."""
os.register_at_fork(after_in_child=own_threads.clear)


class _OwnThread(threading.Thread):
    """A thread that threading.enumerate() does not list: a program may wait for the end of all that are listed.

    Source: CPython 3.11 to 3.13 threading.py: `_active`, from which a thread removes itself at its end (`_delete`).
    """

    pydev_do_not_trace = is_pydev_daemon_thread = True
    hidden: threading.Event

    def run(self) -> None:
        listed: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
        ident = threading.get_ident()
        own_threads.add(ident)
        listed.pop(ident)
        self.hidden.set()
        try:
            super().run()
        finally:
            listed[ident] = self
            own_threads.discard(ident)


def start_thread(target: Callable[..., object], name: str, *arguments: object) -> threading.Thread:
    """Run a function in a thread of ours: neither program nor debugger see it, and it takes no signals."""
    thread = _OwnThread(target=target, name=name, args=arguments, daemon=True)
    thread.hidden = threading.Event()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS)
    try:
        thread.start()  # with the mask of who starts it
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    thread.hidden.wait()
    return thread


def active_thread() -> int:
    """Return the thread that runs the user's code: the main thread, or the one in which Ray runs an actor's methods."""
    frames = sys._current_frames()
    main = threading.main_thread().ident or 0
    if users_frame(frames.get(main)) is not None:
        return main
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in frames.items():  # a thread pool of Ray's own, not started by Python
        if ident != main and [*outwards(frame)][-1].f_code.co_filename != threading.__file__ and users_frame(frame):
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
    location["text"] = line_at(path, line)
    if innermost is not frame:
        location["inside"] = f"{os.path.basename(innermost.f_code.co_filename)}:{innermost.f_code.co_name}"
    return location


def users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame of the user's, from a frame outwards; None without one."""
    return next(filter(is_users, outwards(frame)), None)


# Source


def lines_of(path: str) -> list[str]:
    """Return the lines of a source file; none if it is not a regular file or a very large one.

    The path may be any text, as `compile` accepts any.
    """
    if path not in linecache.cache:
        try:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_SOURCE_BYTES:
                return []
        except ValueError:  # a path with a zero byte
            return []
        except OSError:  # not there: Python's module looks along sys.path
            pass
    return linecache.getlines(path)  # without module globals, which may have a loader of the user's


@functools.lru_cache(4096)
def line_at(path: str, line: int) -> str:
    """Return one line without its indent and without secrets; empty if there is none."""
    lines = lines_of(path)
    return scrubbed(lines[line - 1].strip(), source=True)[:MAX_LINE] if 0 < line <= len(lines) else ""
