"""Pauses of running processes on request: find the process, ask it over its control channel, wait for the pause."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from raydebug.dap import ConnectionLost, RequestFailed
from raydebug.gateway import logs
from raydebug.gateway.background import keep
from raydebug.gateway.board import Board, Pause
from raydebug.gateway.channel import ControlChannel, NoAnswer
from raydebug.gateway.client_requests import LOOK, Refused
from raydebug.gateway.control import Control
from raydebug.gateway.pause_lifecycle import resume
from raydebug.protocol import messages
from raydebug.protocol.listings import ListedProcess
from raydebug.protocol.questions import PAUSE, WITHDRAW, PauseBody

FIRST_REPORT_AFTER_S, NEXT_REPORT_AFTER_S = 1.5, 5.0
RESUME_TIMEOUT_S = 10.0
PROCESSES = "see the processes that can be paused with `raydebug ps --processes`"
NOT_FOUND = (
    "not a process of a job that has a control channel: it ended, is not of a job that `raydebug run` started, has not "
    "imported ray or torch yet, or runs with the debugger off or legacy"
)


class PauseRequests:
    """Pauses running processes."""

    def __init__(self, control: Control, board: Board) -> None:
        self._control = control
        self._board = board
        self._requesters: dict[str, tuple[str, float]] = {}  # by process: who requested a pause, and when

    async def pause(self, target: str, requester: str, say: Callable[[str], None], *, steal: bool = False) -> Pause:
        """Return a pause of a process: one that waits there already, or a new one at the current line.

        When cancelled, it withdraws the request; a thread that pauses nevertheless is resumed at once.

        Args:
            target: `pid:PID`, `pid:PID@IP`, `worker:ID` (a prefix of the id is enough) or `instance:ID`; with `#NAME`
                behind it a thread of that process.
            requester: who requests it (`logs.name_client`), for the log and for other requesters.
            say: called with the location of the process while it does not pause.
            steal: return also a pause that another client holds.

        Raises:
            Refused: there is no such process, or it cannot be paused.
        """
        target, _, thread = target.partition(messages.THREAD)
        channel = choose(target, await self._control.described())
        there = self._of_thread(channel, thread)
        if there:
            free = [pause for pause in there if self._board.is_free(pause)]
            if free or steal:
                return _reserve(free[0]) if free else there[0]
            holder = self._board.holder(there[0])
            held = "another client" if holder is None else holder.name
            cause = f"it is paused already (pause {there[0].id}), and {held} holds the pause"
            raise Refused("pause.busy", cause, LOOK)
        instance = channel.instance  # the process may name another one meanwhile
        if instance in self._requesters:
            who, since = self._requesters[instance]
            text = f"{who} has been waiting for it for {time.monotonic() - since:.0f} s"
            raise Refused("process.asked", text, "wait, or use that client")
        logs.audit("ask", requester, process=channel.title)
        self._requesters[instance] = (requester, time.monotonic())
        try:
            return await self._request(channel, thread, say)
        finally:
            del self._requesters[instance]

    def _of_thread(self, channel: ControlChannel, thread: str) -> list[Pause]:
        """Return the pauses of a process, of one thread if it is named."""
        pauses = self._board.of_instance(channel.instance)
        return [pause for pause in pauses if thread in ("", pause.record.get("thread"))]

    async def _request(self, channel: ControlChannel, thread: str, say: Callable[[str], None]) -> Pause:
        request = secrets.token_hex(8)  # a pause that an earlier gateway has requested names its request again
        paused: asyncio.Future[Pause] = asyncio.get_running_loop().create_future()
        self._board.claim(request, lambda pause: paused.set_result(_reserve(pause)))
        reporting = asyncio.ensure_future(self._report_location(channel, say))
        other = asyncio.ensure_future(self._other_pause(channel, thread))
        refused = asyncio.ensure_future(_refusal(channel, request, thread))
        waiting: set[asyncio.Future[Any]] = {paused, other, refused}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if other.done() and not paused.done():
                self._withdraw(channel, request, paused)
                return _reserve(other.result())
            if not paused.done():
                raise refused.result()
            return paused.result()
        except BaseException:
            self._withdraw(channel, request, paused)
            raise
        finally:
            for task in (reporting, other, refused):
                task.cancel()

    async def _other_pause(self, channel: ControlChannel, thread: str) -> Pause:
        """Return a pause that begins in the process meanwhile, at a breakpoint: it serves as well."""
        while True:
            await self._board.change()
            for pause in self._of_thread(channel, thread):
                if self._board.is_free(pause):
                    return pause

    def _withdraw(self, channel: ControlChannel, request: str, paused: asyncio.Future[Pause]) -> None:
        channel.tell(WITHDRAW, PauseBody(request=request))
        self._board.claim(request, self._resume)  # its thread may be about to pause
        if paused.done() and not paused.cancelled():
            self._resume(paused.result())

    def _resume(self, pause: Pause) -> None:
        async def run() -> None:
            with contextlib.suppress(RequestFailed, ConnectionLost, TimeoutError):
                reason = "the client that requested the pause has left"
                await resume(self._board, pause, reason, timeout_s=RESUME_TIMEOUT_S)

        keep(run())

    async def _report_location(self, channel: ControlChannel, say: Callable[[str], None]) -> None:
        last, wait_s = "", FIRST_REPORT_AFTER_S
        while True:
            await asyncio.sleep(wait_s)
            await channel.update()
            text = f"pid {channel.about.get('pid')}: {describe_location(channel)}"
            if text != last:
                say(text)
            last, wait_s = text, NEXT_REPORT_AFTER_S


def choose(target: str, channels: list[ControlChannel]) -> ControlChannel:
    """Return the channel of the process that a target names.

    Raises:
        Refused: no process matches, or several do.
    """
    if target.startswith(messages.INSTANCE):
        named = target
        found = [channel for channel in channels if channel.instance == target.removeprefix(messages.INSTANCE)]
    elif target.startswith(messages.PID):
        pid, _, ip = target.removeprefix(messages.PID).partition("@")
        named = f"process {pid}" + (f" at {ip}" if ip else "")
        own = [channel for channel in channels if str(channel.about.get("pid")) == pid]
        found = [channel for channel in own if ip in ("", channel.describe()["ip"])]
    else:
        worker = target.removeprefix(messages.WORKER)
        named = f"worker {worker}"
        own = [channel for channel in channels if not channel.about.get("child_of")]  # a child has its worker's id too
        found = [channel for channel in own if worker and str(channel.about.get("worker_id") or "").startswith(worker)]
    if not found:
        raise Refused("process.unknown", f"{named[:60]} is {NOT_FOUND}", PROCESSES)
    if len(found) > 1:
        processes = [channel.describe() for channel in found[:8]]
        which = "; ".join(f"{_option(p)} ({p['title'] or p['argv']}, job {p['job']})" for p in processes)
        cause = f"{len(found)} processes are {named[:60]}: {which}"
        raise Refused("process.ambiguous", cause, f"name one: {_option(processes[0])}")
    return found[0]


def describe_location(channel: ControlChannel) -> str:
    """Return the location of the thread that is to pause in a process, and does not."""
    if not channel.answers and channel.fault:
        return f"it cannot say where it is: {channel.fault}"
    if not channel.answers:
        return "it does not answer: native code holds Python's lock (GIL) there, or the process is stopped from outside"
    doing = channel.about.get("doing") or {}
    thread = doing.get("thread")
    if not doing.get("file"):
        return f"its {thread} runs no Python code"
    inside = f", inside {doing['inside']}" if doing.get("inside") else ""
    text = f": {doing['text']}" if doing.get("text") else ""
    place = f"{PurePath(str(doing['file'])).name}:{doing.get('line')} {doing.get('function')}"
    return f"its {thread} is at {place}{inside}{text}  (it pauses at the next line of the user's Python code)"


def _reserve(pause: Pause) -> Pause:
    pause.reserved = True
    return pause


async def _refusal(channel: ControlChannel, request: str, thread: str) -> Refused:
    """Ask a process to pause; return why it does not: it answers only then."""
    body = PauseBody(request=request, thread=thread) if thread else PauseBody(request=request)
    answer = await channel.ask(PAUSE, body)
    if answer == NoAnswer(messages.ENDED):
        return Refused("process.ended", "the process has ended", PROCESSES)
    cause = answer.cause or answer.state if isinstance(answer, NoAnswer) else answer.get("cause")
    return Refused("process.refused", f"it cannot be paused: {cause}", "see the job's log")


def _option(about: ListedProcess) -> str:
    is_worker = about["worker_id"] and not about["child_of"]  # a child has its worker's id too
    return f"--worker {str(about['worker_id'])[:12]}" if is_worker else f"--pid {about['pid']}@{about['ip']}"
