"""Turn a fork of a zygote into the process that was started: its files, environment, folder, signals, program."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import multiprocessing.process
import os
import resource
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from socket import socket
from types import ModuleType
from typing import TYPE_CHECKING, Any

from raydebug.prefork import ray_config
from raydebug.prefork.environment import Imported, after_import, mapped_libraries
from raydebug.prefork.hand_over import program_at, receive, send

if TYPE_CHECKING:
    from raydebug.prefork.hand_over import Message

FAILED = 70  # EX_SOFTWARE; only the pool sees it
_HIGH_FD = 800
_INTERRUPTED = -signal.SIGINT
_F_SETSIG = 10  # linux/fcntl.h; Python's fcntl has no name for it

# The function's name in OpenBLAS, as numpy's and scipy's wheels build it (scipy-openblas64 0.3.30), and elsewhere.
_OPENBLAS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads")


def take_over(request: Message, server: socket, files: list[int], imported: Imported) -> Callable[[], None]:
    """Take over the state of the starting process, and return a function that runs its program.

    The program starts only after a confirmation: the starting process may have timed out, and the program would run
    twice. Everything that can fail comes before that, so that the starting process can still run the program itself.

    Args:
        request: describes the starting process (hand_over.py).
        server: the connection to the server, for a failure.
        files: the connection to the starting process, a pipe whose only writer it is, and its open files by number.
        imported: how the imports changed the environment.
    """
    try:
        starter = socket(fileno=fcntl.fcntl(files[0], fcntl.F_DUPFD_CLOEXEC, _HIGH_FD))
        os.close(files[0])
        program = _prepare(request, files[1], files[2:], imported)
    except BaseException as error:  # noqa: BLE001 - the zygote's code must not continue in this process
        reason = f"{type(error).__name__}: {error}"
        send(server, {"failed": request["id"], "pid": os.getpid(), "reason": reason})
        os._exit(FAILED)
    try:
        server.close()
        send(starter, {"pid": os.getpid()})
        if receive(starter) is None:
            os._exit(FAILED)
        starter.close()
    except OSError:
        os._exit(FAILED)  # the starting process is gone
    import raydebug.worker.startup  # noqa: F401 - puts the hooks in place

    return program


def _prepare(request: Message, ends: int, files: list[int], imported: Imported) -> Callable[[], None]:
    _end_with(ends)
    os.setsid()
    _take_files(request["fds"], files)
    wanted = after_import(imported, request["env"])
    for name in [name for name in os.environ if name not in wanted]:
        del os.environ[name]
    os.environ.update(wanted)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    _take_limits(request)
    _take_signals(request)
    _renew_secrets()
    ray_config.refresh(os.environ)
    _follow_omp_threads()
    _show_as(request["argv"])
    return _program(request["argv"])


def _end_with(ends: int) -> None:
    # The kernel sends SIGKILL when the last writer of this pipe is gone, whatever this process is doing.
    high = fcntl.fcntl(ends, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    os.close(ends)
    fcntl.fcntl(high, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(high, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(high, fcntl.F_SETFL, fcntl.fcntl(high, fcntl.F_GETFL) | os.O_ASYNC)


def _take_files(numbers: list[int], files: list[int]) -> None:
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD) for fd in files]
    for fd in files:
        os.close(fd)
    for number, fd in zip(numbers, moved, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _take_limits(request: Message) -> None:
    for number, limits in request["limits"].items():
        resource.setrlimit(number, limits)
    os.sched_setaffinity(0, request["affinity"])
    if request["nice"] > os.nice(0):
        os.nice(request["nice"] - os.nice(0))
    # Ray lets the kernel take its workers first when memory is short.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(request["oom_score_adj"])


def _take_signals(request: Message) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Python's default
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])


def _follow_omp_threads() -> None:
    """Set the threads of numerical libraries to OMP_NUM_THREADS, now and when Ray sets it for a task.

    The libraries read it only when they are loaded.

    Source: ray 2.60.0 _private/utils.py:235 sets it before the user's code is loaded, which would then load torch.
    """
    _apply_omp_threads()
    utils: Any = sys.modules.get("ray._private.utils")
    if utils is None:
        return
    plain = utils.set_omp_num_threads_if_unset

    def set_omp_num_threads_if_unset() -> bool:
        was_set = bool(plain())
        if was_set:
            _apply_omp_threads()
        return was_set

    utils.set_omp_num_threads_if_unset = set_omp_num_threads_if_unset


def _apply_omp_threads() -> None:
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if not wanted.isdigit() or int(wanted) < 1:
        return
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(wanted))
    for path in (path for path in mapped_libraries() if "openblas" in path):
        library = ctypes.CDLL(path)
        for name in _OPENBLAS:
            if hasattr(library, name):
                getattr(library, name)(int(wanted))
                break


def _renew_secrets() -> None:
    # Drawn at import, so all forks would share the zygote's. `random` reseeds itself after a fork.
    multiprocessing.process.current_process().authkey = os.urandom(32)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _show_as(argv: list[str]) -> None:
    # Ray's own, which sets it again in its workers: in _raylet from Ray 2.49 on, before that a package it brings.
    for module in ("ray._raylet", "setproctitle"):
        set_title = getattr(sys.modules.get(module), "setproctitle", None)
        if set_title is not None:
            set_title(" ".join(argv))
            return


def _program(argv: list[str]) -> Callable[[], None]:
    """Return a function that runs the program of a command line in a new module `__main__`, as the interpreter does."""
    sys.orig_argv = argv
    at = program_at(argv)
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    flag = argv[at]
    if flag in ("-m", "-c"):
        sys.argv = [flag, *argv[at + 2 :]]
        sys.path.insert(0, os.getcwd() if flag == "-m" else "")
    else:
        sys.argv = argv[at:]
        sys.path.insert(0, os.path.dirname(os.path.realpath(flag)))
        main.__file__ = flag
    if flag == "-m":
        _forget(argv[at + 1])  # runpy warns about a loaded module, and would leave a second copy of it
        return lambda: _run(lambda: runpy._run_module_as_main(argv[at + 1]))  # type: ignore[attr-defined]
    if flag == "-c":
        source = argv[at + 1]
        return lambda: _run(lambda: exec(compile(source, "<string>", "exec"), main.__dict__))  # noqa: S102
    loader = SourceFileLoader("__main__", flag)
    main.__loader__ = loader
    return lambda: _run(lambda: exec(loader.get_code("__main__"), main.__dict__))  # type: ignore[arg-type]  # noqa: S102


def _forget(name: str) -> None:
    if hasattr(sys.modules.get(name), "__path__"):
        name += ".__main__"
    package, _, last = name.rpartition(".")
    if sys.modules.pop(name, None) is not None and package in sys.modules:
        vars(sys.modules[package]).pop(last, None)


def _run(program: Callable[[], Any]) -> None:
    """Run a program, and end as the interpreter does."""
    code = 0
    try:
        program()
    except SystemExit as end:
        code = _exit_code(end.code)
    except BaseException as error:  # noqa: BLE001 - reported as the interpreter does, without our frames
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    _end(code)


def _exit_code(wanted: object) -> int:
    if wanted is None or isinstance(wanted, int):
        return (wanted or 0) & 0xFF
    print(wanted, file=sys.stderr)  # noqa: T201 - what Python does with it
    return 1


def _end(code: int) -> None:
    """Do what the interpreter does at its end (CPython 3.11 Py_FinalizeEx), except clearing all modules.

    The modules of the zygote are frozen (zygote.py, gc.freeze): C libraries would report them as leaked on the job's
    stderr.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    names = sys.modules["__main__"].__dict__
    for name in [n for n in names if n != "__builtins__"]:
        names[name] = None  # the program's objects are released: its files are closed
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the program may have closed it
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    if code == _INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)
