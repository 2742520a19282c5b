"""The control channel: over it a process of a job answers the questions of protocol/questions.py while it runs.

A running process opens no debugger for it: a thread waits on a socket. Nothing listens.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from raydebug import worker
from raydebug.protocol import messages, wire
from raydebug.protocol.secrets import scrubbed
from raydebug.protocol.wire import Message
from raydebug.worker import dial_in, records
from raydebug.worker.breakpoints import registry, runtime
from raydebug.worker.frames import active_thread, location_of, place_of, start_thread

if TYPE_CHECKING:  # these types cost each process 4 ms
    from raydebug.protocol.questions import Nothing
    from raydebug.protocol.records import BreakpointReport, WorkRecord

ANSWERED_BY = {
    "describe": "control_channel:describe",
    "stacks": "stacks:stacks_for",
    "frames": "stacks:frames_of",
    "training": "training:words",
    "collective-times": "flight_recorder:times_for",
    "memory": "process_memory:memory",
    "census": "census:census",
    "pause": "pause_requests:pause_for",
    "withdraw": "pause_requests:withdraw",
    "save-pause": "crashes:save_pause",
    "breaks": "control_channel:change_breaks",
    "node": "last_words:describe_node",
    "spans": "spans:spans_since",
}
"""By question: module and function, imported at the first use. The function gets the body and returns the answer.

This thread must not wait: a function that cannot answer at once returns one that gets a function to answer with.
"""
FIRST_TIMEOUT_S = 1.0  # limit for the start of a process to receive the breakpoints that were set meanwhile
RETRY_S, RETRY_MAX_S = 1.0, 30.0
FORK_AFTER_S = 0.3  # a fork that ends, or becomes another program, before that needs no channel
MAX_BODY_BYTES = 1024 * 1024
MAX_CAUSE = 1000  # characters

_Answer = Callable[..., None]
"""Gets the answer; None and the cause if there is none."""

_opened_by: int | None = None
_channel: _ControlChannel | None = None
_seq = itertools.count(1)
_unreported: set[str] = set()
"""Ids of set breakpoints whose report did not get its turn: the thread of the channel sends them when it has."""
forked_at = ""
"""Where the user's program made this process a fork of another one."""


def open_channel(_module: object = None) -> None:
    """Open this process's channel and receive the breakpoints that were set so far. Never raises."""
    global _opened_by, _channel
    if _opened_by == os.getpid() or not worker.debugger_is_ours():
        return
    # Ray 2.60.0 starts a worker through _private/workers/setup_worker.py, which becomes the worker by exec.
    if any(word.endswith("/setup_worker.py") for word in getattr(sys, "orig_argv", [])[1:3]):
        return
    _opened_by = os.getpid()
    with contextlib.suppress(Exception):
        _channel = _ControlChannel(FIRST_TIMEOUT_S)
        _channel.take_message()
        _channel.socket.settimeout(None)
    with contextlib.suppress(Exception):  # no memory or limit for another thread
        start_thread(_serve, "raydebug-control", 0.0)


def report_set(break_ids: list[str]) -> None:
    """Report that a file with these breakpoints has just been loaded; its thread does not wait for the gateway."""
    with contextlib.suppress(Exception):
        if _channel is None:
            return
        with worker.fork_guard:
            from raydebug.worker import last_words
        over = _channel.socket, _channel.sending
        for break_id in break_ids:
            _unreported.add(break_id)
            if last_words.say(functools.partial(_set_report, break_id), messages.BREAK, over):
                _unreported.discard(break_id)


def _set_report(break_id: str) -> BreakpointReport:
    return {"id": break_id, "state": messages.SET, "message": ""}


def describe(_body: Nothing) -> WorkRecord:
    """Return what this process is, and where its active thread runs, or the one that is to pause."""
    active = active_thread()
    if (pause_requests := sys.modules.get("raydebug.worker.pause_requests")) is not None:
        active = pause_requests.rearm(active)
    return {**records.describe_process(), **records.describe_work(), "doing": location_of(active)}


def change_breaks(change: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove breakpoints and add others, and report the state of these."""
    for break_id in change.get("remove", ()):
        registry.remove(break_id)
    added = change.get("add", [])
    try:
        for spec in added:
            registry.add(spec)
        reports = registry.build_in(added) if added else []
    except Exception as error:  # noqa: BLE001 - the gateway waits for no answer, but lists these
        reports = [{"id": spec["id"], "state": messages.FAILED, "message": _cause_of(error)} for spec in added]
    for report in reports:
        runtime.loaded.update([report["id"]] if report["state"] == messages.SET else [])
        if _channel is not None:
            with contextlib.suppress(OSError):  # the next read ends the connection
                _channel.send(wire.event(next(_seq), messages.BREAK, dict(report)))
    return {}


def _cause_of(error: Exception) -> str:
    return scrubbed(f"{type(error).__name__}: {worker.text_of(error)}"[: 4 * MAX_CAUSE])[:MAX_CAUSE]


def _serve(after_s: float) -> None:
    global _channel
    threading.Event().wait(after_s)
    wait_s = RETRY_S
    while _opened_by == os.getpid():
        try:
            if _channel is None:
                _channel = _ControlChannel(dial_in.DIAL_TIMEOUT_S)
                _channel.socket.settimeout(None)
            wait_s = RETRY_S
            _channel.introduce()
            while True:
                _channel.take_message()
        except Exception:  # noqa: BLE001 - the gateway is gone or never came; the job does not care
            if _channel is not None:
                _channel.close()
                _channel = None
            if (pause_requests := sys.modules.get("raydebug.worker.pause_requests")) is not None:
                pause_requests.withdraw_all()  # no client of a gateway that is gone would attach
        threading.Event().wait(wait_s)
        wait_s = min(wait_s * 2, RETRY_MAX_S)


class _ControlChannel:
    """One connection of the control channel."""

    def __init__(self, timeout_s: float) -> None:
        self.socket = dial_in.proven_connection(messages.CONTROL, timeout_s=timeout_s)
        self._decoder = wire.Decoder(max_body_bytes=MAX_BODY_BYTES)
        self._messages: list[Message] = []
        self.sending = threading.Lock()
        known = {"breaks": registry.all_specs(), "set": sorted(runtime.loaded)}
        self.send(wire.event(next(_seq), messages.KNOWN, known))

    def introduce(self) -> None:
        """Send what is compared after the end of this process, and have it say its last words here.

        Not at the start of the process, which would wait for it.
        """
        with worker.fork_guard:
            from raydebug.protocol import node_facts
            from raydebug.worker import last_words
        self.send(wire.event(next(_seq), messages.BIRTH, dict(node_facts.birth())))
        last_words.install(self.socket, self.sending)

    def close(self) -> None:
        """Close the connection in this process."""
        if (last_words := sys.modules.get("raydebug.worker.last_words")) is not None:
            last_words.leave()
        self.socket.close()

    def take_message(self) -> None:
        """Wait for one message and handle it.

        Raises:
            OSError: the connection has ended.
        """
        for break_id in sorted(_unreported):
            _unreported.discard(break_id)
            self.send(wire.event(next(_seq), messages.BREAK, dict(_set_report(break_id))))
        while not self._messages:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionResetError("the gateway closed the control channel")
            self._messages += self._decoder.feed(data)
        message = self._messages.pop(0)
        if message.get("type") == "request":
            name, body = message["command"], message["arguments"]
            answer: _Answer = functools.partial(self._respond, message)
        else:
            name, body = str(message["event"]), message["body"]
            answer = functools.partial(_log_failure, name)
        if name not in ANSWERED_BY:
            answer(None, messages.UNKNOWN)
            return
        try:
            found = _function(name)(body)
            if callable(found):
                found(answer)
        except Exception as error:  # noqa: BLE001 - who asked gets the cause; the job is not affected
            answer(None, _cause_of(error))
        else:
            if not callable(found):
                answer(found)

    def _respond(self, asked: Message, found: Mapping[str, Any] | None, cause: str = "") -> None:
        """Answer a question by its id; without an answer, say why."""
        number = next(_seq)
        failed = wire.refusal(number, asked, cause)
        try:
            self.send(failed if found is None else wire.response(number, asked, dict(found)))
        except OSError:  # it may come late, when the connection has ended
            if found and asked["command"] == "spans":
                sys.modules["raydebug.worker.spans"].count_lost(found)

    def send(self, message: Message) -> None:
        """Send a message; any thread may."""
        with self.sending:
            self.socket.sendall(wire.encode(message))


def _log_failure(name: str, _answer: Mapping[str, Any] | None, cause: str = "") -> None:
    if cause not in ("", messages.UNKNOWN):
        worker.log(f"'{name}' of the gateway failed: {cause}")


@functools.cache
def _function(name: str) -> Callable[[Message], Any]:
    module, _, function = ANSWERED_BY[name].partition(":")
    with worker.fork_guard:  # not at the start of every process
        found: Callable[[Message], Any] = getattr(importlib.import_module(f"raydebug.worker.{module}"), function)
    return found


def _open_in_fork() -> None:
    global _opened_by, _channel, forked_at
    had_one = _opened_by is not None
    with contextlib.suppress(Exception):
        forked_at = place_of(sys._getframe())
    if "torch.distributed.distributed_c10d" in sys.modules:
        from raydebug.worker import flight_recorder

        with contextlib.suppress(Exception):
            flight_recorder.note_fork()
    if _channel is not None:  # else the gateway does not see the end of the parent before that of this child
        with contextlib.suppress(Exception):
            _channel.close()
    _opened_by = _channel = None  # it is the parent's; a fork has the parent's breakpoints compiled in
    if had_one:
        _opened_by = os.getpid()
        with contextlib.suppress(Exception):  # the interpreter ends, or may start no thread any more
            start_thread(_serve, "raydebug-control", FORK_AFTER_S)


runtime.on_set = report_set
os.register_at_fork(after_in_child=_open_in_fork)
