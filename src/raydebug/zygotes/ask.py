"""Hands the start of this process over to the pool, and stays as its stand-in: the pid that whoever started it knows.

Runs before anything else in a Python below a warm cluster. Whatever goes wrong, the process starts as ever.
"""

from __future__ import annotations

import _signal
import _socket
import os
import resource
import sys

from raydebug.worker import names
from raydebug.zygotes import environment, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ANSWER_TIMEOUT_S = 20.0  # fifty starts at one time take their turns
# Ray 2.60.0 starts a worker of a job with an environment by the second, which becomes the first by exec.
RAY_WORKERS = ("/ray/_private/workers/default_worker.py", "/ray/_private/workers/setup_worker.py")
ANOTHER_PYTHON = "/raydebug/worker/another_python.py"  # may have no raydebug of its own
SPAWN = "from multiprocessing.spawn import spawn_main"  # CPython 3.11, 3.12 multiprocessing/spawn.py:84
_UNKNOWN_END = 1
_NOT_OURS = (32, 33)  # glibc keeps these signals for itself
SIGNALS = [n for n in range(1, 65) if n not in _NOT_OURS]


def hand_over() -> None:
    """Let the pool run this process's program, if it is one for it; return where it is to start as ever."""
    try:
        if not is_wanted(sys.orig_argv, os.environ):
            return
        accepted = _ask(os.environ[names.WARM])
    except Exception:  # noqa: BLE001 - without a pool the process starts as ever
        return
    if accepted is not None:
        _stand_in(*accepted)


def is_wanted(argv: list[str], environ: Mapping[str, str]) -> bool:
    """Say whether the pool can spare this start: a Ray worker's, or that of a job's program or its spawned child."""
    at = environment.program_at(argv)
    program = argv[at] if at < len(argv) else ""
    if program.endswith(RAY_WORKERS):
        return True
    if names.JOB not in environ or program.endswith(ANOTHER_PYTHON):
        return False
    if program == "-c":
        return argv[at + 1].startswith(SPAWN)
    return program == "-m" or program.endswith(".py")


def _ask(path: str) -> tuple[Any, int, int] | None:
    inherited = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd)]
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    sock.settimeout(ANSWER_TIMEOUT_S)
    sock.connect(path)
    # The kernel ends the process that runs the program when this one, the pipe's only writer, is gone.
    ends, lives = os.pipe()
    try:
        wire.send(sock, _describe(inherited), [ends, *inherited])
        answer = wire.receive(sock)
        if answer is not None and "pid" in answer[0]:
            process = os.pidfd_open(answer[0]["pid"])
            wire.send(sock, {"go": True})
            return sock, process, lives
    except BaseException:
        os.close(lives)
        raise
    finally:
        os.close(ends)
    os.close(lives)
    sock.close()
    return None


def _describe(inherited: list[int]) -> dict[str, Any]:
    umask = os.umask(0o77)
    os.umask(umask)
    with open("/proc/self/oom_score_adj") as file:
        oom_score_adj = file.read()
    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        "argv": sys.orig_argv,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": umask,
        "fds": inherited,
        "flags": repr((sys.flags, sys._xoptions, sys.warnoptions)),
        "executable": sys.executable,
        "limits": {number: resource.getrlimit(number) for number in limits},
        "affinity": list(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "oom_score_adj": oom_score_adj,
        "ignored": [n for n in SIGNALS if _signal.getsignal(n) == _signal.SIG_IGN],
        "blocked": [int(n) for n in _signal.pthread_sigmask(_signal.SIG_BLOCK, [])],
    }


def _stand_in(sock: Any, process: int, lives: int) -> None:
    """Pass signals on to the process that runs the program, wait for its end, and end in the same way."""

    def pass_on(number: int, _frame: Any) -> None:
        try:
            _signal.pidfd_send_signal(process, number)
        except OSError:
            return  # it has ended

    for number in SIGNALS:
        if number not in (_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGCHLD):
            _signal.signal(number, pass_on)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])
    kept = {sock.fileno(), process, lives}
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept and _is_open(fd):
            os.close(fd)  # who reads what the program writes must see its end
    _end_as(_status_of(sock, process))


def _status_of(sock: Any, process: int) -> int:
    try:
        sock.settimeout(None)
        answer = wire.receive(sock)
        if answer is not None:
            status: int = answer[0]["status"]
            return status
    except OSError:
        pass
    import select  # the pool is gone, the program is not: its end can be seen, its exit code cannot

    select.select([process], [], [])
    return _UNKNOWN_END << 8


def _end_as(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
        if number != _signal.SIGKILL:
            _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:  # the one that listed the folder
        return False
    return True
