"""Hand the start of this process over to the pool, and stay as its proxy: the starter knows this process id.

Runs before anything else in a Python below a cluster with a pool. On any failure the process starts as usual.

Starter, server and zygote send each other a length, a dictionary and open files (SCM_RIGHTS) on a unix socket. All
belong to one installation and one user, so marshal, which Python has loaded already, is sufficient.
"""

from __future__ import annotations

import _signal
import _socket  # the C part alone: `socket` costs a starting process 4 ms
import marshal
import os
import resource
import sys

from raydebug.protocol import variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Message = dict[str, Any]

ANSWER_TIMEOUT_S = 20.0  # fifty starts at once wait for each other
# Ray 2.60.0 starts a worker of a job with an environment by the second, which executes the first.
RAY_WORKERS = ("/ray/_private/workers/default_worker.py", "/ray/_private/workers/setup_worker.py")
ANOTHER_PYTHON = "/raydebug/worker/py_executable.py"  # may have no raydebug of its own
SPAWN = "from multiprocessing.spawn import spawn_main"  # CPython 3.11, 3.12 multiprocessing/spawn.py:84
_UNKNOWN_END = 1
_NOT_OURS = (32, 33)  # glibc keeps these signals for itself
SIGNALS = [n for n in range(1, 65) if n not in _NOT_OURS]
LENGTH_BYTES = 8
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_FILES = 250  # SCM_MAX_FD of Linux is 253
_FD_BYTES = 4

_is_done = False


def hand_over() -> None:
    """Let the pool run this process's program if it can; return if the process must start as usual."""
    global _is_done
    if _is_done:  # raydebug.pth may be read twice, e.g. through lib and lib64
        return
    _is_done = True
    try:
        if not is_wanted(sys.orig_argv, os.environ):
            return
        accepted = _request_process(os.environ[variables.PREFORK])
    except Exception:  # noqa: BLE001 - without a pool the process starts as usual
        return
    if accepted is not None:
        _act_as_proxy(*accepted)


def is_wanted(argv: list[str], environ: Mapping[str, str]) -> bool:
    """Return whether the pool may serve this start: of a Ray worker, a job's program or its spawned child."""
    at = program_at(argv)
    program = argv[at] if at < len(argv) else ""
    if program.endswith(RAY_WORKERS):
        return True
    if variables.JOB not in environ or program.endswith(ANOTHER_PYTHON):
        return False
    if program == "-c":
        return argv[at + 1].startswith(SPAWN)
    return program == "-m" or program.endswith(".py")


def program_at(argv: list[str]) -> int:
    """Return the index of `-m`, `-c` or the script among an interpreter's arguments."""
    at = 1
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "-c"):
        at += 2 if argv[at] in ("-X", "-W") else 1
    return at


def _request_process(path: str) -> tuple[Any, int, int] | None:
    inherited = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd)]
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    sock.settimeout(ANSWER_TIMEOUT_S)
    sock.connect(path)
    # The kernel ends the process that runs the program when this one, the pipe's only writer, is gone.
    ends, lives = os.pipe()
    try:
        send(sock, _describe(inherited), [ends, *inherited])
        answer = receive(sock)
        if answer is not None and "pid" in answer[0]:
            process = os.pidfd_open(answer[0]["pid"])
            send(sock, {"go": True})
            return sock, process, lives
    except BaseException:
        os.close(lives)
        raise
    finally:
        os.close(ends)
    os.close(lives)
    sock.close()
    return None


def flags() -> str:
    """Return the options of this interpreter."""
    return repr((sys.flags, sys._xoptions, sys.warnoptions))


def _describe(inherited: list[int]) -> Message:
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
        "flags": flags(),
        "executable": sys.executable,
        "limits": {number: resource.getrlimit(number) for number in limits},
        "affinity": list(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "oom_score_adj": oom_score_adj,
        "ignored": [n for n in SIGNALS if _signal.getsignal(n) == _signal.SIG_IGN],
        "blocked": [int(n) for n in _signal.pthread_sigmask(_signal.SIG_BLOCK, [])],
    }


def _act_as_proxy(sock: Any, process: int, lives: int) -> None:
    """Forward signals to the process that runs the program, wait for its end, and end with the same status."""

    def forward(number: int, _frame: Any) -> None:
        try:
            _signal.pidfd_send_signal(process, number)
        except OSError:
            return  # it has ended

    for number in SIGNALS:
        if number not in (_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGCHLD):
            _signal.signal(number, forward)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])
    kept = {sock.fileno(), process, lives}
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept and _is_open(fd):
            os.close(fd)  # the reader of the program's output must see its end
    _end_as(_status_of(sock, process))


def _status_of(sock: Any, process: int) -> int:
    sock.settimeout(None)
    if (answer := receive(sock)) is not None:
        status: int = answer[0]["status"]
        return status
    import select  # the pool is gone but the program runs: its end can be seen, its exit code cannot

    select.select([process], [], [])
    return _UNKNOWN_END << 8


def _end_as(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own core file
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


def send(sock: Any, message: Message, files: list[int] | None = None) -> None:
    """Send a whole message with open files."""
    body = marshal.dumps(message)
    data = len(body).to_bytes(LENGTH_BYTES, "little") + body
    rights = b"".join(fd.to_bytes(_FD_BYTES, "little") for fd in files or ())
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else []
    sent = sock.sendmsg([data], ancillary)
    if sent < len(data):
        sock.sendall(data[sent:])


def receive(sock: Any) -> tuple[Message, list[int]] | None:
    """Receive a message with its open files; None where the stream has ended or is broken, or nothing came in time."""
    try:
        return _receive(sock)
    except OSError:
        return None


def _receive(sock: Any) -> tuple[Message, list[int]] | None:
    head, ancillary, _, _ = sock.recvmsg(LENGTH_BYTES, _socket.CMSG_SPACE(MAX_FILES * _FD_BYTES))
    files = [
        int.from_bytes(data[at : at + _FD_BYTES], "little")
        for level, kind, data in ancillary
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for at in range(0, len(data) - len(data) % _FD_BYTES, _FD_BYTES)
    ]
    if not head:
        return None
    head += _exactly(sock, LENGTH_BYTES - len(head))
    length = int.from_bytes(head, "little")
    if length > MAX_BODY_BYTES:
        raise OSError(f"a message of {length} bytes")
    return marshal.loads(_exactly(sock, length)), files  # noqa: S302 - of our own installation and user


def _exactly(sock: Any, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise OSError("the stream ended within a message")
        data += piece
    return data
