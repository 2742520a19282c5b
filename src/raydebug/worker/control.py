"""The control line: a job's process tells the gateway that it is there, and is told of breakpoints while it runs.

It is asked over the same line what it does, and to pause. A process that works opens no debugger for it: a thread waits
on a socket. Nothing listens.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import threading
from typing import Any

from raydebug.dap import wire
from raydebug.worker import dial, imports, live, sites, startup

FIRST_TIMEOUT_S = 1.0  # the start of a process waits no longer than this for the breakpoints set meanwhile
RETRY_S, RETRY_MAX_S = 1.0, 30.0
FORK_AFTER_S = 0.3  # a fork that ends, or becomes another program, before that needs no line
MAX_BODY_BYTES = 1024 * 1024

_opened_by: int | None = None
_line: _ControlLine | None = None
_seq = itertools.count(1)


def open_line() -> None:
    """Open this process's line to the gateway and take over the breakpoints that were set so far. Never raises."""
    global _opened_by, _line
    if _opened_by == os.getpid() or not startup.debugger_is_ours() or _is_passing_on():
        return
    _opened_by = os.getpid()
    with contextlib.suppress(Exception):
        _line = _ControlLine(FIRST_TIMEOUT_S)
        _line.take_one()
        _line.patient()
    _start()


def _start(after_s: float = 0.0) -> None:
    thread = threading.Thread(target=_serve, args=(after_s,), name="raydebug-control", daemon=True)
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]  # pydevd's own mark for its helpers
    thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]  # and for threads not to be listed
    thread.start()


def report_set(break_ids: list[str]) -> None:
    """Tell the gateway that a file with these breakpoints was loaded just now."""
    with contextlib.suppress(Exception):
        if _line is not None:
            for break_id in break_ids:
                _line.report({"id": break_id, "state": live.SET, "message": ""})


def _is_passing_on() -> bool:
    # Ray 2.60.0 starts a worker through _private/workers/setup_worker.py, which becomes the worker by exec.
    return any(a.endswith("/setup_worker.py") for a in getattr(sys, "orig_argv", [])[1:3])


def _serve(after_s: float) -> None:
    global _line
    threading.Event().wait(after_s)
    wait_s = RETRY_S
    while _opened_by == os.getpid():
        try:
            if _line is None:
                _line = _ControlLine(dial.DIAL_TIMEOUT_S)
                _line.patient()
            wait_s = RETRY_S
            while True:
                _line.take_one()
        except Exception:  # noqa: BLE001 - the gateway is gone or never came; the job does not care
            if _line is not None:
                _line.close()
                _line = None
            _withdraw_all()
        threading.Event().wait(wait_s)
        wait_s = min(wait_s * 2, RETRY_MAX_S)


def _withdraw_all() -> None:
    """Forget what a gateway that is gone asked for: nobody would attach."""
    asked = sys.modules.get("raydebug.worker.asked")
    if asked is not None:
        asked.withdraw()


class _ControlLine:
    """One connection of the control line."""

    def __init__(self, timeout_s: float) -> None:
        self._socket: socket.socket = dial.proven_connection(dial.CONTROL, timeout_s=timeout_s)
        self._decoder = wire.Decoder(max_body_bytes=MAX_BODY_BYTES)
        self._messages: list[dict[str, Any]] = []
        self._sending = threading.Lock()
        self._tell("known", {"breaks": imports.known_breaks(), "set": sorted(imports.loaded)})

    def patient(self) -> None:
        """Wait for further messages without a limit."""
        self._socket.settimeout(None)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def take_one(self) -> None:
        """Wait for a message and do what it says.

        Raises:
            OSError: the connection has ended.
        """
        while not self._messages:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("the gateway closed the control line")
            self._messages += self._decoder.feed(data)
        message = self._messages.pop(0)
        body = dict(message.get("body") or {})
        if message.get("event") == "breaks":
            self._change_breaks(body)
        elif message.get("event") in ("describe", "pause", "withdraw"):
            from raydebug.worker import asked  # the first question imports it, not the start of every process

            if message["event"] == "describe":
                self._tell("described", asked.describe())
            elif message["event"] == "pause":
                asked.pause_for(str(body["request"]), self._tell_if_there)
            else:
                asked.withdraw(str(body["request"]))

    def _change_breaks(self, change: dict[str, Any]) -> None:
        for break_id in change.get("remove", ()):
            imports.remove_break(break_id)
            sites.disarm(break_id)
        added = change.get("add", [])
        for definition in added:
            sites.restore(definition).arm()
            imports.add_break(definition)
        for report in live.build_in(added) if added else []:
            self.report(report)

    def report(self, report: dict[str, Any]) -> None:
        """Tell how a breakpoint stands here."""
        self._tell("break", report)

    def _tell_if_there(self, event: str, body: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._tell(event, body)

    def _tell(self, event: str, body: dict[str, Any]) -> None:
        with self._sending:
            self._socket.sendall(wire.encode(wire.event(next(_seq), event, body)))


def _open_in_fork() -> None:
    global _opened_by, _line
    had_one = _opened_by is not None
    _opened_by = _line = None  # the line is the parent's; a fork has the parent's breakpoints built in
    if had_one:
        _opened_by = os.getpid()
        with contextlib.suppress(Exception):  # the interpreter ends, or may start no thread any more
            _start(after_s=FORK_AFTER_S)


os.register_at_fork(after_in_child=_open_in_fork)
