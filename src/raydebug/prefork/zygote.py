"""A process with the heavy imports done. It forks for each start that the server forwards, and runs no user code.

`python -c 'from raydebug.prefork.zygote import serve; serve(FD, MODULES)()'`: `serve` returns in forks only.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import select
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from stat import S_ISDIR
from typing import TYPE_CHECKING, Any, TypedDict

from raydebug.prefork import forked_process, ray_config
from raydebug.prefork.environment import Imported, recorded
from raydebug.prefork.hand_over import receive, send
from raydebug.worker import import_hooks

if TYPE_CHECKING:
    from raydebug.prefork.hand_over import Message

SERVER_FD, WAKE_FD, WAKING_FD = 700, 701, 702  # above what a starting process has inherited
# Forking is safe despite the threads of these libraries: OpenBLAS ends its threads before a fork (its memory.c,
# pthread_atfork), jemalloc starts its own anew in the child (its jemalloc.c, jemalloc_postfork_child).
HARMLESS_THREADS = ("jemalloc_bg_thd",)
_NAME = b"raydebug-zygote"
_PR_SET_NAME = 15  # linux/prctl.h

# Imported by the processes of a training, in this order; modules that are not installed are left out.
MODULES = (
    *("ray", "torch", "torch._dynamo", "transformers.models.qwen2.modeling_qwen2"),
    *("vllm", "vllm.model_executor.models.qwen2", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"),
    *("verl.trainer.main_ppo", "verl.trainer.ppo.v1", "verl.experimental.agent_loop"),
    *("verl.workers.engine.fsdp.transformer_impl", "verl.workers.engine_workers"),
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
)
LEAVES = ("verl",)  # a job may have its own copy: no other module above imports them
INSTALLED = ("site-packages", "dist-packages")

Stamp = tuple[int, int] | frozenset[str] | None
_STDLIB_FOLDERS = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")]
_STDLIB = tuple({f"{folder}/" for given in _STDLIB_FOLDERS for folder in (given, os.path.realpath(given))})


class Facts(TypedDict):
    """What a zygote reports after its imports.

    `tops` are the loaded top-level packages; `unfit` is why nothing may be forked from it, or None.
    """

    load_s: float
    modules: int
    tops: list[str]
    left_out: list[str]
    environment: Imported
    unfit: str | None


def serve(fd: int, modules: tuple[str, ...], without: tuple[str, ...] = ()) -> Callable[[], None]:
    """Import, then fork for each request; return in each fork a function that runs its program."""
    os.dup2(fd, SERVER_FD, inheritable=False)
    os.close(fd)
    server = socket.socket(fileno=SERVER_FD)
    sys.path.remove("")  # of -c; each fork puts its own first entry there
    begun = time.monotonic()
    loaded = Loaded(modules, without)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, all of it
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    ready: Facts = {
        "load_s": round(time.monotonic() - begun, 1),
        "modules": len(sys.modules),
        "tops": tops(),
        "left_out": loaded.left_out,
        "environment": loaded.environment,
        "unfit": _why_unfit(loaded),
    }
    send(server, {"ready": ready})
    return _Forker(server, loaded).run()


def _why_unfit(loaded: Loaded) -> str | None:
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
    os.waitpid(trial, 0)  # libraries that stop their threads at a fork have done so now
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    if others := [n for n in names if n not in (*HARMLESS_THREADS, _NAME.decode())]:
        return f"a library started a thread at its import: {others[0]}"
    links = {_link(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and int(fd) != SERVER_FD}
    if opened := [link for link in links if link and not link.startswith("/proc/")]:
        return f"an import opened a file and kept it: {opened[0]}"  # /dev/nvidia* among them
    return None


def _link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


class _Forker:
    def __init__(self, server: socket.socket, loaded: Loaded) -> None:
        self._server = server
        self._loaded = loaded
        self._children: dict[int, socket.socket] = {}
        for end, fixed in zip(os.pipe(), (WAKE_FD, WAKING_FD), strict=True):
            os.dup2(end, fixed, inheritable=False)
            os.close(end)
            os.set_blocking(fixed, False)
        signal.set_wakeup_fd(WAKING_FD, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> Callable[[], None]:
        """Serve until the server and all forks are gone; return in forks only."""
        connected = True
        while connected or self._children:
            watched: list[Any] = [WAKE_FD, self._server] if connected else [WAKE_FD]
            ready, _, _ = select.select(watched, [], [])
            if WAKE_FD in ready:
                os.read(WAKE_FD, 4096)
                self._reap()
            if self._server in ready:
                if (got := receive(self._server)) is None:
                    connected = False
                elif program := self._answer(*got):
                    return program
        os._exit(0)

    def _answer(self, request: Message, files: list[int]) -> Callable[[], None] | None:
        if (changed := self._loaded.changed()) is not None:
            _close(files)
            send(self._server, {"refused": request["id"], "changed": changed})
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for starter in self._children.values():
                starter.close()
            _close([WAKE_FD, WAKING_FD])
            return forked_process.take_over(request, self._server, files, self._loaded.environment)
        self._children[pid] = socket.socket(fileno=files[0])
        _close(files[1:])
        send(self._server, {"forked": request["id"], "pid": pid})
        return None

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            send_status(self._children.pop(pid), status)
            try:
                send(self._server, {"ended": pid})
            except OSError:
                continue


def send_status(starter: socket.socket, status: int) -> None:
    """Send the exit status of a process to its proxy."""
    with contextlib.suppress(OSError):  # the proxy was killed, and the process with it
        send(starter, {"status": status})
    starter.close()


def _close(files: list[int]) -> None:
    for fd in files:
        os.close(fd)


# What is loaded, and whether it has changed on the disk


def is_installed(path: str) -> bool:
    """Return whether a file belongs to an installed package or the standard library, not to a user's project.

    A link in the standard library's folder counts too: Debian and Ubuntu link sitecustomize.py there to /etc.
    """
    in_stdlib = path.startswith(_STDLIB) or os.path.realpath(path).startswith(_STDLIB)
    return in_stdlib or not {*INSTALLED}.isdisjoint(path.split("/"))


def stamp(path: str) -> Stamp:
    """Return what shows a change: modification time and size of a file, names in a folder without Python's cache."""
    try:
        status = os.stat(path)
        if S_ISDIR(status.st_mode):
            return frozenset(os.listdir(path)) - {"__pycache__"}
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


class Loaded:
    """The modules that a zygote has loaded, with the state of their files.

    Args:
        without: top-level packages to leave out because the job has its own.
    """

    def __init__(self, modules: tuple[str, ...] = MODULES, without: tuple[str, ...] = ()) -> None:
        self.left_out: list[str] = []
        finder = import_hooks.install_before_fork()
        with recorded() as self.environment:
            for name in modules:
                self._load(name, without)
        sys.meta_path.remove(finder)
        files = [*sys.path, *(getattr(module, "__file__", None) for module in [*sys.modules.values()])]
        # A folder of the path changes when something is installed.
        self._stamps = {path: stamp(path) for path in files if isinstance(path, str) and os.path.isabs(path)}

    def _load(self, name: str, without: tuple[str, ...]) -> None:
        top = name.partition(".")[0]
        try:
            spec = importlib.util.find_spec(top)
            if spec is None or spec.origin is None:
                return
            if top in without or not is_installed(spec.origin):
                self.left_out.append(f"{name}: the job has its own copy")
            elif name == "ray":
                ray_config.load_with_marks()
            else:
                importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a package may fail in any way, SystemExit included
            self.left_out.append(f"{name}: {type(error).__name__}: {error}"[:200])

    def changed(self) -> str | None:
        """Return a file that has changed since it was loaded, or None."""
        return next((path for path, before in self._stamps.items() if stamp(path) != before), None)

    def foreign(self) -> list[str]:
        """Return files of loaded modules that belong to a user's project, which must not be kept."""
        return [p for p in self._stamps if os.path.isfile(p) and not is_installed(p)]


def tops() -> list[str]:
    """Return the names of the loaded top-level modules without the standard library."""
    return sorted(n for n in sys.modules if "." not in n and n not in sys.stdlib_module_names and n != "__main__")
