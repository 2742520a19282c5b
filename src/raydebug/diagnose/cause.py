"""The first cause of a failure: whether a run has failed, which of its events explains it, and what follows from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from raydebug.diagnose.answer import EXACT, FAILURE, LIKELY, NO_FAILURE, UNKNOWN, UNSURE, Answer, Diagnosis, error_of
from raydebug.diagnose.course import Course, is_uncaught
from raydebug.diagnose.events import (
    EXCEPTION,
    EXIT,
    FATAL,
    MENTION,
    PROGRAMS,
    PROGRESS,
    RECORD,
    Event,
    is_users,
    read_events,
)
from raydebug.diagnose.read import ECHO, Line
from raydebug.diagnose.rules import CAUSE, EFFECT, ROLES, SYMPTOM, Hit, find_hits
from raydebug.diagnose.scan import Stop, never
from raydebug.stacks.groups import is_library

USER_CODE = "user-code"
EXACT_RANK = 5  # of a rule that names the mechanism
REST_RANKS = 3  # that a match in the rest of an exception's message counts less than one in its first line
LOUD = ("ERROR", "FATAL")  # levels
FATAL_RECORD = (RECORD, "FATAL")
QUIET = ("INFO", "DEBUG", ECHO)  # healthy runs report deaths, time-outs and retries in these
FACTS = ("ray", "nccl", "torch", "slurm", "kubernetes", "docker", "shell")  # producers whose texts are fixed

_HARMLESS = re.compile(
    r"Exception ignored in|_ARRAY_API not found|leaked (semaphore|shared_memory)|DeprecationWarning|FutureWarning"
    r"|Using default MoE config|some features are disabled|expandable_segments not supported on this platform"
)
# Errors of a process when another one, or its connection, has ended.
FOLLOWERS = frozenset((
    *("RayTaskError", "RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError"),
    *("OwnerDiedError", "NodeDiedError", "ObjectLostError", "ObjectFetchTimedOutError", "TaskCancelledError"),
    *("LocalRayletDiedError", "EngineDeadError", "DistBackendError", "DistNetworkError", "BrokenPipeError"),
    *("ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "EOFError", "CancelledError"),
    *("KeyboardInterrupt", "SystemExit", "IncompleteReadError", "ServerDisconnectedError", "AioRpcError"),
    *("ChildFailedError", "CalledProcessError", "InstantiationException", "SignalException"),
    *("ProcessRaisedException", "ProcessExitedException"),  # torch.multiprocessing.spawn, of an error in a child
))  # fmt: skip
_COMPLAINT = re.compile(r"\S{1,200}: (?:line )?\d+: ")  # of a shell; a script that goes on after one prints more
# Exceptions of clients: they tell what another service, perhaps of another machine, has answered.
_OF_CLIENTS = re.compile(r"(openai|anthropic|httpx|requests|redis|docker|kubernetes|botocore|sqlalchemy|grpc)\.")
# Ray's words of a worker that has ended: ray 2.41-2.60 exceptions.py ActorDiedError, src/ray/raylet/node_manager.cc.
_ENDED = re.compile(r"(?:class_name: (?P<name>\S+) .*)?\b(?:Worker PID|pid): (?P<pid>\d+)\b")


def diagnose(lines: Sequence[Line], stop: Stop = never, *, has_failed: bool = False) -> Answer:
    """Say what failed, from the lines of all logs of a run.

    What a process got past is no failure: an error before more progress, or before the end of the run. What comes after
    the end is none either, unless the program itself raised it, or ended with an exit code other than 0.

    Args:
        lines: of all logs, those of one log together.
        stop: says why to stop judging.
        has_failed: it is known that the run has.
    """
    events = read_events(lines)
    course = Course(lines, events)
    hits = [hit for hit in find_hits(events, stop) if not (hit.rule.fatal and is_harmless(hit.event))]
    notes = [reason] if (reason := stop()) else []
    run = _Run(course, events, hits)
    run.has_failed = has_failed or run.failed is not None
    diagnoses = run.explain(lines)
    if diagnoses:
        diagnoses[0].effects = [diagnosis.name for diagnosis in diagnoses[1:]]
        return Answer(FAILURE, diagnoses, notes=notes)
    if run.has_failed:
        event = run.failed or next(reversed(events), None)
        return Answer(UNKNOWN, [_unknown(event, run.raised, lines)] if event is not None else [], notes=notes)
    return Answer(NO_FAILURE, [], notes=[*notes, *course.cut_off()])


def is_harmless(event: Event) -> bool:
    """Say whether healthy runs have an event: a destructor that fails, a feature that is not there."""
    return any(_HARMLESS.search(text) for text in (event.intro, event.text))


@dataclass
class _Run:
    """The judgement of a run."""

    course: Course
    events: Sequence[Event]
    hits: list[Hit]
    has_failed: bool = False
    raised: list[Event] = field(init=False)  # exceptions that it did not get past
    failed: Event | None = field(init=False)  # the last event that says that it has failed
    failures: list[Event] = field(init=False)  # that are more than the consequence of another process's end

    def __post_init__(self) -> None:
        """Look for what says that the run has failed."""
        opened = {event for event in self.events if self.course.is_open(event) and not is_harmless(event)}
        self.raised = [event for event in self.events if event.kind == EXCEPTION and event in opened]
        told = [hit for hit in self.hits if hit.rule.fatal and not hit.event.is_warning and hit.event in opened]
        evidence = [
            event
            for event in opened
            if event.kind == FATAL
            or (event.kind == EXIT and not event.is_warning)
            or (event.kind, event.level) == FATAL_RECORD
        ]
        harmless = {hit.event for hit in self.hits if not hit.rule.fatal}
        evidence += [event for event in self.events[-1:] if event in opened - harmless and _COMPLAINT.match(event.text)]
        evidence += [event for event in self.raised if not event.is_warning and not self.course.is_handled(event)]
        evidence += [
            hit.event
            for hit in told
            if not hit.rule.info
            and hit.event.kind != EXCEPTION
            and not (hit.event.producer in PROGRAMS and self.course.tells_on(hit.event))
            and (hit.rule.role != SYMPTOM or hit.event.kind != RECORD or hit.event.producer in (*FACTS, "engine"))
        ]
        self.failures = [event for event in opened if event.kind == FATAL or event in self.course.ended]
        self.failures += [event for event in self.raised if event.type not in FOLLOWERS]
        self.failures += [hit.event for hit in told if hit.rule.role != SYMPTOM and hit.event.kind != EXIT]
        self.failed = max(evidence, key=lambda event: event.index, default=None)

    def explain(self, lines: Sequence[Line]) -> list[Diagnosis]:
        """Return the possible causes, the best first."""
        plain = self._plain_events()
        hits = [hit for hit in self.hits if self._counts(hit, plain)]
        sure = {hit.event for hit in hits if hit.rule.role == CAUSE and hit.rule.fatal and hit.rule.rank >= EXACT_RANK}
        hits = [hit for hit in hits if hit.event.is_wrapper or hit.event.inner not in sure]
        began: dict[str, int] = {}  # by log: its first effect
        for hit in hits:
            if hit.rule.role == EFFECT and not _is_quiet(hit):
                began.setdefault(hit.event.line.source, hit.event.index)
        explained = {hit.event for hit in hits}
        own = self._own_error([event for event in self.raised if event not in explained])
        ranked = sorted(hits, key=lambda hit: self._weight(hit, began), reverse=True)
        diagnoses: list[Diagnosis] = []
        for hit in ranked:
            if all(hit.rule.name != diagnosis.name for diagnosis in diagnoses):
                diagnoses.append(self._describe(hit, lines))
                if own is not None and _is_told(hit.event):
                    diagnoses[-1].confidence = LIKELY  # the program may have gone on after it
        if own is None and not hits:  # nothing tells of what the program has followed
            own = next((event for event in reversed(self.raised) if event.place and is_users(event.place[0])), None)
        if own is not None and self.has_failed and not any(self._beats(hit, own) for hit in hits):
            diagnoses.insert(0, _of_user(own, lines))
        return diagnoses

    @cached_property
    def _travelled(self) -> str:
        """The class of the exception that reached the main program last; empty if none did."""
        travelled = (event.carried or event.type for event in reversed(self.raised) if is_uncaught(event) or event.task)
        return next(travelled, "")

    def _own_error(self, raised: Iterable[Event]) -> Event | None:
        """Return the user's error: what reached the main program, else what left a frame of the user's code."""
        errors = [event for event in raised if event.type and event.type not in FOLLOWERS and event.kind == EXCEPTION]
        users = [event for event in errors if event.frames and is_users(event.frames[-1][0])]
        travelled = [event for event in users if event.type == self._travelled]
        with_frames = [event for event in errors if event.frames]
        first = next(iter(travelled or users or with_frames or errors), None)
        while first is not None and first.is_wrapper and first.inner in errors:
            first = first.inner
        chain = (event for event in errors if event.inner is first and not event.is_wrapper)
        outer = next(chain, None) if first is not None else None
        return outer or first

    def _beats(self, hit: Hit, own: Event) -> bool:
        """Return whether what a rule explains comes before an error that none does."""
        event = hit.event
        if _is_quiet(hit) or self._is_past(event) or self._is_late(hit) or (event.is_warning and own.frames):
            return False
        is_users_own = bool(own.frames) and is_users(own.frames[-1][0])
        if hit.rule.role != CAUSE:
            return not is_users_own and hit.rule.fatal and _is_fact(event) and event.index < own.first
        return not is_users_own or (
            hit.rule.fatal and (not is_uncaught(own) or (_is_fact(event) and not _is_told(event)))
        )

    def _is_past(self, event: Event) -> bool:
        return self.course.went_on(event) or self.course.is_handled(event)

    def _is_late(self, hit: Hit) -> bool:
        """Return whether a hit is the end that a launcher tells of, and something had failed before it."""
        event = hit.event
        return event.kind == EXIT and any(
            before.index < event.index and before.line.source == event.line.source for before in self.failures
        )

    def _counts(self, hit: Hit, plain: Mapping[str, int]) -> bool:
        """Return whether a hit speaks of a failure: what healthy runs say too does not if the run goes on after it."""
        event, course = hit.event, self.course
        if course.end_before(event) is not None and not self.has_failed:
            return False
        if hit.rule.fatal and not hit.rule.info and not event.is_warning:
            return self.has_failed and not course.process_went_on(event)
        if course.went_on(event) or hit.rule.info or self.has_failed:
            return not course.went_on(event)
        is_cause = hit.rule.role == CAUSE and not _is_quiet(hit) and (hit.rule.fatal or event.level in LOUD)
        return is_cause and plain.get(event.line.source, -1) < event.index

    def _plain_events(self) -> dict[str, int]:
        """Return the last event of each log that neither warns nor is explained: after a warning it went on."""
        explained = {hit.event for hit in self.hits}
        return {
            event.line.source: event.index
            for event in self.events
            if (event.level in QUIET or not event.is_warning) and event.level not in LOUD and event not in explained
        }

    def _weight(self, hit: Hit, began: Mapping[str, int]) -> tuple[float, ...]:
        """Return how well a hit explains the failure; more is better.

        What the run went on after comes last, and before it what a program says as information, and before that a
        warning that healthy runs have too and that names no mechanism, and what a launcher says of the end; a cause
        before an effect; the end of a process before what follows it in the same log (`began`: the first effect of
        each); an exception's own line before one that only mentions it, and that before a warning; then an exception
        of the kind that reached the driver: others may have been caught; then the more exact rule, where one that only
        matches the rest of a message is less exact; then the earliest.
        """
        event, rule = hit.event, hit.rule
        loud = 2 if event.kind in (EXCEPTION, FATAL) and event.type not in FOLLOWERS else 1
        loud = 0 if event.is_warning or not rule.fatal else loud
        exact = rule.rank if hit.direct else rule.rank - REST_RANKS
        is_first = rule.role == SYMPTOM and event.index < began.get(event.line.source, 0)
        return (
            not self._is_past(event),
            not _is_quiet(hit),
            rule.fatal or rule.rank >= EXACT_RANK,
            not self._is_late(hit),
            ROLES.index(EFFECT) + 0.5 if is_first else ROLES.index(rule.role),
            loud > 0,
            rule.rank >= EXACT_RANK,
            loud,
            rule.role == CAUSE and event.kind == EXCEPTION and event.type == self._travelled,
            exact,
            hit.direct,
            -event.index,
        )

    def _describe(self, hit: Hit, lines: Sequence[Line]) -> Diagnosis:
        rule, event = hit.rule, hit.event

        def fill(text: str, named: Mapping[str, str] = hit.named) -> str:
            return re.sub(r"\{(\w+)\}", lambda name: named.get(name[1], "?"), text)

        cause = fill(rule.cause)
        if event.kind == FATAL and event.frames:
            file, line, function = event.frames[-1]
            cause = f"{cause}; its innermost Python frame: {file}:{line} {function}"
        process = _process_of(hit)
        # The match leaves no other cause: it is one, and a fact of who must know it.
        is_sure = rule.rank >= EXACT_RANK and rule.role == CAUSE and rule.fatal and _is_fact(event)
        is_sure = is_sure and not (event.is_warning or self._is_past(event) or _OF_CLIENTS.match(event.text))
        diagnosis = Diagnosis(
            rule.name, EXACT if is_sure else LIKELY, fill(rule.title), cause, fill(rule.fix), [event.line],
            process=process, error=error_of(lines, event, rule.name, process),
        )  # fmt: skip
        for remedy in rule.apply:
            if match := remedy.when.search(event.whole):
                named = hit.named | match.groupdict()
                diagnosis.settings = {word: fill(value, named) for word, value in remedy.override.items()}
                diagnosis.variables = dict(remedy.variable)
                break
        return diagnosis


def _is_fact(event: Event) -> bool:
    """Return whether an event is told in a form that only its kind has, and is not what a program prints."""
    return event.kind not in (RECORD, MENTION, PROGRESS) or event.level in LOUD or event.producer in FACTS


def _is_told(event: Event) -> bool:
    """Return whether a program tells of an event, and nothing shows that it ended there."""
    is_record = event.kind in (RECORD, MENTION) or (event.level == "ERROR" and not event.frames)
    return is_record and event.producer not in FACTS and event.level != "FATAL"


def _is_quiet(hit: Hit) -> bool:
    return hit.event.level in QUIET and not hit.rule.info


def _process_of(hit: Hit) -> str:
    """Return the process that failed: the one that a line of another process speaks of, else the one that wrote it."""
    if named := hit.named.get("process") or hit.event.task:
        return named
    ended = _ENDED.search(hit.event.whole)
    return (
        " ".join(part for part in (ended["name"], f"pid={ended['pid']}") if part) if ended else hit.event.line.process
    )


def _of_user(event: Event, lines: Sequence[Line]) -> Diagnosis:
    at = event.place
    where = f" at {at[0]}:{at[1]} {at[2]}" if at is not None and not is_library(at[0]) else ""
    error = error_of(lines, event, USER_CODE)
    cause = error.title[:300]
    if event.inner is not None:
        cause = f"{cause}; raised while {event.inner.text[:200]} was handled"
    return Diagnosis(
        USER_CODE, LIKELY, f"{event.type} in the program{where}", cause,
        "stop it there: raydebug run --debugger post-mortem -- COMMAND", [event.line],
        process=event.process, error=error,
    )  # fmt: skip


def _unknown(event: Event, raised: Sequence[Event], lines: Sequence[Line]) -> Diagnosis:
    """Return what is known of a failure without a cause: its first exception, else the last line that speaks of it."""
    event = next(iter(raised), event)
    error = error_of(lines, event, "unknown")
    text = (error.title if event.kind in (EXCEPTION, MENTION) else error.text)[:300]
    return Diagnosis("unknown", UNSURE, text, text, "", [event.line], process=event.line.process, error=error)
