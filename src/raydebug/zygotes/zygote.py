"""A process with the heavy imports done. It forks for each start that the keeper passes on, and runs nothing itself.

`python -c 'from raydebug.zygotes.zygote import serve; serve(FD, MODULES)()'`: `serve` returns in forks, with a program.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from raydebug.zygotes import become, packages, ray_config, wire

LINE_FD, WAKE_FD, WAKING_FD = 700, 701, 702  # above what a starting process has inherited
# Of these libraries' own threads a fork is known to be safe: OpenBLAS ends its threads before a fork (its memory.c,
# pthread_atfork), jemalloc starts its own anew in the child (its jemalloc.c, jemalloc_postfork_child).
HARMLESS_THREADS = ("jemalloc_bg_thd",)
_NAME = b"raydebug-zygote"
_PR_SET_NAME = 15  # linux/prctl.h


def serve(fd: int, modules: tuple[str, ...], without: tuple[str, ...] = ()) -> Callable[[], None]:
    """Import, then fork for each request; return in each fork what runs its program.

    Args:
        fd: the line to the keeper.
        modules: what to import.
        without: packages to leave out.
    """
    os.dup2(fd, LINE_FD, inheritable=False)
    os.close(fd)
    keeper = socket.socket(fileno=LINE_FD)
    sys.path.remove("")  # of -c; each fork puts its own first entry there
    begun = time.monotonic()
    loaded = packages.Loaded(modules, without)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, all of it
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    ready = {
        "load_s": round(time.monotonic() - begun, 1),
        "modules": len(sys.modules),
        "tops": packages.tops(),
        "left_out": loaded.left_out,
        "environment": loaded.environment,
        "unfit": _why_unfit(loaded),
    }
    wire.send(keeper, {"ready": ready})
    return _Serving(keeper, loaded).run()


def _why_unfit(loaded: packages.Loaded) -> str | None:
    """Return why nothing may be forked from this process, or None."""
    if foreign := loaded.foreign():
        return f"a package loads a file that is not an installed one: {foreign[0]}"
    if len(threading.enumerate()) > 1:
        return f"an import started a thread: {threading.enumerate()[-1].name}"
    if "ray._raylet" in sys.modules and not ray_config.is_found():
        return "Ray's settings are not where they are expected (ray_config.py)"
    trial = os.fork()
    if trial == 0:
        os._exit(0)
    os.waitpid(trial, 0)  # libraries that stop their threads for a fork have done so now
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    if others := [n for n in names if n not in (*HARMLESS_THREADS, _NAME.decode())]:
        return f"a library started a thread at its import: {others[0]}"
    links = {_link(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and int(fd) != LINE_FD}
    if opened := [link for link in links if link and not link.startswith("/proc/")]:
        return f"an import opened a file and kept it: {opened[0]}"  # /dev/nvidia* among them
    return None


def _link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


class _Serving:
    def __init__(self, keeper: socket.socket, loaded: packages.Loaded) -> None:
        self._keeper = keeper
        self._loaded = loaded
        self._children: dict[int, socket.socket] = {}
        for end, fixed in zip(os.pipe(), (WAKE_FD, WAKING_FD), strict=True):
            os.dup2(end, fixed, inheritable=False)
            os.close(end)
            os.set_blocking(fixed, False)
        signal.set_wakeup_fd(WAKING_FD, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> Callable[[], None]:
        """Serve until the keeper and all forks are gone; return in forks only."""
        keeping = True
        while keeping or self._children:
            watched: list[Any] = [WAKE_FD, self._keeper] if keeping else [WAKE_FD]
            ready, _, _ = select.select(watched, [], [])
            if WAKE_FD in ready:
                os.read(WAKE_FD, 4096)
                self._reap()
            if self._keeper in ready:
                try:
                    got = wire.receive(self._keeper)
                except OSError:
                    got = None
                if got is None:
                    keeping = False
                elif program := self._answer(*got):
                    return program
        os._exit(0)

    def _answer(self, request: dict[str, Any], files: list[int]) -> Callable[[], None] | None:
        changed = self._loaded.changed()
        if changed is not None:
            _close(files)
            wire.send(self._keeper, {"refused": request["id"], "changed": changed})
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for asker in self._children.values():
                asker.close()
            _close([WAKE_FD, WAKING_FD])
            return become.take_over(request, self._keeper, files, self._loaded.environment)
        self._children[pid] = socket.socket(fileno=files[0])
        _close(files[1:])
        wire.send(self._keeper, {"forked": request["id"], "pid": pid})
        return None

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            tell_end(self._children.pop(pid), status)
            try:
                wire.send(self._keeper, {"ended": pid})
            except OSError:
                continue


def tell_end(asker: socket.socket, status: int) -> None:
    """Tell the process that stands in for one how that has ended."""
    with contextlib.suppress(OSError):  # it was killed, and the other with it
        wire.send(asker, {"status": status})
    asker.close()


def _close(files: list[int]) -> None:
    for fd in files:
        os.close(fd)
