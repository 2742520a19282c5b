"""What begins, moves and ends pauses on the board: the events of a process, and the time limit without a debugger."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import cast

from raydebug.dap import ConnectionLost, RequestFailed
from raydebug.gateway.background import keep
from raydebug.gateway.board import Board, Pause
from raydebug.gateway.kept import ITEM_BYTES, size_of
from raydebug.gateway.processes import Process
from raydebug.protocol import messages, records, wire
from raydebug.protocol.records import BadRecord, JobLine, Owner, PauseRecord
from raydebug.protocol.wire import Message

log = logging.getLogger("raydebug.gateway")

MAX_PAUSES = 1000  # of one process
LIMIT_S = 3600.0  # of a pause without a debugger
CHECK_EVERY_S = 0.25
WARN_FROM_S = 60.0  # shorter limits get no warning at half time
RESPONSE_TIMEOUT_S = 10.0
KEPT = ("thread", "job_id", *Owner.__annotations__)  # of a record, for the next stops of its thread
LOCATE_STEP_AFTER_S = 0.05  # after a step the client's own requests go first: pydevd answers one at a time


class ProcessEvents:
    """Handles the events of one process."""

    def __init__(self, process: Process, board: Board) -> None:
        self._process = process
        self._board = board
        self._owners: dict[int, dict[str, object]] = {}  # by thread: what is kept of its last announced pause

    def take(self, message: Message) -> None:
        """Handle one event."""
        try:
            self._handle(str(message.get("event")), message)
        except BadRecord as error:  # a stop whose record is refused is listed with pydevd's own location
            log.warning("process %s: a record is refused: %s", self._process.title, error)

    def end(self) -> None:
        """Handle the end of the session: all pauses of the process end, and their clients are notified."""
        self._process.ended = True
        reason = self._process.why_ended()
        for pause in self._board.of_process(self._process):
            self._board.end(pause, reason)
        for client in self._board.clients_of(self._process):
            client.lost(reason)
        log.info("process gone: %s", reason)

    def _handle(self, event: str, message: Message) -> None:
        body = message.get("body")
        if event == messages.PAUSE_EVENT:
            announced = records.read(body, records.Announcement, "the pause")
            self._announced(announced.get("threadId", 0), cast(PauseRecord, announced.get("record", {})))
            return
        if event == "stopped":
            self._stopped(records.read(body, records.StoppedEvent, "the stop").get("threadId", 0), dict(body or {}))
            return
        if event == messages.BROKEN_OFF_EVENT:
            ended = records.read(body, records.BrokenOff, "the end of a pause")
            self._broken_off(ended.get("threadId", 0), ended.get("reason", "it was broken off"))
            return
        if event == "thread":
            thread = records.read(body, records.ThreadEvent, "the thread")
            pause = self._board.of_thread(self._process, thread.get("threadId", -1))
            if pause is not None and thread.get("reason") == "exited":
                self._board.end(pause, "its thread ended")
        for client in self._board.clients_of(self._process):
            client.forward(message)

    def _announced(self, thread_id: int, record: PauseRecord) -> None:
        size = size_of(record)
        self._make_room(thread_id, size)
        self._owners[thread_id] = {name: record.get(name) for name in KEPT}
        old = self._board.of_thread(self._process, thread_id)
        client = None if old is None else self._board.holder(old)
        if old is not None:
            self._board.end(old, "its thread continued to another breakpoint")
        suspended_s = record.pop("stood_s", 0.0)  # before the process dialled in here
        pause = self._board.begin(self._process, thread_id, record)
        pause.since -= suspended_s
        pause.bytes = size
        if client is not None:
            self._board.assign(pause, client)

    def _make_room(self, thread_id: int, size: int) -> None:
        if not self._board.has_room(self._process, size):
            raise BadRecord("too much text, with the other pauses of its job")
        is_new = self._board.of_thread(self._process, thread_id) is None
        if is_new and len(self._board.of_process(self._process)) >= MAX_PAUSES:
            raise BadRecord(f"more than {MAX_PAUSES} pauses of one process")
        while len(self._owners) >= MAX_PAUSES:
            del self._owners[next(iter(self._owners))]

    def _broken_off(self, thread_id: int, reason: str) -> None:
        pause = self._board.of_thread(self._process, thread_id)
        if pause is not None:
            client = self._board.holder(pause)
            self._board.end(pause, reason)
            if client is not None:
                client.lost(f"the pause ended: {reason} ({self._process.title})")

    def _stopped(self, thread_id: int, body: Message) -> None:
        pause, size = self._board.of_thread(self._process, thread_id), size_of(body)
        if not self._board.has_room(self._process, size):
            body, size = {"reason": "breakpoint", "threadId": thread_id}, ITEM_BYTES
        if pause is None:  # a line breakpoint of a client, hit by a thread without a pause
            self._make_room(thread_id, 0)
            record = {"kind": "breakpoint", **self._owners.get(thread_id, {})}
            pause = self._board.begin(self._process, thread_id, cast(PauseRecord, record))
        pause.stopped = body
        pause.bytes = size_of(pause.record) + size
        if pause.announced:  # the record has the location
            pause.announced = False
            self._report(pause, body, is_new=True)
            return
        is_step = self._board.holder(pause) is not None
        if is_step:  # the client fetches the stack itself; the list gets the new location later
            self._report(pause, body)
        task = asyncio.ensure_future(self._locate(pause, after_s=LOCATE_STEP_AFTER_S if is_step else 0.0))
        if not is_step:
            task.add_done_callback(lambda _: self._report(pause, body, is_new=True))

    async def _locate(self, pause: Pause, *, after_s: float) -> None:
        """Update the location in a pause's record after a step or a line breakpoint."""
        stopped = pause.stopped
        await asyncio.sleep(after_s)
        if pause.stopped is not stopped:  # resumed meanwhile
            return
        with contextlib.suppress(RequestFailed, ConnectionLost, TimeoutError):
            frame = await self._process.top_frame(pause.thread_id)
            path = frame.get("source", {}).get("path")
            pause.record.update({"file": path, "line": frame.get("line"), "function": frame.get("name")})
            pause.bytes += size_of(frame)
        pause.located = True

    def _report(self, pause: Pause, body: Message, *, is_new: bool = False) -> None:
        """Report a stop to the pause's client, or to the one that gets the pause now."""
        self._board.changed()
        client = self._board.holder(pause)
        if client is not None:
            about = {"pause": self._board.describe(pause)} if is_new else {}
            client.forward(wire.event(0, "stopped", {**body, **about}))
            return
        if is_new and (take := self._board.claimed(pause)) is not None:
            take(pause)
            return
        client = self._board.next_for(self._process)
        if client is not None:
            self._board.assign(pause, client)
            client.show(pause)


async def resume(board: Board, pause: Pause, reason: str, *, timeout_s: float) -> None:
    """Resume the thread of a pause without a client, and end the pause with a reason.

    Raises:
        RequestFailed, ConnectionLost, TimeoutError: the thread does not run; the pause stays listed.
    """
    stop, pause.reserved = pause.stopped, True  # meanwhile no client gets the pause
    try:
        arguments = {"threadId": pause.thread_id, "singleThread": True}
        await pause.process.session.request("continue", arguments, timeout_s=timeout_s)
    except BaseException:
        pause.reserved = False
        board.changed()
        raise
    board.resumed(pause, stop, reason=reason)


class Expiry:
    """Resumes pauses after a time limit without a debugger, and logs it in the job.

    Args:
        board: the cluster's pauses.
        limit_s: for pauses whose breakpoint has no limit of its own; 0 for no limit.
    """

    def __init__(self, board: Board, limit_s: float = LIMIT_S) -> None:
        self._board = board
        self._limit_s = limit_s
        self._free_since: dict[Pause, float] = {}
        self._warned: set[Pause] = set()

    async def watch(self) -> None:
        """Check all pauses periodically, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self._check(time.monotonic())

    def _check(self, now: float) -> None:
        listed = self._board.listed()
        for gone in self._free_since.keys() - set(listed):
            del self._free_since[gone]
            self._warned.discard(gone)
        for pause in listed:
            limit_s = float(pause.record.get("expires_s") or self._limit_s)
            if self._board.holder(pause) is not None or pause.stopped is None or limit_s <= 0:
                self._free_since.pop(pause, None)
                self._warned.discard(pause)
                pause.expires_at = None
                continue
            since = self._free_since.setdefault(pause, now)
            pause.expires_at = since + limit_s
            if now >= since + limit_s:
                del self._free_since[pause]
                keep(self._resume(pause, f"{limit_s:g} s without a debugger: resumed"))
            elif limit_s >= WARN_FROM_S and now >= since + limit_s / 2 and pause not in self._warned:
                self._warned.add(pause)
                paused_s, left_s = now - since, limit_s - (now - since)
                text = f"paused for {paused_s:.0f} s: it resumes in {left_s:.0f} s unless a debugger attaches"
                keep(self._log_in_job(pause, text))

    async def _resume(self, pause: Pause, why: str) -> None:
        await self._log_in_job(pause, why)
        if self._board.holder(pause) is not None or self._board.get(pause.id) is not pause:
            return  # a client attached meanwhile, or the thread was resumed
        log.info("pause %s: %s", pause.id, why)
        try:
            await resume(self._board, pause, why, timeout_s=RESPONSE_TIMEOUT_S)
        except (RequestFailed, ConnectionLost, TimeoutError) as error:
            log.warning("pause %s cannot be resumed: %s", pause.id, error)

    async def _log_in_job(self, pause: Pause, text: str) -> None:
        """Make the paused process write a line to its job's log."""
        try:
            at = f"{pause.record.get('file')}:{pause.record.get('line')}"
            line: JobLine = {"threadId": pause.thread_id, "text": text, "at": at}
            session = pause.process.session
            await session.request(messages.SAY_REQUEST, {**line}, timeout_s=RESPONSE_TIMEOUT_S)
        except (RequestFailed, ConnectionLost, TimeoutError) as error:
            log.warning("pause %s: '%s' was not written to the job's log: %.200s", pause.id, text, error)
