"""The control channel of one process: questions to it and their answers, and what it has said of itself."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from raydebug.protocol import messages, records, wire
from raydebug.protocol.death import Birth, LastWords
from raydebug.protocol.listings import BreakpointState, ListedProcess
from raydebug.protocol.questions import DESCRIBE, SPANS, STACKS, Answer, Body, Nothing, Question, SpansRecord
from raydebug.protocol.records import BadRecord, BreakpointReport, BreakpointSpec, WorkRecord
from raydebug.protocol.wire import Message

log = logging.getLogger("raydebug.gateway")

DESCRIBE_TIMEOUT_S = 1.0
MAX_GIVEN_UP = 16  # questions of one process that are kept for a late answer
MAX_CAUSE = 1000  # characters
CLOCK_READINGS = 3
LISTED = [name for name in ListedProcess.__annotations__ if name in WorkRecord.__annotations__]


class NoAnswer(NamedTuple):
    """What becomes of a question without an answer: SILENT, ENDED, UNKNOWN, or FAILED with its cause (messages.py)."""

    state: str
    cause: str = ""


def wall_ahead_ns() -> int:
    """Return what the time of day is ahead of CLOCK_MONOTONIC.

    Another program may run between the readings of the two clocks: of a few the quickest counts.
    """

    def read() -> tuple[int, int]:
        before_ns, wall_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        return after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2

    return min(read() for _ in range(CLOCK_READINGS))[1]


@dataclass
class _Asked:
    question: Question[Any, Any]
    body: Message
    answer: asyncio.Future[Any]
    sent_ns: int  # of CLOCK_MONOTONIC
    is_given_up: bool = False

    def settle(self, answer: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class ControlChannel:
    """The control channel of one process.

    Raises:
        BadRecord: the process's description of itself is not what protocol/records.py expects.
    """

    def __init__(self, about: Any, writer: asyncio.StreamWriter) -> None:
        # The answer to DESCRIBE adds the other fields.
        self.about = cast(WorkRecord, records.read(about, records.ProcessRecord, "the process"))
        self.reports: dict[str, BreakpointReport] = {}  # by breakpoint
        self.answers = True
        self.world: int | None = None  # as it has said with its last stacks
        self.fault = ""  # why it could not describe itself
        self.birth: Birth = {}
        self.words: LastWords = {}
        self.dump = b""  # what faulthandler wrote
        self._peer = (writer.get_extra_info("peername") or ("",))[0]
        self._writer = writer
        self._seq = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._described_at = -math.inf

    @property
    def title(self) -> str:
        """Name the process for people."""
        return f"pid {self.about.get('pid')} on {self.about.get('ip') or self._peer}"

    @property
    def is_closing(self) -> bool:
        """Whether its process is gone."""
        return self._writer.is_closing()

    @property
    def instance(self) -> str:
        """Id of the process, the same in each of its dial-ins."""
        return str(self.about.get("instance"))

    def learn(self, more: WorkRecord) -> None:
        """Note what the process says of itself; which one it is, and of which job, it has said when it dialled in."""
        instance, job = self.instance, self.about.get("job") or more.get("job")
        self.about.update(cast(WorkRecord, {**more, "instance": instance, "job": job}))

    async def ask(
        self, question: Question[Body, Answer], body: Body, timeout_s: float | None = None
    ) -> Answer | NoAnswer:
        """Return the answer of the process to a question, or what becomes of it; without a limit it may take long.

        An equal question that was given up is waited for again: a busy process has to answer once.
        """
        if self._writer.is_closing():
            return NoAnswer(messages.ENDED)
        asked = self._given_up(question, cast(Message, body)) or self._send(question, cast(Message, body))
        asked.is_given_up = False
        try:
            await asyncio.wait([asked.answer], timeout=timeout_s)
            return asked.answer.result() if asked.answer.done() else NoAnswer(messages.SILENT)
        finally:
            asked.is_given_up = True
            for number in [number for number, one in self._asked.items() if one.is_given_up][:-MAX_GIVEN_UP]:
                del self._asked[number]

    def _given_up(self, question: Question[Any, Any], body: Message) -> _Asked | None:
        if question == DESCRIBE:  # DELETE /breaks needs one that is asked after it
            return None
        alike = (asked for asked in self._asked.values() if (asked.question, asked.body) == (question, body))
        return next((asked for asked in alike if asked.is_given_up), None)

    def _send(self, question: Question[Any, Any], body: Message) -> _Asked:
        number = next(self._seq)
        future = asyncio.get_running_loop().create_future()
        self._asked[number] = asked = _Asked(question, body, future, time.monotonic_ns())
        self._writer.write(wire.encode(wire.request(number, question.name, body)))
        return asked

    def tell(self, question: Question[Body, Any], body: Body) -> None:
        """Send the process what needs no answer."""
        if not self._writer.is_closing():
            self._writer.write(wire.encode(wire.event(next(self._seq), question.name, cast(Message, body))))

    def take(self, message: Message) -> SpansRecord | None:
        """Handle the answer to a question; return the late spans, which a process says once and nobody waits for.

        A late description of the process counts, other late answers are dropped.

        Raises:
            BadRecord: it is not what the question's row says.
        """
        number, body = message.get("request_seq"), message.get("body")
        if not isinstance(number, int) or number not in self._asked:
            return None
        asked = self._asked.pop(number)
        question, cause = asked.question, str(message.get("message"))[:MAX_CAUSE]
        answer: Any = NoAnswer(messages.UNKNOWN) if cause == messages.UNKNOWN else NoAnswer(messages.FAILED, cause)
        try:
            if message.get("success", True):
                answer = records.read(body, question.answer, f"the answer to '{question.name}'")
                if question == SPANS:
                    answer |= {"sent_ns": asked.sent_ns, "received_ns": time.monotonic_ns()}
                    answer["gateway_wall_ns"] = wall_ahead_ns()
                if question in (DESCRIBE, STACKS):
                    self.learn(records.read(answer, WorkRecord))
                    self.world = answer.get("world", self.world)
                if question == DESCRIBE:
                    self.answers, self._described_at = True, time.monotonic()
            elif answer.state == messages.FAILED:
                log.warning("process %s: '%s' failed: %s", self.title, question.name, cause)
        except BadRecord as error:
            answer = NoAnswer(messages.FAILED, str(error))
            raise
        finally:
            asked.settle(answer)
        is_late = question == SPANS and isinstance(answer, dict) and asked.is_given_up
        return cast(SpansRecord, answer) if is_late else None

    def end(self) -> None:
        """Note that the process is gone."""
        self._writer.close()
        for asked in [*self._asked.values()]:
            asked.settle(NoAnswer(messages.ENDED))

    async def update(self, fresh_s: float = 0.0) -> None:
        """Fetch a new description of the process, unless the last is fresh; `answers` says whether it came in time."""
        if time.monotonic() - self._described_at < fresh_s:
            return
        answer = await self.ask(DESCRIBE, Nothing(), DESCRIBE_TIMEOUT_S)
        if isinstance(answer, NoAnswer):
            self.answers, self.fault = False, answer.cause

    def describe(self) -> ListedProcess:
        """Return the fields of the process in the list of processes."""
        shown = {name: self.about.get(name) for name in LISTED}
        return cast(ListedProcess, {**shown, "ip": shown["ip"] or self._peer, "answers": self.answers})

    def report(self, break_id: str) -> BreakpointState:
        """Return the state of a breakpoint in this process, as far as the process has reported it."""
        report = self.reports.get(break_id, {"state": messages.SENT, "message": ""})
        state, message = report.get("state", ""), report.get("message", "")
        return {"pid": self.about.get("pid"), "ip": self.about.get("ip"), "state": state, "message": message}

    def concerns(self, definition: BreakpointSpec) -> bool:
        """Return whether a breakpoint applies to this process."""
        return definition.get("job") in (None, self.about.get("job"))
