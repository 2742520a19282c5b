"""`python -m raydebug.zygotes.keeper SOCKET STATUS_FILE`: the pool's door and its accounts.

It passes each start on to a zygote that may serve it, and says `cold` where there is none. It is the parent of what is
left when a zygote is killed, so that the ends of its forks are told all the same.
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
from typing import Any

from raydebug.zygotes import wire
from raydebug.zygotes.pool import Pool, Zygote
from raydebug.zygotes.zygote import LINE_FD, tell_end

REQUEST_TIMEOUT_S = 2.0
REAP_S = 0.2
_LONG = ("tops", "environment")  # of what a zygote says of itself: not for the log
COLD_KEPT = 20  # reasons of cold starts that `ps` can show
SETUP_WORKER = "/ray/_private/workers/setup_worker.py"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Keeper:
    """Answers the door until it is ended.

    Args:
        path: where processes ask.
        status: the file that says how the pool is.
    """

    def __init__(self, path: str, status: str) -> None:
        self._status = status
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.path.exists(path):
            os.unlink(path)
        mask = os.umask(0o177)  # its owner's alone
        self._door.bind(path)
        os.umask(mask)
        self._door.listen(256)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ, self._answer_door)
        self._pool = Pool(self._started, self._dropped)
        self._asking: dict[int, tuple[Zygote, socket.socket]] = {}
        self._running: dict[int, tuple[Zygote, socket.socket]] = {}
        self._requests = 0
        self._cold: list[dict[str, Any]] = []
        self._cold_count = 0

    def run(self) -> None:
        """Serve for ever; SIGTERM ends it."""
        first = {"env": dict(os.environ), "executable": sys.executable, "flags": _flags_of_a_worker()}
        self._pool.start(first)
        self._write_status()
        while True:
            for key, _ in self._selector.select(timeout=REAP_S):
                key.data()
            self._reap_orphans()

    def _answer_door(self) -> None:
        asker, _ = self._door.accept()
        asker.settimeout(REQUEST_TIMEOUT_S)
        files: list[int] = []
        try:
            got = wire.receive(asker)
            asker.settimeout(None)  # a zygote and its fork have the same socket: it must block there
            if got is not None:
                request, files = got
                self._pass_on(asker, request, files)
        except (OSError, ValueError, KeyError, TypeError) as error:
            _say(f"a request came to nothing: {type(error).__name__}: {error}")
        finally:
            for fd in files:
                os.close(fd)
            if not any(asker is kept for _, kept in self._asking.values()):
                asker.close()

    def _pass_on(self, asker: socket.socket, request: dict[str, Any], files: list[int]) -> None:
        program = " ".join(request["argv"][1:4])[:120]
        try:
            spare_setup(request)
        except ValueError as error:
            self._note_cold(program, str(error))
            wire.send(asker, {"cold": str(error)})
            return
        if any(fd >= LINE_FD for fd in request["fds"]) or not {0, 1, 2} <= set(request["fds"]):
            zygote, reason = None, "its open files have unusual numbers"
        else:
            zygote, reason = self._pool.choose(request)
        if zygote is None:
            self._note_cold(program, reason)
            wire.send(asker, {"cold": reason})
            return
        self._requests += 1
        number = self._requests
        wire.send(zygote.line, {**request, "id": number}, [asker.fileno(), *files])
        self._asking[number] = zygote, asker
        zygote.used = time.monotonic()

    def _hear(self, zygote: Zygote) -> None:
        try:
            got = wire.receive(zygote.line)
        except OSError:
            got = None
        if got is None and zygote.facts is not None and zygote.facts["unfit"]:
            self._selector.unregister(zygote.line)  # it stays in the list, with its reason
            return
        if got is None:
            self._pool.drop(zygote, "it ended")
            return
        message = got[0]
        if "ready" in message:
            self._pool.note_ready(zygote, message["ready"])
            _say(f"zygote {zygote.number}: { ({k: v for k, v in message['ready'].items() if k not in _LONG}) }")
        elif "forked" in message:
            owner, asker = self._asking.pop(message["forked"])
            zygote.served += 1
            self._running[message["pid"]] = owner, asker
        elif "failed" in message:
            _, asker = self._running.get(message["pid"]) or self._asking[message["failed"]]
            self._note_cold("", message["reason"])
            _tell(asker, {"cold": message["reason"]})
        elif "refused" in message:
            _, asker = self._asking.pop(message["refused"])
            self._note_cold("", f"{message['changed']} has changed")
            _tell(asker, {"cold": "changed"})
            asker.close()
            self._restart(zygote, f"{message['changed']} has changed")
        elif "ended" in message and message["ended"] in self._running:
            self._running.pop(message["ended"])[1].close()
        self._write_status()

    def _restart(self, zygote: Zygote, why: str) -> None:
        if any(zygote is z for z in self._pool.zygotes):
            self._pool.drop(zygote, why)
            executable, flags = zygote.kind
            self._pool.start({"env": zygote.environ, "executable": executable, "flags": flags}, zygote.without)

    def _started(self, zygote: Zygote) -> None:
        _say(f"zygote {zygote.number} starts: pid {zygote.process.pid}")
        self._selector.register(zygote.line, selectors.EVENT_READ, lambda: self._hear(zygote))
        self._write_status()

    def _dropped(self, zygote: Zygote, why: str) -> None:
        _say(f"zygote {zygote.number} goes: {why}")
        self._selector.unregister(zygote.line)
        for number in [n for n, (owner, _) in self._asking.items() if owner is zygote]:
            self._asking.pop(number)[1].close()  # it starts cold
        self._write_status()

    def _reap_orphans(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._running:  # its zygote was killed before it ended
                tell_end(self._running.pop(pid)[1], status)

    def _note_cold(self, program: str, reason: str) -> None:
        self._cold_count += 1
        self._cold = [*self._cold, {"program": program, "reason": reason}][-COLD_KEPT:]
        _say(f"cold: {program}: {reason}")
        self._write_status()

    def _write_status(self) -> None:
        zygotes = [
            {
                "number": z.number,
                "pid": z.process.pid,
                "state": "loading" if z.facts is None else "unfit" if z.facts["unfit"] else "ready",
                "reason": (z.facts or {}).get("unfit"),
                "modules": (z.facts or {}).get("modules", 0),
                "load_s": (z.facts or {}).get("load_s"),
                "left_out": (z.facts or {}).get("left_out", []),
                "served": z.served,
                "running": sum(owner is z for owner, _ in self._running.values()),
            }
            for z in self._pool.zygotes
        ]
        document = {"pid": os.getpid(), "zygotes": zygotes, "cold": self._cold_count, "last_cold": self._cold}
        fresh = f"{self._status}.new"
        with open(fresh, "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(fresh, self._status)


def spare_setup(request: dict[str, Any]) -> None:
    """Make of a start through Ray's setup_worker.py the start of the worker that it becomes: a second's imports less.

    Source: ray 2.60.0 _private/workers/setup_worker.py and _private/runtime_env/context.py exec_worker: it sets the
    variables of the job's environment and executes the rest of its arguments. Anything beyond that it does itself.
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


def _tell(asker: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # it is gone
        wire.send(asker, message)


def _flags_of_a_worker() -> str:
    return repr((sys.flags, sys._xoptions, sys.warnoptions))


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201 - the pool's log


def main() -> None:
    """Keep the pool that the arguments name."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: None)  # SIG_IGN would be inherited
    Keeper(sys.argv[1], sys.argv[2]).run()


if __name__ == "__main__":
    main()
