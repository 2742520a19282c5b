"""Pauses of processes that work, on request: finds the process, asks over its control line, waits for it to stop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from raydebug.dap.session import ConnectionLost, RequestFailed
from raydebug.gateway import audit
from raydebug.gateway.control import Control, ControlLine
from raydebug.gateway.pauses import Pause, Pauses
from raydebug.gateway.refusals import LOOK, Refused

log = logging.getLogger("raydebug.gateway")

PID, WORKER = "pid:", "worker:"
FIRST_WORD_AFTER_S, NEXT_WORD_AFTER_S = 1.5, 5.0
GO_ON_TIMEOUT_S = 10.0
REMEMBERED = 1000
PROCESSES = "see the processes that can be stopped with `raydebug ps --processes`"
WHO_HAS_NONE = (
    "no process of a job that has a control line: it ended, is not of a job that `raydebug run` started, has not "
    "imported ray or torch yet, or runs with the debugger off or legacy"
)


class Asked:
    """Stops processes that work.

    Args:
        control: their control lines.
        pauses: where their pauses are entered.
    """

    def __init__(self, control: Control, pauses: Pauses) -> None:
        self._control = control
        self._pauses = pauses
        self._ids = itertools.count(1)
        self._askers: dict[str, tuple[str, float]] = {}  # by process: who asks, since when
        self._letting_go: set[asyncio.Task[None]] = set()

    async def pause(self, target: str, asker: str, say: Callable[[str], None], *, steal: bool = False) -> Pause:
        """Return a pause of a process: the one that waits there already, or a new one at the line where it is.

        Cancelled, it takes the question back; a thread that stops nevertheless goes on at once.

        Args:
            target: `pid:PID`, `pid:PID@IP` or `worker:ID` (the beginning of one is enough).
            asker: who asks (gateway/audit.py `title_of`), for the log and for others who do.
            say: is told what the process does while it does not stop.
            steal: return also a pause that another client holds.

        Raises:
            Refused: there is no such process, or it cannot be stopped.
        """
        line = choose(target, await self._control.described())
        there = self._pauses.of_process(line.instance)
        if there:
            waiting = [pause for pause in there if pause.client is None and not pause.promised]
            return _promised(waiting[0]) if waiting else there[0] if steal else _refuse_held(there[0])
        if line.instance in self._askers:
            who, since = self._askers[line.instance]
            raise Refused(
                "process.asked", f"{who} waits for it since {time.time() - since:.0f} s", "wait, or ask there"
            )
        audit.note("ask", asker, process=line.title)
        self._askers[line.instance] = (asker, time.time())
        try:
            return await self._ask(line, say)
        finally:
            del self._askers[line.instance]

    async def _ask(self, line: ControlLine, say: Callable[[str], None]) -> Pause:
        request = f"r{next(self._ids)}"
        stopped: asyncio.Future[Pause] = asyncio.get_running_loop().create_future()

        def take(pause: Pause) -> None:
            stopped.set_result(_promised(pause))

        self._pauses.claims[request] = take
        line.tell("pause", {"request": request})
        talking = asyncio.ensure_future(self._say_what_it_does(line, say))
        pausing = asyncio.ensure_future(self._other_pause(line))
        ending = asyncio.ensure_future(_end_or_refusal(line, request))
        either: set[asyncio.Future[Any]] = {stopped, pausing, ending}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if pausing.done() and not stopped.done():
                self._take_back(line, request, stopped)
                return _promised(pausing.result())
            if not stopped.done():
                raise ending.result()
            return stopped.result()
        except BaseException:
            self._take_back(line, request, stopped)
            raise
        finally:
            for task in (talking, pausing, ending):
                task.cancel()

    async def _other_pause(self, line: ControlLine) -> Pause:
        """Return a pause that the process comes to by itself meanwhile, at a breakpoint: it will do as well."""
        while True:
            await self._pauses.change()
            for pause in self._pauses.of_process(line.instance):
                if pause.client is None and not pause.promised:
                    return pause

    def _take_back(self, line: ControlLine, request: str, stopped: asyncio.Future[Pause]) -> None:
        line.tell("withdraw", {"request": request})
        while len(self._pauses.claims) > REMEMBERED:
            del self._pauses.claims[next(iter(self._pauses.claims))]
        self._pauses.claims[request] = self._let_go  # its thread may be on its way to us already
        if stopped.done() and not stopped.cancelled():
            self._let_go(stopped.result())

    def _let_go(self, pause: Pause) -> None:
        async def go_on() -> None:
            with contextlib.suppress(RequestFailed, ConnectionLost, TimeoutError):
                await pause.process.go_on(pause, "whoever asked for it has left", timeout_s=GO_ON_TIMEOUT_S)

        task = asyncio.ensure_future(go_on())
        self._letting_go.add(task)
        task.add_done_callback(self._letting_go.discard)

    async def _say_what_it_does(self, line: ControlLine, say: Callable[[str], None]) -> None:
        said, wait_s = "", FIRST_WORD_AFTER_S
        while True:
            await asyncio.sleep(wait_s)
            await line.ask_what_it_does()
            words = f"pid {line.about.get('pid')}: {what_it_does(line)}"
            if words != said:
                say(words)
            said, wait_s = words, NEXT_WORD_AFTER_S


def choose(target: str, lines: list[ControlLine]) -> ControlLine:
    """Return the process that a target names.

    Raises:
        Refused: none or several.
    """
    if target.startswith(PID):
        pid, _, ip = target.removeprefix(PID).partition("@")
        named = f"process {pid}" + (f" at {ip}" if ip else "")
        found = [line for line in lines if str(line.about.get("pid")) == pid and ip in ("", line.describe()["ip"])]
    else:
        worker = target.removeprefix(WORKER)
        named = f"worker {worker}"
        own = [line for line in lines if not line.about.get("child_of")]  # a child has its worker's id too
        found = [line for line in own if worker and str(line.about.get("worker_id") or "").startswith(worker)]
    if not found:
        raise Refused("process.unknown", f"{named[:60]} is {WHO_HAS_NONE}", PROCESSES)
    if len(found) > 1:
        which = "; ".join(_candidate(line) for line in found[:8])
        raise Refused(
            "process.ambiguous", f"{len(found)} processes are {named[:60]}: {which}", f"name one: {_option(found[0])}"
        )
    return found[0]


def what_it_does(line: ControlLine) -> str:
    """Return in words where the working thread of a process is that does not stop."""
    if not line.answers:
        return "it does not answer: native code holds Python's lock (GIL) there, or the process is stopped from outside"
    doing: dict[str, Any] = line.about.get("doing") or {}
    thread = doing.get("thread")
    if not doing.get("file"):
        return f"its {thread} runs no Python code"
    inside = f", inside {doing['inside']}" if doing.get("inside") else ""
    text = f": {doing['text']}" if doing.get("text") else ""
    place = f"{PurePath(str(doing['file'])).name}:{doing.get('line')} {doing.get('function')}"
    return f"its {thread} is at {place}{inside}{text}  (it stops when it comes back to the user's Python code)"


def _promised(pause: Pause) -> Pause:
    pause.promised = True
    return pause


def _refuse_held(pause: Pause) -> Pause:
    held = "another one" if pause.client is None else str(pause.client.name)
    raise Refused("pause.busy", f"it is paused already (pause {pause.id}), and {held} holds that", LOOK)


async def _end_or_refusal(line: ControlLine, request: str) -> Refused:
    while True:
        line.news.clear()
        if request in line.refusals:
            return Refused(
                "process.refused", f"it cannot be stopped: {line.refusals.pop(request)}", "see the job's log"
            )
        if line.ended:
            return Refused("process.ended", "the process has ended", PROCESSES)
        await line.news.wait()


def _candidate(line: ControlLine) -> str:
    about = line.describe()
    return f"{_option(line)} ({about['title'] or about['argv']}, job {about['job']})"


def _option(line: ControlLine) -> str:
    about = line.describe()
    return f"--worker {str(about['worker_id'])[:12]}" if about["worker_id"] else f"--pid {about['pid']}@{about['ip']}"
