"""Remembers which threads stand and what was said of them, and says it again to a gateway that is new to this process.

A listener of pydevd (debugpy 1.8.22, pydevd.py:2867 `IDAPMessagesListener`); held by tests/ray/test_contracts.py.
"""

from __future__ import annotations

import threading
import time
from typing import Any

PAUSE_EVENT = "raydebugPause"
BROKEN_OFF_EVENT = "raydebugPauseBrokenOff"
PLACE = ("file", "line", "function")


class Standing:
    """The threads of this process that stand.

    Args:
        debugger: this process's pydevd.
    """

    def __init__(self, debugger: Any) -> None:
        self._debugger = debugger
        self._records: dict[int, dict[str, Any]] = {}
        self._since: dict[int, tuple[threading.Thread, float]] = {}  # who stands, or steps to its next stop
        self._stops: dict[int, dict[str, Any]] = {}
        self._announced: set[int] = set()  # their record is told, their stop comes next

    def announce(self, thread_id: int, record: dict[str, Any]) -> None:
        """Tell the gateway of a pause that is about to begin."""
        self._send(PAUSE_EVENT, {"threadId": thread_id, "record": record})

    def begins(self, thread_id: int) -> None:
        """Note that the calling thread is about to stop."""
        self._since.setdefault(thread_id, (threading.current_thread(), time.monotonic()))

    def ends(self, thread_id: int, *, steps: bool) -> None:
        """Note that a thread goes on, for good or to its next stop."""
        self._stops.pop(thread_id, None)
        if not steps:
            self._since.pop(thread_id, None)

    def broken_off(self, thread_id: int, reason: str) -> None:
        """Tell the gateway that a thread stands no longer although no debugger let it go on."""
        self._records.pop(thread_id, None)
        self._send(BROKEN_OFF_EVENT, {"threadId": thread_id, "reason": reason})

    def stands(self, thread_id: int) -> bool:
        """Say whether a thread stands now."""
        return thread_id in self._stops

    def is_anybody(self) -> bool:
        """Say whether a thread stands, or will after its step."""
        return any(thread.is_alive() for thread, _ in list(self._since.values()))

    # pydevd's hooks: an exception here would end its writer or reader

    def before_send(self, message: dict[str, Any]) -> None:
        """See what pydevd tells the gateway."""
        body = message.get("body") or {}
        if message.get("event") == PAUSE_EVENT:
            self._records[body["threadId"]] = body["record"]
            self._announced.add(body["threadId"])
        elif message.get("event") == "stopped" and "threadId" in body:
            self._note_stop(body["threadId"], dict(body))
        elif message.get("command") == "configurationDone":  # its session is set up: the first one, or a new one
            self._say_again()

    def after_receive(self, message: dict[str, Any]) -> None:
        """See what the gateway asks: nothing to note."""

    def _note_stop(self, thread_id: int, body: dict[str, Any]) -> None:
        if thread_id in self._announced:
            self._announced.discard(thread_id)
        else:  # a step or a line breakpoint: it stands elsewhere than its record says
            record = self._records.get(thread_id, {"kind": "breakpoint"})
            self._records[thread_id] = {name: value for name, value in record.items() if name not in PLACE}
        self._stops[thread_id] = body

    def _say_again(self) -> None:
        now = time.monotonic()
        for thread_id, body in list(self._stops.items()):
            _, since = self._since.get(thread_id, (None, now))
            self.announce(thread_id, {**self._records[thread_id], "stood_s": round(now - since, 3)})
            self._send("stopped", body)

    def _send(self, name: str, body: dict[str, Any]) -> None:
        from _pydevd_bundle.pydevd_comm_constants import CMD_THREAD_SUSPEND
        from _pydevd_bundle.pydevd_net_command import NetCommand

        message = {"type": "event", "event": name, "body": body}
        self._debugger.writer.add_command(NetCommand(CMD_THREAD_SUSPEND, 0, message, is_json=True))
