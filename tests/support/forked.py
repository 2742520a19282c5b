"""`raydebug` and gateways in processes that are forked: starting Python and loading them takes 0.3 s of CPU each time.

One process, made of FORKING, has all modules loaded and forks a program for each message; the program reads arguments,
environment and folder after the fork, as one that was started. `tests/ray` and `tests/installed` start real ones too.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FORKING = """
import gc, json, os, signal, socket, sys
import docker, httpx, prompt_toolkit, psutil, pygments, rich.progress, rich.table, yaml
import raydebug.cli.app, raydebug.client.gateway_client, raydebug.cluster.find
import raydebug.gateway.__main__
requests = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps its children
gc.freeze()
while True:
    text, numbers, *_ = socket.recv_fds(requests, 2**20, 4)
    if not text:
        sys.exit()
    *streams, status = numbers
    if os.fork():
        for number in (*streams, status):
            os.close(number)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    pid = os.fork()
    if pid:
        os.write(status, b"%d " % pid)
        os.write(status, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    program, sys.argv, environment, folder = json.loads(text)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, max(*streams, status) + 1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    break
sys.exit(raydebug.gateway.__main__.main() if program == "gateway" else raydebug.cli.main())
"""


@functools.cache
def _forking() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Return the way to the process that forks, and it; it ends with this one, which holds the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        argv = [sys.executable, "-c", FORKING, str(number)]
        # A session of its own: no signal to the group of pytest, or of a test, ends it.
        process = subprocess.Popen(argv, pass_fds=[number], stdin=subprocess.DEVNULL, start_new_session=True)
    return ours, process


class Forked:
    """A forked program, with what tests use of `subprocess.Popen`.

    Args:
        program: `raydebug` or `gateway`.
        argv: its arguments, with its name.
        stdout: descriptor for what it prints.
        stderr: descriptor for the rest; its standard input is empty.
        env: its environment, if not ours.
        cwd: its folder, if not ours.
    """

    def __init__(
        self, program: str, argv: list[str], stdout: int, stderr: int, env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> None:  # fmt: skip
        environment = dict(os.environ if env is None else env)
        about = [program, argv, environment, os.path.abspath(cwd or ".")]
        self._status, theirs = os.pipe()
        empty = os.open(os.devnull, os.O_RDONLY)
        forking, process = _forking()
        try:
            socket.send_fds(forking, [json.dumps(about).encode()], [empty, stdout, stderr, theirs])
        except BrokenPipeError:
            raise RuntimeError(f"a test has ended the process that forks programs: {process.wait()}") from None
        os.close(empty)
        os.close(theirs)
        said = b""
        while not said.endswith(b" "):
            said += os.read(self._status, 1)
        self.pid = int(said)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not ended within so many seconds.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, 16) or -signal.SIGKILL)
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)
