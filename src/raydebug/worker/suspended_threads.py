"""Track suspended threads and replay their announcements after a reconnect.

A listener of pydevd (debugpy 1.8.22, pydevd.py:2867 `IDAPMessagesListener`); held by tests/ray/test_contracts.py.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from raydebug.protocol import messages
from raydebug.protocol.records import PauseRecord
from raydebug.protocol.wire import Message


class SuspendedThreads:
    """The suspended threads of this process.

    Args:
        debugger: this process's pydevd.
    """

    def __init__(self, debugger: Any) -> None:
        self._debugger = debugger
        self._records: dict[int, PauseRecord] = {}
        self._since: dict[int, tuple[threading.Thread, float]] = {}  # suspended, or stepping to the next stop
        self._stops: dict[int, Message] = {}
        self._announced: set[int] = set()  # their record is sent, their stop comes next

    def announce(self, thread_id: int, record: PauseRecord) -> None:
        """Announce a pause that is about to begin."""
        self._send(messages.PAUSE_EVENT, {"threadId": thread_id, "record": record})

    def begins(self, thread_id: int) -> None:
        """Note that the calling thread is about to be suspended."""
        self._since.setdefault(thread_id, (threading.current_thread(), time.monotonic()))

    def ends(self, thread_id: int, *, steps: bool) -> None:
        """Note that a thread has been resumed, for good or for a step."""
        self._stops.pop(thread_id, None)
        if not steps:
            self._since.pop(thread_id, None)

    def broken_off(self, thread_id: int, reason: str) -> None:
        """Report that a suspended thread was resumed without a client (e.g. its task was cancelled)."""
        self._records.pop(thread_id, None)
        self._send(messages.BROKEN_OFF_EVENT, {"threadId": thread_id, "reason": reason})

    def is_suspended(self, thread_id: int) -> bool:
        """Say whether a thread is suspended now."""
        return thread_id in self._stops

    def any(self) -> bool:
        """Say whether a thread is suspended, or stepping."""
        return any(thread.is_alive() for thread, _ in list(self._since.values()))

    # pydevd's hooks: an exception here would end its writer or reader

    def before_send(self, message: Message) -> None:
        """Inspect a message from pydevd to the gateway."""
        body = message.get("body") or {}
        if message.get("event") == messages.PAUSE_EVENT:
            self._records[body["threadId"]] = body["record"]
            self._announced.add(body["threadId"])
        elif message.get("event") == "stopped" and "threadId" in body:
            self._note_stop(body["threadId"], dict(body))
        elif message.get("command") == "configurationDone":  # its session is set up: the first one, or a new one
            self._replay()

    def after_receive(self, message: Message) -> None:
        """Required by pydevd; requests of the gateway do not matter here."""

    def _note_stop(self, thread_id: int, body: Message) -> None:
        if thread_id in self._announced:
            self._announced.discard(thread_id)
        else:  # a step or a line breakpoint: its record has another location
            record = self._records.setdefault(thread_id, {"kind": "breakpoint"})
            record.pop("file", None)
            record.pop("line", None)
            record.pop("function", None)
        self._stops[thread_id] = body

    def _replay(self) -> None:
        now = time.monotonic()
        for thread_id, body in list(self._stops.items()):
            _, since = self._since.get(thread_id, (None, now))
            self.announce(thread_id, {**self._records[thread_id], "stood_s": round(now - since, 3)})
            self._send("stopped", body)

    def _send(self, name: str, body: Message) -> None:
        from _pydevd_bundle.pydevd_comm_constants import CMD_THREAD_SUSPEND
        from _pydevd_bundle.pydevd_net_command import NetCommand

        message = {"type": "event", "event": name, "body": body}
        self._debugger.writer.add_command(NetCommand(CMD_THREAD_SUSPEND, 0, message, is_json=True))
