"""Control channels: the running processes of jobs, what they do, and the breakpoints set in them from outside."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from raydebug.gateway.channel import LISTED, MAX_CAUSE, ControlChannel, NoAnswer
from raydebug.gateway.ended import Ended
from raydebug.gateway.numbers import Numbers
from raydebug.protocol import messages, questions, records, wire
from raydebug.protocol.death import Birth, Kill, LastWords
from raydebug.protocol.listings import ListedAnswer, ListedBreakpoint, ListedStacks
from raydebug.protocol.names import role_of
from raydebug.protocol.questions import Answer, Body, Question, SpansRecord
from raydebug.protocol.records import BadRecord, BreakpointReport, BreakpointSpec, StackFrame, StacksRecord, digest_of
from raydebug.protocol.wire import Message

log = logging.getLogger("raydebug.gateway")

Found = TypeVar("Found")

READ_BYTES = 64 * 1024
MAX_BREAKS = 1000
DESCRIBED_FOR_S = 1.0  # a description that is not older is not asked for again
SPANS_DESCRIBED_FOR_S = 30.0  # they are asked for all the time, and a description takes longer than they do
# Thousands of processes are asked in turns, so that the gateway never has all their answers to read at once: other
# clients are answered in between. The next turn begins when all have answered, or after TURN_S.
ASKED_IN_A_TURN, TURN_S = 64, 0.02
MAX_LAST_SPANS = 20_000
MAX_FAULT_BYTES = 64 * 1024  # of what faulthandler writes
IDENTITY = ("where", "source", "line", "function", "policy")  # of a breakpoint
HOLDERS = 3  # of the same frames, asked for them one after the other
# The actor in which Ray runs a job's driver (ray 2.60.0 dashboard/modules/job/common.py): not the user's, though it has
# the job's environment. Held by tests/ray/test_contracts.py.
JOB_ACTOR = "_ray_internal_job_actor_"
LISTED_OF_STACKS: dict[str, type[list[Any] | float]] = {
    "threads": list, "left_out": int, "calls": list, "collectives": list, "listens": list, "pipes": list,
    "children_cpu_s": float, "io_bytes": int,
}  # fmt: skip
STACKS_OF = [name for name in LISTED if name in ListedStacks.__annotations__]


def _is_users(channel: ControlChannel) -> bool:
    return JOB_ACTOR not in str(channel.about.get("actor"))


def _place(channel: ControlChannel) -> tuple[str, int]:
    return str(channel.describe()["ip"]), int(channel.about.get("pid") or 0)


def _list_answer(channel: ControlChannel, answer: Answer | NoAnswer) -> ListedAnswer[Answer]:
    none = answer if isinstance(answer, NoAnswer) else NoAnswer(messages.ANSWERED)
    found = None if isinstance(answer, NoAnswer) else answer
    process = channel.describe()
    about = {"process": process, "instance": channel.instance, "role": role_of(process)}
    return {**about, "state": none.state, "answer": found, "cause": none.cause}  # type: ignore[typeddict-item]


def _split_fault(channel: ControlChannel, decoder: wire.Decoder, data: bytes) -> list[Message]:
    """Return the messages in bytes of a process; what faulthandler writes after them is kept."""
    if channel.dump:
        channel.dump = (channel.dump + data)[:MAX_FAULT_BYTES]
        return []
    before, mark, after = data.partition(messages.FAULT_MARK)
    found = decoder.feed(before)
    if mark and not decoder.has_begun:
        channel.dump = mark + after
        return found
    return found + decoder.feed(mark + after)


async def _in_turns(asking: Sequence[Coroutine[Any, Any, Found]]) -> list[Found]:
    """Return the answers of many processes, which are asked in turns."""
    begun: list[asyncio.Task[Found]] = []
    for begin in range(0, len(asking), ASKED_IN_A_TURN):
        turn = [asyncio.ensure_future(ask) for ask in asking[begin : begin + ASKED_IN_A_TURN]]
        begun += turn
        await asyncio.wait(turn, timeout=TURN_S)
    return await asyncio.gather(*begun)


async def _ask_each(
    question: Question[Body, Answer], asked: Mapping[ControlChannel, Body], timeout_s: float
) -> dict[ControlChannel, Answer | NoAnswer]:
    """Return the answers of processes, each of which is asked with a body of its own."""
    asking = [channel.ask(question, body, timeout_s) for channel, body in asked.items()]  # type: ignore[arg-type]
    return dict(zip(asked, await _in_turns(asking), strict=True))


def _list_stacks(channel: ControlChannel, record: StacksRecord | None) -> ListedStacks:
    """Return a process in the list of stacks; without its record it is silent."""
    about = channel.describe()
    return {
        **{name: about[name] for name in STACKS_OF},  # type: ignore[typeddict-item, literal-required]
        "actor_id": channel.about.get("actor_id"),
        "instance": channel.instance,
        "role": role_of(about),
        "world": channel.world,
        "state": messages.ANSWERED if record else messages.SILENT,
        "age_s": 0.0 if record else None,
        **{name: (record or {}).get(name, kind()) for name, kind in LISTED_OF_STACKS.items()},
    }


class Choice(TypedDict, total=False):
    """Which processes are asked: those of a job (submission id), and of these some instances; without them all."""

    job: records.Name | None
    only: list[records.Name]


class Control:
    """All control channels, and all breakpoints that were set from outside."""

    def __init__(self, numbers: Numbers) -> None:
        self.channels: set[ControlChannel] = set()
        self._of_instance: weakref.WeakValueDictionary[str, ControlChannel] = weakref.WeakValueDictionary()
        self._numbers, self._breaks = numbers, numbers.breaks
        # What processes say as they end, and too late, until their recorder asks; nobody does for a run without one.
        self._last_spans: list[tuple[ControlChannel, SpansRecord]] = []
        self._lost_spans: dict[str | None, tuple[ControlChannel, SpansRecord]] = {}  # by job: how many of them
        self.ended = Ended(lambda ns: [one for one in self.channels if one.birth.get("ns") == ns], self.living_jobs)

    async def serve(self, about: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one authenticated channel until it ends.

        Raises:
            BadRecord: the process's description is refused by protocol/records.py.
        """
        channel = self._of_instance[about["instance"]] = ControlChannel(about, writer)
        decoder = wire.Decoder()
        try:
            while data := await reader.read(READ_BYTES):
                for message in _split_fault(channel, decoder, data):
                    try:
                        self._take(channel, message)
                    except BadRecord as error:
                        log.warning("process %s: a record is refused: %s", channel.title, error)
        except (OSError, wire.WireError):
            pass  # the process has ended, or sends something else: the channel ends
        finally:
            if channel in self.channels:
                self.channels.remove(channel)
                self.ended.note(channel)
            channel.end()

    def channel_of(self, instance: str) -> ControlChannel | None:
        """Return the control channel of a process, while it is open."""
        channel = self._of_instance.get(instance)
        return channel if channel in self.channels else None

    def living_jobs(self) -> set[str]:
        """Return the jobs that have a process."""
        return {channel.about.get("job") or "" for channel in self.channels}

    async def described(self, fresh_s: float = 0.0) -> list[ControlChannel]:
        """Return the channels of the user's processes, by node and process id, with descriptions that are fresh."""
        await _in_turns([channel.update(fresh_s) for channel in self.channels])
        return sorted(filter(_is_users, self.channels), key=_place)

    async def ask(
        self, question: Question[Body, Answer], body: Body, choice: Choice, timeout_s: float
    ) -> list[ListedAnswer[Answer]]:
        """Return what the user's processes answer to a question, by node and process id."""
        asked = sorted(self._chosen(choice), key=_place)
        asking = _ask_each(question, dict.fromkeys(asked, body), timeout_s)
        fresh_s = SPANS_DESCRIBED_FOR_S if question == questions.SPANS else DESCRIBED_FOR_S
        answers, _ = await asyncio.gather(asking, _in_turns([channel.update(fresh_s) for channel in asked]))
        given: list[tuple[ControlChannel, Any]] = [*answers.items()]
        if question == questions.SPANS and "most" not in body:  # type: ignore[operator]
            last = [spans for spans in self._last_spans if choice.get("job") in (None, spans[0].about.get("job"))]
            self._last_spans = [spans for spans in self._last_spans if spans not in last]
            given += last
            given += [self._lost_spans.pop(job) for job in [*self._lost_spans] if choice.get("job") in (None, job)]
        return [_list_answer(channel, answer) for channel, answer in given if _is_users(channel)]

    def _chosen(self, choice: Choice) -> list[ControlChannel]:
        job, only = choice.get("job"), choice.get("only")
        return [
            channel for channel in self.channels
            if (job is None or channel.about.get("job") == job) and (not only or channel.instance in only)
        ]  # fmt: skip

    async def fetch_stacks(
        self, choice: Choice, timeout_s: float
    ) -> tuple[list[ListedStacks], dict[str, list[StackFrame]]]:
        """Return the stacks of the user's processes with digests of their frames, and the frames by their digests."""
        asked = self._chosen(choice)
        frames: dict[str, list[StackFrame]] = {}
        given = await _ask_each(questions.STACKS, dict.fromkeys(asked, questions.StacksBody(digests=True)), timeout_s)
        answers = {channel: record for channel, record in given.items() if not isinstance(record, NoAnswer)}
        holders: dict[str, list[ControlChannel]] = {}
        for channel, record in answers.items():
            for thread in record.get("threads", []):
                if len(known := holders.setdefault(thread.get("digest", ""), [])) < HOLDERS:
                    known.append(channel)
        for turn in range(HOLDERS):
            wanted: dict[ControlChannel, questions.FramesBody] = {}
            for digest in [digest for digest in holders if digest not in frames and turn < len(holders[digest])]:
                wanted.setdefault(holders[digest][turn], {"digests": []})["digests"].append(digest)
            for channel, sent in (await _ask_each(questions.FRAMES, wanted, timeout_s)).items():
                pieces = [] if isinstance(sent, NoAnswer) else sent.get("known", [])
                by_digest = {digest_of(piece.get("frames", [])): piece.get("frames", []) for piece in pieces}
                frames |= {digest: by_digest[digest] for digest in wanted[channel]["digests"] if digest in by_digest}
        users = []
        for begin in range(0, len(asked), ASKED_IN_A_TURN):
            for channel in asked[begin : begin + ASKED_IN_A_TURN]:
                # Frames that nobody has sent: their process has ended, or does not answer any more.
                found = answers.get(channel)
                has_all = found and all(thread.get("digest", "") in frames for thread in found.get("threads", []))
                if _is_users(channel):
                    users.append(_list_stacks(channel, found if has_all else None))
            await asyncio.sleep(0)
        return sorted(users, key=lambda one: (one["role"], one["rank"] or 0, one["pid"] or 0)), frames

    def add(self, definitions: list[BreakpointSpec], job: str | None) -> list[BreakpointSpec]:
        """Set breakpoints in every process of a job, or of all jobs, also of later ones; return them with their ids.

        Raises:
            ValueError: one is no breakpoint, or there are too many.
        """
        if len(self._breaks) + len(definitions) > MAX_BREAKS:
            raise ValueError(f"more than {MAX_BREAKS} breakpoints")
        if not all(spec.get("where") and spec.get("source") for spec in definitions):
            raise ValueError('a breakpoint has "where", "source", and "line" or "function"')
        added = [self._numbers.add_break({**each, "job": job, "since": time.time()}) for each in definitions]
        for channel in self.channels:
            concerned = [spec for spec in added if channel.concerns(spec)]
            if concerned:
                channel.tell(questions.BREAKS, questions.BreaksBody(add=concerned))
        log.info("breakpoints set: %s", ", ".join(f"{spec['id']} {spec['where']}" for spec in added))
        return added

    def remove(self, break_ids: list[str]) -> list[str]:
        """Remove breakpoints, and return the ids of those that existed."""
        removed = [break_id for break_id in break_ids if self._numbers.remove_break(break_id)]
        for channel in self.channels:
            if removed:
                channel.tell(questions.BREAKS, questions.BreaksBody(remove=removed))
        return removed

    def forget_job(self, job: str) -> None:
        """Remove the breakpoints of a job that has ended."""
        self.remove([spec["id"] for spec in self._breaks.values() if spec.get("job") == job])

    def describe_breaks(self) -> list[ListedBreakpoint]:
        """Return every breakpoint with its states in the processes to which it applies."""
        return [
            {
                "id": spec["id"],
                "where": spec["where"],
                "policy": spec.get("policy"),
                "job": spec.get("job"),
                "source": spec.get("source"),
                "processes": [channel.report(spec["id"]) for channel in self.channels if channel.concerns(spec)],
            }
            for spec in self._breaks.values()
        ]

    def _take(self, channel: ControlChannel, message: Message) -> None:
        body = message.get("body")
        if message.get("event") == messages.KNOWN:
            known = records.read(body, records.KnownBreakpoints, "the list of breakpoints")
            if channel not in self.channels:  # it is the first message, and comes once
                self._welcome(channel, known.get("breaks", []), set(known.get("set", ())))
        elif message.get("event") == messages.BREAK:
            report = records.read(body, BreakpointReport, "the report of a breakpoint")
            if report.get("id") in self._breaks:
                state, text = report.get("state", ""), report.get("message", "")[:MAX_CAUSE]
                channel.reports[report.get("id", "")] = {"state": state, "message": text}
        elif message.get("event") == messages.BIRTH:
            if not channel.birth and channel in self.channels:  # it comes once
                channel.birth = records.read(body, Birth, "its birth")
                self.ended.watch(channel)
        elif message.get("event") == messages.KILLS:
            self.ended.note_kill(channel, records.read(body, Kill, "what it kills"))
        elif message.get("event") == messages.BYE:
            channel.words = records.read(body, LastWords, "the last words")
        elif message.get("event") == messages.LAST_SPANS:
            self._keep_spans(channel, records.read(body, SpansRecord, "the last spans"))
        elif late := channel.take(message):
            self._keep_spans(channel, late)

    def _keep_spans(self, channel: ControlChannel, said: SpansRecord) -> None:
        """Keep spans until the recorder of their job asks; beyond MAX_LAST_SPANS the oldest are lost, and counted."""
        self._last_spans.append((channel, said))
        while sum(1 + len(one.get("spans", ())) for _, one in self._last_spans) > MAX_LAST_SPANS:
            other, gone = self._last_spans.pop(0)
            _, lost = self._lost_spans.setdefault(other.about.get("job"), (other, {}))
            lost["lost"] = lost.get("lost", 0) + gone.get("lost", 0) + len(gone.get("spans", ()))

    def _welcome(self, channel: ControlChannel, known: list[BreakpointSpec], compiled_in: set[str]) -> None:
        """Send a new channel what its process lacks of its breakpoints, and which of those that it has are none."""
        self.channels.add(channel)
        same = set[str]()
        for break_id, definition in {definition.get("id", ""): definition for definition in known}.items():
            ours = self._breaks.get(break_id, BreakpointSpec())
            if all(definition.get(name) == ours.get(name) for name in IDENTITY):
                same.add(break_id)
                state = messages.SET if break_id in compiled_in else messages.WAITING
                channel.reports[break_id] = {"state": state, "message": ""}
        missing = [spec for spec in self._breaks.values() if spec["id"] not in same and channel.concerns(spec)]
        others = sorted({definition.get("id", "") for definition in known} - same)
        channel.tell(questions.BREAKS, questions.BreaksBody(add=missing, remove=others))
