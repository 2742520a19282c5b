"""The first cause of a failure: which of the lines that rules explain it is, and what follows from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from raydebug.diagnose.answer import EXACT, FAILURE, LIKELY, NO_FAILURE, UNKNOWN, UNSURE, Answer, Diagnosis, error_of
from raydebug.diagnose.course import Course
from raydebug.diagnose.raised import Raised, find_raised, is_users
from raydebug.diagnose.read import ECHO, Line
from raydebug.diagnose.rules import CAUSE, EFFECT, ROLES, SYMPTOM, Hit, find_hits, signs_of
from raydebug.diagnose.scan import Stop, never
from raydebug.stacks.groups import is_library

USER_CODE = "user-code"
EXACT_RANK = 5  # of a rule that names the mechanism
REST_RANKS = 3  # that a match in the rest of an exception's message counts less than one in its first line
LOUD = ("ERROR", "FATAL")  # levels
QUIET = ("INFO", "DEBUG", ECHO)  # healthy runs report deaths, time-outs and retries in these

_HARMLESS = re.compile(
    r"Exception ignored in|_ARRAY_API not found|leaked (semaphore|shared_memory)|DeprecationWarning|FutureWarning"
    r"|Using default MoE config|some features are disabled|expandable_segments not supported on this platform"
)
_WARNED = re.compile(r"\b\w*Warning: |\bwarning: |^(WARNING|WARN|Warning)\b")
# What stands before an exception that is only reported: cpython 3.11 threading.py, atexit, asyncio, multiprocessing.
_TEARDOWN = re.compile(
    r"Exception (ignored )?in |Error in (atexit|sys\.)|was never retrieved|^Process \S+:$|[Ss]hut(ting)? ?down"
    r"|[Tt]eardown"
)
# Errors of a process when another one, or its connection, has ended.
FOLLOWERS = frozenset((
    *("RayTaskError", "RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError"),
    *("OwnerDiedError", "NodeDiedError", "ObjectLostError", "ObjectFetchTimedOutError", "TaskCancelledError"),
    *("LocalRayletDiedError", "EngineDeadError", "DistBackendError", "DistNetworkError", "BrokenPipeError"),
    *("ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "EOFError", "CancelledError"),
    *("KeyboardInterrupt", "SystemExit", "IncompleteReadError", "ServerDisconnectedError", "AioRpcError"),
    *("ChildFailedError", "CalledProcessError", "InstantiationException"),
    *("ProcessRaisedException", "ProcessExitedException"),  # torch.multiprocessing.spawn, of an error in a child
))  # fmt: skip
# Ray's words of a worker that has ended: ray 2.41-2.60 exceptions.py ActorDiedError, src/ray/raylet/node_manager.cc.
_ENDED = re.compile(r"(?:class_name: (?P<name>\S+) .*)?\b(?:Worker PID|pid): (?P<pid>\d+)\b")


def diagnose(lines: Sequence[Line], stop: Stop = never) -> Answer:
    """Say what failed, from the lines of all logs of a run.

    What a process got past is no failure: an error before more progress, or before the end of the run. What comes after
    the end is none either, unless the program itself raised it, or ended with an exit code other than 0.
    """
    course = Course(lines)
    raised = [one for one in find_raised(lines) if not _is_harmless(lines, one)]
    hits = [
        hit
        for hit in find_hits(lines, raised, stop)
        if lines[hit.index].level != ECHO and not (hit.rule.fatal and _HARMLESS.search(lines[hit.index].text))
    ]
    reason = stop()
    raised = [one for one in raised if _is_open(one, lines, course)]
    failed_at = _last_failure(lines, raised, hits, course)
    plain = _plain_lines(lines, hits)
    hits = [hit for hit in hits if _counts(hit, lines, failed_at is not None, course, plain)]
    began = _first_effects(hits, lines)
    travelled = [one.kind for one in raised if one.process][-1:]
    ranked = sorted(hits, key=lambda hit: _weight(hit, lines, began, course, travelled), reverse=True)
    found: list[Diagnosis] = []
    for hit in ranked:
        if all(hit.rule.name != one.name for one in found):
            found.append(_describe(hit, lines))
    explained = {hit.index for hit in hits}
    own = _users_error(one for one in raised if one.index not in explained)
    causes = [hit for hit in hits if hit.rule.role == CAUSE and not _is_quiet(hit, lines)]
    if own is not None and not any(hit.rule.fatal or not _is_in_users_code(own) for hit in causes):
        found.insert(0, _of_user(own, lines))
    if found:
        found[0].effects = [one.name for one in found[1:]]
        return Answer(FAILURE, found, notes=[reason] if reason else [])
    if failed_at is not None:
        return Answer(UNKNOWN, [_unknown(failed_at, lines, raised)], notes=[reason] if reason else [])
    return Answer(NO_FAILURE, [], notes=[*([reason] if reason else []), *course.cut_off()])


def _first_effects(hits: Iterable[Hit], lines: Sequence[Line]) -> dict[str, int]:
    """Return the index of the first effect in each log that has one."""
    found: dict[str, int] = {}
    for hit in hits:
        if hit.rule.role == EFFECT and not _is_quiet(hit, lines):
            found.setdefault(lines[hit.index].source, hit.index)
    return found


def _weight(
    hit: Hit, lines: Sequence[Line], began: Mapping[str, int], course: Course, travelled: Sequence[str]
) -> tuple[float, ...]:
    """Return how well a hit explains the failure; more is better.

    What the run went on after comes last, and before it what a program says as information, and before that a warning
    that healthy runs have too and that names no mechanism; a cause before an effect; the end of a process before what
    follows it in the same log (`began`: the first effect of each); an exception's own line before one that only
    mentions it, and that before a warning; then an exception of the kind that reached another process (`travelled`):
    others may have been caught; then the more exact rule, where one that only matches the rest of a message is less
    exact; then the earliest.
    """
    loud = 2 if hit.raised is not None and not hit.raised.in_line else 1
    if _is_warning(lines[hit.index]) or not hit.rule.fatal:
        loud = 0
    exact = hit.rule.rank if hit.direct else hit.rule.rank - REST_RANKS
    is_first = hit.rule.role == SYMPTOM and hit.index < began.get(lines[hit.index].source, 0)
    return (
        not course.went_on(hit.index),
        not _is_quiet(hit, lines),
        hit.rule.fatal or hit.rule.rank >= EXACT_RANK,
        ROLES.index(EFFECT) + 0.5 if is_first else ROLES.index(hit.rule.role),
        hit.rule.rank >= EXACT_RANK,
        loud,
        hit.rule.role == CAUSE and hit.raised is not None and hit.raised.kind in travelled,
        exact,
        hit.direct,
        -hit.index,
    )


def _is_quiet(hit: Hit, lines: Sequence[Line]) -> bool:
    return lines[hit.index].level in QUIET and not hit.rule.info


def _is_warning(line: Line) -> bool:
    return (
        line.level == "WARNING"
        or line.level in QUIET
        or _WARNED.search(line.text) is not None
        or "NCCL WARN" in line.text
    )


def _counts(hit: Hit, lines: Sequence[Line], has_failed: bool, course: Course, plain: Mapping[str, int]) -> bool:
    """Return whether a hit speaks of a failure: a line of healthy runs too does not if the run goes on after it."""
    line = lines[hit.index]
    if course.has_ended(hit.index) and not has_failed:
        return False
    if hit.rule.fatal and not hit.rule.info and not _is_warning(line):
        return not course.went_on(hit.index) or (has_failed and not course.process_went_on(hit.index))
    if course.went_on(hit.index):
        return False
    if hit.rule.info:
        return True
    if _is_quiet(hit, lines) or hit.rule.role != CAUSE:
        return has_failed
    return has_failed or line.level in LOUD or (hit.rule.fatal and plain.get(line.source, -1) < hit.index)


def _plain_lines(lines: Sequence[Line], hits: Iterable[Hit]) -> dict[str, int]:
    """Return the last line of each log that neither warns nor is explained by a rule: after a warning it went on."""
    explained = {hit.index for hit in hits}
    return {
        line.source: index
        for index, line in enumerate(lines)
        if line.text[:1].strip() and not _is_loud(line) and index not in explained
    }


def _is_loud(line: Line) -> bool:
    return line.level in (*LOUD, ECHO) or (line.level not in QUIET and _is_warning(line))


def _last_failure(lines: Sequence[Line], raised: Sequence[Raised], hits: Iterable[Hit], course: Course) -> int | None:
    """Return the last line that says that the run has failed; None if it has not."""
    found = [one.index for one in raised]
    found += [
        hit.index
        for hit in hits
        if hit.rule.fatal and not hit.rule.info and not _is_warning(lines[hit.index])
        and _is_open(hit.index, lines, course)
    ]  # fmt: skip
    for index, line in enumerate(lines):
        if "fatal" not in signs_of(line.text) or line.level in (*QUIET, "WARNING"):
            continue
        if _is_open(index, lines, course) and not any(
            _HARMLESS.search(near.text) for near in lines[max(0, index - 1) : index + 1]
        ):
            found.append(index)
    return max(found, default=None)


def _is_open(error: Raised | int, lines: Sequence[Line], course: Course) -> bool:
    """Return whether the run did not get past an error or a line; after its end only what ended the program counts."""
    index = error if isinstance(error, int) else error.index
    if course.went_on(index):
        return False
    if not course.has_ended(index if isinstance(error, int) else error.first):
        return True
    line = lines[index]
    if not course.is_main(index):
        return False
    if isinstance(error, int):
        return "exit" in signs_of(line.text)
    before = lines[max(0, error.first - 1) : error.first + 1]
    return bool(error.frames) and not any(_TEARDOWN.search(near.text) for near in before)


def _is_harmless(lines: Sequence[Line], error: Raised) -> bool:
    if error.in_line and lines[error.index].level in (*QUIET, "WARNING"):
        return True
    return any(_HARMLESS.search(line.text) for line in lines[max(0, error.first - 1) : error.first + 1])


def _users_error(raised: Iterable[Raised]) -> Raised | None:
    """Return the first exception that left a frame of the user's code, else the first exception that is no effect."""
    errors = [error for error in raised if error.kind not in FOLLOWERS and not error.in_line]
    users = [error for error in errors if _is_in_users_code(error)]
    with_frames = [error for error in errors if error.frames]
    return next(iter(users or with_frames or errors), None)


def _is_in_users_code(error: Raised) -> bool:
    return bool(error.frames) and is_users(error.frames[-1][0])


def _describe(hit: Hit, lines: Sequence[Line]) -> Diagnosis:
    rule, line = hit.rule, lines[hit.index]

    def fill(text: str, named: Mapping[str, str] = hit.named) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: named.get(found[1], "?"), text)

    process = _process_of(hit, line)
    diagnosis = Diagnosis(
        rule.name,
        EXACT if rule.rank >= EXACT_RANK and rule.role == CAUSE else LIKELY,
        fill(rule.title),
        fill(rule.cause),
        fill(rule.fix),
        [line],
        process=process,
        error=error_of(lines, hit.index, hit.raised, rule.name, process),
    )
    whole = f"{line.text} {hit.raised.more}" if hit.raised is not None else line.text
    for remedy in rule.apply:
        if match := remedy.when.search(whole):
            named = hit.named | match.groupdict()
            diagnosis.settings = {word: fill(value, named) for word, value in remedy.override.items()}
            diagnosis.variables = dict(remedy.variable)
            break
    return diagnosis


def _process_of(hit: Hit, line: Line) -> str:
    """Return the process that failed: the one that a line of another process speaks of, else the one that wrote it."""
    named = hit.named.get("process") or (hit.raised.process if hit.raised is not None else "")
    if named:
        return named
    ended = _ENDED.search(f"{line.text} {hit.raised.more}" if hit.raised is not None else line.text)
    return " ".join(part for part in (ended["name"], f"pid={ended['pid']}") if part) if ended else line.process


def _of_user(raised: Raised, lines: Sequence[Line]) -> Diagnosis:
    at = raised.place
    where = f" at {at[0]}:{at[1]} {at[2]}" if at is not None and not is_library(at[0]) else ""
    error = error_of(lines, raised.index, raised, USER_CODE)
    return Diagnosis(
        USER_CODE, LIKELY, f"{raised.kind} in the program{where}", error.title[:300],
        "stop it there: raydebug run --debugger post-mortem -- COMMAND", [lines[raised.index]],
        process=raised.process or lines[raised.index].process, error=error,
    )  # fmt: skip


def _unknown(index: int, lines: Sequence[Line], raised: Sequence[Raised]) -> Diagnosis:
    """Return what is known of a failure without a cause: its first exception, else the last line that speaks of it."""
    first = next(iter(raised), None)
    index = index if first is None else first.index
    error = error_of(lines, index, first, "unknown")
    text = (error.text if first is None else error.title)[:300]
    line = lines[index]
    return Diagnosis("unknown", UNSURE, text, text, "", [line], process=line.process, error=error)
