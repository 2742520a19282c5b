"""Where a step lost time against its neighbours, in one sentence. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

from raydebug.errors import UsageError
from raydebug.runs.record import Run
from raydebug.runs.timeline import PARTS, STEP, Process, Recorded, Span
from raydebug.trace.lanes import title_of

NEIGHBOURS = 5  # before, and as many after
LEAST_S, LEAST_SHARE = 0.5, 0.1  # of the usual time: less is not slower than usual
MOST_OF = 0.5  # of the excess: what explains less than half of it is not named
REST = "the rest of the step"
SLOW_RANK = "run.slow-rank"  # stacks/slow_watch.py: a rank that is slow in each step is not what makes one step slow


@dataclass(frozen=True)
class StepTimes:
    """Where a step's time went: its phases are seconds by name, without those inside of others and without pauses."""

    number: int
    start: float
    end: float
    phases: Mapping[str, float]
    spans: Sequence[Span]  # of these phases

    @property
    def took_s(self) -> float:
        """How long it took."""
        return self.end - self.start


class Why(NamedTuple):
    """Why a step took as long as it did."""

    step: int
    text: str
    took_s: float
    usual_s: float | None  # None without neighbours
    phase: str = ""
    phase_extra_s: float = 0.0
    sample: str = ""


def explain(recorded: Recorded, number: int) -> Why:
    """Return where a step went against the median of its neighbours.

    Raises:
        RaydebugError: there is no such step.
    """
    steps = steps_of(recorded)
    at = next((index for index, one in enumerate(steps) if one.number == number), None)
    if at is None:
        known = f"steps {steps[0].number} to {steps[-1].number} are" if steps else "no step is"
        one = (
            f"name one of these: raydebug trace --why {steps[-1].number}" if steps else "`raydebug trace` for the file"
        )
        raise UsageError(
            f"step {number} is not recorded", cause=f"{known} known of run '{recorded.run.id}'",
            fix=f"{one}; of a run that goes on wait until a step has ended", code="trace.no-step",
        )  # fmt: skip
    why = _explain(recorded, steps, at)
    slow = [finding.get("what", "") for finding in recorded.run.findings if finding.get("code") == SLOW_RANK]
    return why._replace(text=f"{why.text}; {slow[-1]}") if slow and not why.sample else why


def slowest(recorded: Recorded) -> Why | None:
    """Return the step that took most more than usual; None if none did. The first one always does."""
    steps = steps_of(recorded)
    usual = [_usual(steps, at) for at in range(len(steps))]
    slow = [at for at, one in enumerate(steps) if at and (s := usual[at]) is not None and _is_more(one.took_s - s, s)]
    if not slow:
        return None
    return _explain(recorded, steps, max(slow, key=lambda at: steps[at].took_s - (usual[at] or 0.0)))


def steps_of(recorded: Recorded) -> list[StepTimes]:
    """Return the steps in order: from the trainer's timers, else as its log has them."""
    trainer = max(recorded.processes, key=_count_steps, default=None)
    if trainer is None or not _count_steps(trainer):
        return [_logged(recorded.run, recorded.start, at) for at in range(len(recorded.run.steps))]
    phases_of = [span for span in trainer.spans if span.name != STEP]
    starts = [span.start for span in phases_of]
    found = {}
    for number, one in enumerate([span for span in trainer.spans if span.name == STEP], 1):
        first, behind = bisect_left(starts, one.start), bisect_right(starts, one.end)
        inside = [span for span in phases_of[first:behind] if span.thread == one.thread and span.end <= one.end]
        outer: list[Span] = []
        for span in inside:  # in the order of their begins, the longer one first
            if not outer or span.start >= outer[-1].end:
                outer.append(span)
        phases: dict[str, float] = defaultdict(float)
        for span in outer:
            phases[span.name] += span.end - span.start
        step = int(one.of) if one.of.isdecimal() else number
        found[step] = StepTimes(step, one.start, one.end, phases, outer)
    logged = [
        at for at, one in enumerate(recorded.run.steps) if one["step"] > max(found)
    ]  # the record of spans has ended
    return [found[step] for step in sorted(found)] + [_logged(recorded.run, recorded.start, at) for at in logged]


def _count_steps(process: Process) -> int:
    return sum(span.name == STEP for span in process.spans)


def _logged(run: Run, start: float, at: int) -> StepTimes:
    one = run.steps[at]
    named = ((*name.rpartition("/"), value) for name, value in one["metrics"].items())
    # What is further behind, such as timing_s/agent_loop/slowest/response_length, is a part of a phase, or no time.
    phases = {name: value for mark, _, name, value in named if mark in ("timing_s", "timing") and name != STEP}
    end = start + one["end_s"]
    return StepTimes(one["step"], end - one["seconds"], end, phases, [])


def _neighbours(steps: Sequence[StepTimes], at: int) -> list[StepTimes]:
    return [*steps[max(0, at - NEIGHBOURS) : at], *steps[at + 1 : at + 1 + NEIGHBOURS]]


def _usual(steps: Sequence[StepTimes], at: int) -> float | None:
    return median_low(neighbour.took_s for neighbour in near) if (near := _neighbours(steps, at)) else None


def _is_more(extra_s: float, usual_s: float) -> bool:
    return extra_s >= max(LEAST_S, LEAST_SHARE * usual_s)


def _explain(recorded: Recorded, steps: Sequence[StepTimes], at: int) -> Why:
    step, usual_s, near = steps[at], _usual(steps, at), _neighbours(steps, at)
    took = f"step {step.number} took {_s(step.took_s)}"
    if usual_s is None:
        longest = max(step.phases.items(), key=lambda one: one[1], default=None)
        most = f"; {longest[0]} took {_s(longest[1])} of it" if longest else ""
        return Why(step.number, f"{took}{most}; there is no other step to compare with", step.took_s, None)
    extra_s = step.took_s - usual_s
    if not _is_more(extra_s, usual_s):
        text = f"{took}, no more than its neighbours: their median is {_s(usual_s)}"
        return Why(step.number, text, step.took_s, usual_s)
    took = f"{took}, {_s(extra_s)} more than usual"
    if (paused := _paused(recorded, step)) and paused[0] >= MOST_OF * extra_s:
        return Why(step.number, f"{took}: {paused[1]}", step.took_s, usual_s)
    usual = {name: median_low(neighbour.phases.get(name, 0.0) for neighbour in near) for name in step.phases}
    extra = {name: seconds - usual[name] for name, seconds in step.phases.items()}
    rest = step.took_s - sum(step.phases.values())
    extra[REST] = rest - median_low(neighbour.took_s - sum(neighbour.phases.values()) for neighbour in near)
    phase, more_s = max(extra.items(), key=lambda one: one[1])
    if phase == REST or more_s < MOST_OF * extra_s:
        said = ", ".join(f"{name} {_s(seconds)}" for name, seconds in sorted(extra.items(), key=lambda one: -one[1])[:3]
                         if seconds >= LEAST_SHARE * extra_s)  # fmt: skip
        return Why(step.number, f"{took}: {said} more than usual", step.took_s, usual_s, phase, more_s)
    of_steps = [[span for span in each.spans if span.name == phase] for each in (step, *near)]
    waits = _last_samples(recorded, of_steps, more_s) or _last_process(recorded, of_steps, more_s)
    sample, waited = waits or ("", _around(recorded, of_steps, more_s))
    words = {"gen": "generate"}.get(phase, phase)
    text = f"{took}: {words} {waited or f'took {_s(step.phases[phase])}, {_s(more_s)} more than usual'}"
    return Why(step.number, text, step.took_s, usual_s, phase, more_s, sample)


def _paused(recorded: Recorded, step: StepTimes) -> tuple[float, str] | None:
    """Return the pause that held a step for longest, and for how long."""
    held = []
    for pause in recorded.run.pauses:
        begin = recorded.start + pause.start_s
        end = step.end if pause.end_s is None else recorded.start + pause.end_s
        seconds = min(end, step.end) - max(begin, step.start)
        if seconds > 0:
            held.append((seconds, f"pause {pause.id} at {pause.where} held it for {_s(seconds)}"))
    return max(held, default=None)


class _Late(NamedTuple):
    """What a phase waited for after all else had ended."""

    alone_s: float
    sample: str
    words: str


_NOBODY = _Late(0.0, "", "")


def _exceeds(lates: Sequence[_Late], more_s: float) -> tuple[str, str] | None:
    """Return the sample and the words of the first step if it waited so much longer than the others do."""
    first, usual_s = lates[0], median_low(late.alone_s for late in lates[1:])
    return (first.sample, first.words) if first.alone_s - usual_s >= MOST_OF * more_s else None


def _samples_in(recorded: Recorded, phases: Sequence[Span]) -> dict[tuple[int, int, str], list[Span]]:
    by_sample: dict[tuple[int, int, str], list[Span]] = defaultdict(list)
    for number, process in enumerate(recorded.processes):
        for span in process.spans:
            is_inside = any(span.start < phase.end and phase.start < span.end for phase in phases)
            if span.task is not None and span.name in PARTS and is_inside:
                by_sample[number, span.task, span.of or "?"].append(span)
    return by_sample


def _last_samples(recorded: Recorded, of_steps: Sequence[Sequence[Span]], more_s: float) -> tuple[str, str] | None:
    """Return the sample that a phase of the first step waited for, and the words; of several the last one's id."""

    def last(phases: Sequence[Span]) -> _Late:
        by_sample = _samples_in(recorded, phases)
        ends = sorted(((max(span.end for span in parts), key) for key, parts in by_sample.items()), reverse=True)
        late = [key for end, key in ends if end >= ends[0][0] - (1 - MOST_OF) / 2 * more_s]
        if not late or len(late) == len(ends) > 1:  # none waited for another one
            return _NOBODY
        before = ends[len(late)][0] if len(ends) > len(late) else min(phase.start for phase in phases)
        alone_s, key = ends[0][0] - before, late[0]
        if len(late) > 1:
            names = ", ".join(f"uid {name}" for _, _, name in late[:3])
            return _Late(alone_s, key[2], f"waited {_s(alone_s)} for {len(late)} samples ({names})")
        longest = max(by_sample[key], key=lambda part: part.end - part.start)
        part = PARTS[longest.name] + (f" {longest.note}" if longest.note else "")
        words = f"waited {_s(alone_s)} for one sample (uid {key[2]}, {part}, {_s(longest.end - longest.start)})"
        return _Late(alone_s, key[2], words)

    return _exceeds([last(phases) for phases in of_steps], more_s)


def _last_process(recorded: Recorded, of_steps: Sequence[Sequence[Span]], more_s: float) -> tuple[str, str] | None:
    """Return the words for the process that a phase of the first step waited for after its peers had ended.

    Who has called it waits with it. So of those that ended last the one counts that is alone of its class among them,
    with others of its class that ended before; of several such ones, the one that was called last.
    """

    def last(phases: Sequence[Span]) -> _Late:
        works: list[tuple[Span, str, Process]] = []  # the last work of each process, and the class of its actor
        for process in recorded.processes:
            work = [span for span in (*process.spans, *process.tasks) if _is_in(span, phases)]
            if work and not process.is_timed:  # nobody knows which of them was last
                return _NOBODY
            if work and not _count_steps(process):
                final = max(work, key=lambda span: (span.end, span.start))
                works.append((final, title_of(process).partition(" ")[0], process))
        end = max((span.end for span, _, _ in works), default=0.0)
        late = [work for work in works if work[0].end >= end - (1 - MOST_OF) / 2 * more_s]
        before = [work for work in works if work not in late]
        kinds, peers = Counter(kind for _, kind, _ in late), {kind for _, kind, _ in before}
        alone = [work for work in late if kinds[work[1]] == 1]
        if not alone:
            return _NOBODY
        held, _, process = max(alone, key=lambda work: (work[1] in peers, work[0].start))
        alone_s = end - max((span.end for span, _, _ in before), default=held.start)
        words = f"waited {_s(alone_s)} for {title_of(process)}: {held.name}, {_s(held.end - held.start)}"
        return _Late(alone_s, "", words)

    return _exceeds([last(phases) for phases in of_steps], more_s)


def _around(recorded: Recorded, of_steps: Sequence[Sequence[Span]], more_s: float) -> str:
    """Return that the work in a phase began late, or that the phase went on after it; empty if neither explains it."""
    waits = []
    for phases in of_steps:
        works = [span for parts in _samples_in(recorded, phases).values() for span in parts]
        if not works:
            works = [span for process in recorded.processes if not _count_steps(process)
                     for span in (*process.spans, *process.tasks) if _is_in(span, phases)]  # fmt: skip
        if not works or not phases:
            return ""
        begins_s = min(span.start for span in works) - min(phase.start for phase in phases)
        waits.append((begins_s, max(phase.end for phase in phases) - max(span.end for span in works)))
    begins_s, goes_on_s = (waits[0][which] - median_low(wait[which] for wait in waits[1:]) for which in (0, 1))
    if begins_s >= MOST_OF * more_s:
        return f"began to work {_s(begins_s)} later than usual"
    return f"went on {_s(goes_on_s)} longer after its last work" if goes_on_s >= MOST_OF * more_s else ""


def _is_in(one: Span, phases: Sequence[Span]) -> bool:
    """Return whether most of a span is in one of these phases: clocks of nodes differ, an endless method is longer."""
    return any(2 * (min(one.end, phase.end) - max(one.start, phase.start)) > one.end - one.start for phase in phases)


def _s(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
