"""Processes that dialled in: the held debug session with pydevd, and what it reports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from raydebug.dap import wire
from raydebug.dap.keepalive import OUT_OF_REACH
from raydebug.dap.session import ConnectionLost, DapSession, RequestFailed
from raydebug.dap.wire import Message
from raydebug.gateway import unparsed
from raydebug.gateway.long_values import refuse_oversized
from raydebug.gateway.pauses import Pause, Pauses

log = logging.getLogger("raydebug.gateway")

LOCATE_STEP_AFTER_S = 0.05  # after a step its client's own questions go first: pydevd answers one at a time
OWNER = ("thread", "job_id", "task", "task_id", "attempt", "actor", "actor_id")
REQUESTS_PER_DIAL = 1_000_000  # numbers tell an answer to an earlier connection of a process from one to this
PAUSE_EVENT = "raydebugPause"  # worker/standing.py sends it just before the thread stops
BROKEN_OFF_EVENT = "raydebugPauseBrokenOff"  # and this when it stands no longer by itself
# pydevd answers these itself; the order is the one that its own adapter uses (debugpy 1.8.22 adapter/clients.py).
SESSION_SET_UP: tuple[tuple[str, Message], ...] = (
    (
        "initialize",
        {"clientID": "raydebug", "adapterID": "python", "pathFormat": "path", "linesStartAt1": True,
         "columnsStartAt1": True, "supportsVariableType": True},
    ),
    # Only the thread that hit the breakpoint stops: a watchdog or a heartbeat thread beside it goes on.
    ("attach", {"justMyCode": False, "showReturnValue": True, "stopAllThreadsOnSuspend": False,
                "steppingResumesAllThreads": False, "terminateChildProcesses": False}),
    ("setDebuggerProperty", {"multiThreadsSingleNotification": False}),
    ("setExceptionBreakpoints", {"filters": ["uncaught"]}),  # without it a post-mortem pause is let through
    ("configurationDone", {}),
)  # fmt: skip


class Process:
    """One process under the debugger. The gateway leads its session for as long as the process lives.

    Args:
        about: what the process told about itself (worker/records.py).
        pauses: where its pauses are entered.
    """

    def __init__(self, about: dict[str, Any], pauses: Pauses) -> None:
        self.about = about
        self.capabilities: Message = {}
        self.session: DapSession
        self.ended = False
        self._why_ended: str | None = None
        self._pauses = pauses
        self._by_thread: dict[int, Pause] = {}
        self._whose: dict[int, dict[str, Any]] = {}  # by thread: what its last pause said of task, actor and job
        self.clients: list[Any] = []

    @property
    def title(self) -> str:
        """Name the process for people."""
        return f"pid {self.about.get('pid')} on {self.about.get('ip') or 'this host'}"

    @property
    def instance(self) -> str:
        """Tell one process from another; the same one may dial in again. Empty where it does not say."""
        return str(self.about.get("instance") or "")

    async def hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Set up the session over a proven connection."""
        loop = asyncio.get_running_loop()
        # Responses reach their futures by call_soon; events must not overtake them.
        dials = self.about.get("dials")
        self.session = DapSession(
            reader,
            writer,
            on_event=lambda m: loop.call_soon(self._take, m),
            on_end=lambda: loop.call_soon(self._end),
            first_seq=REQUESTS_PER_DIAL * (dials if isinstance(dials, int) else 0) + 1,
            # One value that is too long must not end the session; a long one passes through as it is.
            decoder=wire.Decoder(on_large=unparsed.answer, on_oversized=refuse_oversized),
            take_at_once=unparsed.framed_answer,
        )
        answers = [self.session.send(command, arguments) for command, arguments in SESSION_SET_UP]
        for (command, _), answer in zip(SESSION_SET_UP, await asyncio.gather(*answers), strict=True):
            if not answer.get("success"):
                raise RequestFailed(command, str(answer.get("message")), {})
            if command == "initialize":
                self.capabilities = answer.get("body") or {}

    def pause_of(self, thread_id: int) -> Pause | None:
        """Return the pause of one of its threads."""
        return self._by_thread.get(thread_id)

    def let_go(self, pause: Pause, reason: str) -> None:
        """Note that a pause has ended because its thread runs on."""
        self._by_thread.pop(pause.thread_id, None)
        self._pauses.end(pause, reason)

    async def go_on(self, pause: Pause, reason: str, *, timeout_s: float) -> None:
        """Let the thread of a pause run on, and note why the pause has ended.

        Raises:
            RequestFailed, ConnectionLost, TimeoutError: it does not run on; the pause stays in the list.
        """
        arguments = {"threadId": pause.thread_id, "singleThread": True}
        await self.session.request("continue", arguments, timeout_s=timeout_s)
        self.let_go(pause, reason)

    async def superseded(self) -> None:
        """Let go of it: the same process has dialled in again, for its old connection is broken."""
        self._why_ended = f"its process ({self.title}) lost its connection and has dialled in again"
        await self.session.close()

    def _take(self, message: Message) -> None:
        body: dict[str, Any] = message.get("body") or {}
        name = message.get("event")
        if name == PAUSE_EVENT:
            self._begin(int(body.get("threadId", 0)), dict(body.get("record") or {}))
            return
        if name == "stopped":
            self._stopped(body)
            return
        if name == BROKEN_OFF_EVENT:
            self._broken_off(int(body.get("threadId", 0)), str(body.get("reason") or "it was broken off"))
            return
        if name == "thread" and body.get("reason") == "exited":
            pause = self._by_thread.get(body.get("threadId", -1))
            if pause is not None:
                self.let_go(pause, "its thread ended")
        for client in list(self.clients):
            client.forward(message)

    def _begin(self, thread_id: int, record: dict[str, Any]) -> None:
        self._whose[thread_id] = {name: record.get(name) for name in OWNER}
        old = self._by_thread.pop(thread_id, None)
        if old is not None:
            self._pauses.end(old, "its thread went on to another breakpoint")
        stood_s = record.pop("stood_s", 0.0)  # it stood before it dialled in here
        pause = self._pauses.begin(self, thread_id, record)
        pause.since -= stood_s
        if old is not None and old.client is not None:
            old.client.follow(pause)
        self._by_thread[thread_id] = pause

    def _broken_off(self, thread_id: int, reason: str) -> None:
        pause = self._by_thread.get(thread_id)
        if pause is not None:
            client = pause.client
            self.let_go(pause, reason)
            if client is not None:
                client.lost(f"the pause ended: {reason} ({self.title})")

    def _stopped(self, body: dict[str, Any]) -> None:
        thread_id = int(body.get("threadId", 0))
        pause = self._by_thread.get(thread_id)
        if pause is None:  # a line breakpoint that a client has set, hit by a thread that was not paused
            pause = self._pauses.begin(self, thread_id, {"kind": "breakpoint", **self._whose.get(thread_id, {})})
            self._by_thread[thread_id] = pause
        pause.stopped = body
        if pause.announced:  # it stands where its record says
            pause.announced = False
            self._tell(pause, body, is_new=True)
            return
        is_step = pause.client is not None
        if is_step:  # its client asks for the stack by itself; the list can wait for the new place
            self._tell(pause, body)
        task = asyncio.ensure_future(self._locate(pause, after_s=LOCATE_STEP_AFTER_S if is_step else 0.0))
        if not is_step:
            task.add_done_callback(lambda _: self._tell(pause, body, is_new=True))

    async def _locate(self, pause: Pause, *, after_s: float) -> None:
        """Find out where a step or a line breakpoint stopped; the pause is listed there from now on."""
        stopped = pause.stopped
        await asyncio.sleep(after_s)
        if pause.stopped is not stopped:  # it has gone on meanwhile
            return
        with contextlib.suppress(RequestFailed, ConnectionLost, TimeoutError, LookupError):
            answer = await self.session.request("stackTrace", {"threadId": pause.thread_id, "levels": 1})
            frame = answer["stackFrames"][0]
            path = (frame.get("source") or {}).get("path")
            pause.record.update(file=path, line=frame.get("line"), function=frame.get("name"))
        pause.located = True

    def _tell(self, pause: Pause, body: dict[str, Any], *, is_new: bool = False) -> None:
        """Let the client of a pause, or whoever waits for one, know that it stands."""
        self._pauses.changed()
        if pause.client is not None:
            about = {"pause": pause.describe()} if is_new else {}
            pause.client.forward(wire.event(0, "stopped", {**body, **about}))
            return
        claim = self._pauses.claims.pop(str(pause.record.get("request")), None) if is_new else None
        if claim is not None:
            claim(pause)
            return
        for client in list(self.clients):  # one that let its pause run and waits for the next in this process
            if client.take_next(pause):
                return

    def _end(self) -> None:
        self.ended = True
        failure = self.session.failure
        told = f"the process ended ({self.title})"
        if self._why_ended is not None:
            told = self._why_ended
        elif failure is not None and failure.errno in OUT_OF_REACH:
            told = f"the process ({self.title}) is out of reach: {failure.strerror}; paused, it comes back to the list"
        for pause in list(self._by_thread.values()):
            self.let_go(pause, told)
        for client in list(self.clients):
            client.lost(told)
        log.info("process gone: %s", told)
