"""`python -m raydebug.prefork.server SOCKET STATUS_FILE`: the server of the pool.

It forwards each start to a zygote that can serve it, and answers `cold` if there is none. It is the subreaper of the
forks of a killed zygote, so that their exit status still reaches their proxies.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

from raydebug.prefork.hand_over import flags, receive, send
from raydebug.prefork.pool import Pool, Zygote
from raydebug.prefork.zygote import SERVER_FD, send_status

if TYPE_CHECKING:
    from raydebug.prefork.hand_over import Message

REQUEST_TIMEOUT_S = 2.0
REAP_S = 0.2
_LONG = ("tops", "environment")  # facts of a zygote that are too long for the log
COLD_KEPT = 20  # reasons of cold starts that `ps` can show
SETUP_WORKER = "/ray/_private/workers/setup_worker.py"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Server:
    """Serves starts until it is terminated."""

    def __init__(self, path: str, status: str) -> None:
        self._status = status
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.path.exists(path):
            os.unlink(path)
        mask = os.umask(0o177)  # for its owner only
        self._listener.bind(path)
        os.umask(mask)
        self._listener.listen(256)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._pool = Pool(self._started, self._dropped)
        self._asking: dict[int, tuple[Zygote, socket.socket]] = {}
        self._running: dict[int, tuple[Zygote, socket.socket]] = {}
        self._requests = 0
        self._cold: list[dict[str, str]] = []
        self._cold_count = 0

    def run(self) -> None:
        """Serve until SIGTERM."""
        first = {"env": dict(os.environ), "executable": sys.executable, "flags": flags()}
        self._pool.start(first)
        self._write_status()
        while True:
            for key, _ in self._selector.select(timeout=REAP_S):
                key.data()
            self._reap_orphans()

    def _accept(self) -> None:
        starter, _ = self._listener.accept()
        starter.settimeout(REQUEST_TIMEOUT_S)
        files: list[int] = []
        try:
            got = receive(starter)
            starter.settimeout(None)  # a zygote and its fork share the socket, and it must block there
            if got is not None:
                request, files = got
                self._forward(starter, request, files)
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log(f"a request failed: {type(error).__name__}: {error}")
        finally:
            for fd in files:
                os.close(fd)
            if not any(starter is kept for _, kept in self._asking.values()):
                starter.close()

    def _forward(self, starter: socket.socket, request: Message, files: list[int]) -> None:
        program = " ".join(request["argv"][1:4])[:120]
        try:
            skip_setup_worker(request)
        except ValueError as error:
            self._note_cold(program, str(error))
            send(starter, {"cold": str(error)})
            return
        if any(fd >= SERVER_FD for fd in request["fds"]) or not {0, 1, 2} <= set(request["fds"]):
            zygote, reason = None, "its open files have unusual numbers"
        else:
            zygote, reason = self._pool.choose(request)
        if zygote is None:
            self._note_cold(program, reason)
            send(starter, {"cold": reason})
            return
        self._requests += 1
        number = self._requests
        send(zygote.connection, {**request, "id": number}, [starter.fileno(), *files])
        self._asking[number] = zygote, starter
        zygote.used = time.monotonic()

    def _receive(self, zygote: Zygote) -> None:
        got = receive(zygote.connection)
        if got is None and zygote.facts is not None and zygote.facts["unfit"]:
            self._selector.unregister(zygote.connection)  # it stays in the list, with its reason
            return
        if got is None:
            self._pool.drop(zygote, "it ended")
            return
        message = got[0]
        if "ready" in message:
            self._pool.note_ready(zygote, message["ready"])
            _log(f"zygote {zygote.number}: { ({k: v for k, v in message['ready'].items() if k not in _LONG}) }")
        elif "forked" in message:
            owner, starter = self._asking.pop(message["forked"])
            zygote.served += 1
            self._running[message["pid"]] = owner, starter
        elif "failed" in message:
            _, starter = self._running.get(message["pid"]) or self._asking[message["failed"]]
            self._note_cold("", message["reason"])
            _send(starter, {"cold": message["reason"]})
        elif "refused" in message:
            _, starter = self._asking.pop(message["refused"])
            self._restart(zygote, f"{message['changed']} has changed")
            self._note_cold("", f"{message['changed']} has changed")  # now the status does not list it as ready
            _send(starter, {"cold": "changed"})
            starter.close()
        elif "ended" in message and message["ended"] in self._running:
            self._running.pop(message["ended"])[1].close()
        self._write_status()

    def _restart(self, zygote: Zygote, why: str) -> None:
        if any(zygote is z for z in self._pool.zygotes):
            self._pool.drop(zygote, why)
            executable, flags = zygote.kind
            self._pool.start({"env": zygote.environ, "executable": executable, "flags": flags}, zygote.without)

    def _started(self, zygote: Zygote) -> None:
        _log(f"zygote {zygote.number} starts: pid {zygote.process.pid}")
        self._selector.register(zygote.connection, selectors.EVENT_READ, lambda: self._receive(zygote))
        self._write_status()

    def _dropped(self, zygote: Zygote, why: str) -> None:
        _log(f"zygote {zygote.number} goes: {why}")
        self._selector.unregister(zygote.connection)
        for number in [n for n, (owner, _) in self._asking.items() if owner is zygote]:
            self._asking.pop(number)[1].close()  # it starts without the pool
        self._write_status()

    def _reap_orphans(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._running:  # its zygote was killed first
                send_status(self._running.pop(pid)[1], status)

    def _note_cold(self, program: str, reason: str) -> None:
        self._cold_count += 1
        self._cold = [*self._cold, {"program": program, "reason": reason}][-COLD_KEPT:]
        _log(f"cold: {program}: {reason}")
        self._write_status()

    def _write_status(self) -> None:
        zygotes = [
            {
                "number": z.number,
                "pid": z.process.pid,
                "state": "loading" if z.facts is None else "unfit" if z.facts["unfit"] else "ready",
                "reason": z.facts and z.facts["unfit"],
                "modules": z.facts["modules"] if z.facts else 0,
                "load_s": z.facts and z.facts["load_s"],
                "left_out": z.facts["left_out"] if z.facts else [],
                "served": z.served,
                "running": sum(owner is z for owner, _ in self._running.values()),
            }
            for z in self._pool.zygotes
        ]
        document = {"pid": os.getpid(), "zygotes": zygotes, "cold": self._cold_count, "last_cold": self._cold}
        # Not settings.files.atomic_write: the pool imports worker and protocol only.
        fresh = f"{self._status}.new"
        with contextlib.suppress(OSError):  # a full disk: it is written at the next change
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(document, file)
            os.replace(fresh, self._status)


def skip_setup_worker(request: Message) -> None:
    """Replace a start through Ray's setup_worker.py by the start of the worker that it executes; it saves 1 s.

    Source: ray 2.60.0 _private/workers/setup_worker.py and _private/runtime_env/context.py exec_worker: it sets the
    variables of the job's environment and executes the rest of its arguments. With any other setting it runs itself.
    """
    argv = request["argv"]
    at = next((i for i, argument in enumerate(argv) if argument.endswith(SETUP_WORKER)), 0)
    if not at:
        return
    rest, context, language = [], "{}", ""
    for argument in argv[at + 1 :]:
        if argument.startswith("--serialized-runtime-env-context="):
            context = argument.partition("=")[2]
        elif argument.startswith("--language="):
            language = argument.partition("=")[2]
        else:
            rest.append(argument)
    wanted = json.loads(context)
    variables = wanted.pop("env_vars", None) or {}
    same = wanted.pop("py_executable", None) in (None, request["executable"])
    if language != "PYTHON" or not same or any(wanted.values()) or any("$" in v for v in variables.values()):
        raise ValueError("a worker with a set-up of its own")
    if not rest or not rest[0].endswith("/default_worker.py"):
        raise ValueError("not a worker")
    request["argv"] = [*argv[:at], *rest]
    request["env"] = {**request["env"], **variables}


def _send(starter: socket.socket, message: Message) -> None:
    with contextlib.suppress(OSError):  # the starter is gone
        send(starter, message)


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201 - the pool's log


def main() -> None:
    """Serve the socket given as the first argument."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: None)  # SIG_IGN would be inherited
    Server(sys.argv[1], sys.argv[2]).run()


if __name__ == "__main__":
    main()
