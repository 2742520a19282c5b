"""The control channel: a process of a job receives breakpoints and requests to pause over it while it runs.

A running process opens no debugger for it: a thread waits on a socket. Nothing listens.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

from raydebug import worker
from raydebug.protocol import messages, wire
from raydebug.protocol.records import BreakpointReport
from raydebug.protocol.wire import Message
from raydebug.worker import dial_in
from raydebug.worker.breakpoints import registry, runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from raydebug.worker.watchdog import Watchdog

FIRST_TIMEOUT_S = 1.0  # limit for the start of a process to receive the breakpoints that were set meanwhile
RETRY_S, RETRY_MAX_S = 1.0, 30.0
FORK_AFTER_S = 0.3  # a fork that ends, or becomes another program, before that needs no channel
MAX_BODY_BYTES = 1024 * 1024

_opened_by: int | None = None
_channel: _ControlChannel | None = None
_seq = itertools.count(1)


def open_channel() -> None:
    """Open this process's channel and receive the breakpoints that were set so far. Never raises."""
    global _opened_by, _channel
    if _opened_by == os.getpid() or not worker.debugger_is_ours() or _is_about_to_exec():
        return
    _opened_by = os.getpid()
    with contextlib.suppress(Exception):
        _channel = _ControlChannel(FIRST_TIMEOUT_S)
        _channel.take_message()
        _channel.wait_without_limit()
    _start()


def _start(after_s: float = 0.0) -> None:
    thread = threading.Thread(target=_serve, args=(after_s,), name="raydebug-control", daemon=True)
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]  # pydevd's own mark for its helpers
    thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]  # and for threads not to be listed
    thread.start()


def report_set(break_ids: list[str]) -> None:
    """Report that a file with these breakpoints has just been loaded."""
    with contextlib.suppress(Exception):
        if _channel is not None:
            for break_id in break_ids:
                _channel.report({"id": break_id, "state": messages.SET, "message": ""})


def _is_about_to_exec() -> bool:
    # Ray 2.60.0 starts a worker through _private/workers/setup_worker.py, which becomes the worker by exec.
    return any(a.endswith("/setup_worker.py") for a in getattr(sys, "orig_argv", [])[1:3])


def _serve(after_s: float) -> None:
    global _channel
    threading.Event().wait(after_s)
    wait_s = RETRY_S
    watchdog = sys.modules.get("raydebug.worker.watchdog")  # import_hooks loads it where it is wanted
    timer = watchdog.Watchdog() if watchdog is not None and watchdog.limit_s() else None
    while _opened_by == os.getpid():
        try:
            if _channel is None:
                _channel = _ControlChannel(dial_in.DIAL_TIMEOUT_S)
                _channel.wait_without_limit()
            wait_s = RETRY_S
            _channel.timer = timer
            while True:
                _channel.take_message()
        except Exception:  # noqa: BLE001 - the gateway is gone or never came; the job does not care
            if _channel is not None:
                _channel.close()
                _channel = None
            if timer is not None:
                timer.close()
            _withdraw_all()
        threading.Event().wait(wait_s)
        wait_s = min(wait_s * 2, RETRY_MAX_S)


def _withdraw_all() -> None:
    """Cancel the pause requests of a gateway that is gone: no client would attach."""
    pause_requests = sys.modules.get("raydebug.worker.pause_requests")
    if pause_requests is not None:
        pause_requests.withdraw()


class _ControlChannel:
    """One connection of the control channel."""

    def __init__(self, timeout_s: float) -> None:
        self._socket: socket.socket = dial_in.proven_connection(messages.CONTROL, timeout_s=timeout_s)
        self._decoder = wire.Decoder(max_body_bytes=MAX_BODY_BYTES)
        self._messages: list[Message] = []
        self._sending = threading.Lock()
        self.timer: Watchdog | None = None
        self._send(messages.KNOWN, {"breaks": registry.all_specs(), "set": sorted(runtime.loaded)})

    def wait_without_limit(self) -> None:
        """Wait for further messages without a timeout."""
        self._socket.settimeout(None)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def take_message(self) -> None:
        """Wait for one message and handle it.

        Raises:
            OSError: the connection has ended.
        """
        while not self._messages:
            if self.timer is not None:
                self.timer.wait_for(self._socket)
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("the gateway closed the control channel")
            self._messages += self._decoder.feed(data)
        message = self._messages.pop(0)
        body = dict(message.get("body") or {})
        if message.get("event") == messages.BREAKS:
            self._change_breaks(body)
        elif message.get("event") in (messages.DESCRIBE, messages.PAUSE_REQUEST, messages.WITHDRAW):
            with worker.fork_guard:
                from raydebug.worker import pause_requests  # not at the start of every process
            if message["event"] == messages.DESCRIBE:
                self._send(messages.DESCRIBED, pause_requests.describe())
            elif message["event"] == messages.PAUSE_REQUEST:
                pause_requests.pause_for(str(body["request"]), self._send_if_open)
            else:
                pause_requests.withdraw(str(body["request"]))
        elif message.get("event") in (messages.STACKS, messages.FRAMES):
            with worker.fork_guard:
                from raydebug.worker import stacks  # not at the start of every process
            if message["event"] == messages.FRAMES:
                self._send(messages.FRAMES_SENT, stacks.frames_of(body))
            else:
                self._send(messages.STACKED, stacks.collect_digests() if body.get("digests") else stacks.collect())
        elif message.get("event") == messages.SAVE_PAUSE:
            with worker.fork_guard:
                from raydebug.worker import crashes  # not at the start of every process
            crashes.save_pause(str(body["id"]), int(body["threadId"]))

    def _change_breaks(self, change: Message) -> None:
        for break_id in change.get("remove", ()):
            registry.remove(break_id)
        added = change.get("add", [])
        for spec in added:
            registry.add(spec)
        for report in registry.build_in(added) if added else []:
            runtime.loaded.update([report["id"]] if report["state"] == messages.SET else [])
            self.report(report)

    def report(self, report: BreakpointReport) -> None:
        """Report the state of a breakpoint in this process."""
        self._send(messages.BREAK, report)

    def _send_if_open(self, event: str, body: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._send(event, body)

    def _send(self, event: str, body: Mapping[str, Any]) -> None:
        with self._sending:
            self._socket.sendall(wire.encode(wire.event(next(_seq), event, dict(body))))


def _open_in_fork() -> None:
    global _opened_by, _channel
    had_one = _opened_by is not None
    if "torch.distributed.distributed_c10d" in sys.modules:
        from raydebug.worker import flight_recorder

        with contextlib.suppress(Exception):
            flight_recorder.note_fork()
    _opened_by = _channel = None  # it is the parent's; a fork has the parent's breakpoints compiled in
    if had_one:
        _opened_by = os.getpid()
        with contextlib.suppress(Exception):  # the interpreter ends, or may start no thread any more
            _start(after_s=FORK_AFTER_S)


runtime.on_set = report_set
os.register_at_fork(after_in_child=_open_in_fork)
