"""A run as values from which a page can be drawn, read from its document (run.json, version 1). Pure.

A run that was killed leaves an incomplete document, and that is when a report is needed most: what is missing or
impossible is left out, and reading never raises.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, cast

from raydebug.jobs.run_folder import RUN
from raydebug.protocol.secrets import without_secret, without_secret_arguments, without_secrets


@dataclass(frozen=True)
class Phase:
    """A phase of the run; `end_s` is None while it is open."""

    name: str
    start_s: float
    end_s: float | None


class Spread(NamedTuple):
    """What several steps had of one metric: range of its finite values, number and first one of the others."""

    low: float
    high: float
    odd: int
    first_odd: tuple[int, float] | None


@dataclass(frozen=True)
class Step:
    """A training step; metrics may be NaN or infinite. Of a very long run it may stand for several steps in a row."""

    step: int  # of several the last one's
    end_s: float  # of several the last one's
    seconds: float  # of several the mean
    metrics: dict[str, float]  # of several the mean of the finite values
    spreads: Mapping[str, Spread] = field(default_factory=dict)  # of several; the seconds have the name SECONDS


@dataclass(frozen=True)
class ProcessMemory:
    """The memory of a process: samples of (seconds, MiB), in order."""

    name: str
    node: str
    samples: list[tuple[float, ...]]


@dataclass(frozen=True)
class GpuLoad:
    """A GPU: samples of (seconds, MiB in use, % busy), in order; NaN for an unknown value."""

    name: str
    node: str
    total_mib: float
    samples: list[tuple[float, ...]]


@dataclass(frozen=True)
class Pause:
    """A pause; `end_s` is None for one that was not resumed."""

    id: str
    where: str
    kind: str
    who: str
    exception: str
    start_s: float
    end_s: float | None


@dataclass(frozen=True)
class Change:
    """A setting that the profile changed, with its values as text."""

    key: str
    old: str
    new: str
    why: str


@dataclass(frozen=True)
class Run:
    """A run or a check, as its page shows it; findings and the first error are as in the document."""

    id: str
    kind: str
    command: list[str]
    cluster: dict[str, str]
    profile: str
    changes: list[Change]
    variables: dict[str, str]
    lock: dict[str, str]
    started: float | None
    ended: float | None
    status: str
    exit_code: int | None
    first_error: dict[str, str] | None
    phases: list[Phase]
    steps: list[Step]
    steps_kept: int  # in the record
    step_count: int  # of the run
    median_step_s: float | None
    memory: list[ProcessMemory]
    gpus: list[GpuLoad]
    pauses: list[Pause]
    findings: list[dict[str, str]]
    crashes: list[dict[str, str]]
    log: str
    slow_step: str = ""  # why the slowest step was slow (trace/why.py)

    @property
    def took_s(self) -> float | None:
        """Seconds from start to end; None for a run that has not ended, or whose clock was set back."""
        if self.started is None or self.ended is None or self.ended < self.started:
            return None
        return self.ended - self.started

    @property
    def samples(self) -> list[list[tuple[float, ...]]]:
        """The samples of every process and GPU."""
        return [process.samples for process in self.memory] + [gpu.samples for gpu in self.gpus]

    @cached_property
    def length_s(self) -> float:
        """The length of the time axis: the last known moment of the run; never 0."""
        known = [self.took_s or 0.0]
        known += [moment for phase in self.phases for moment in (phase.start_s, phase.end_s or 0.0)]
        known += [moment for pause in self.pauses for moment in (pause.start_s, pause.end_s or 0.0)]
        known += [step.end_s for step in self.steps]
        known += [samples[-1][0] for samples in self.samples]
        return max(known) or 1.0


SECONDS = "\0seconds"  # no metric has this name
MOST_STEPS = 2_000  # with more, several in a row are read as one: a page is less than 1,000 pixels wide
ALONE = 20  # the last steps, which are shown as they were
MOST_NUMBER = 1e300
MOST_TEXT = 10_000  # characters of one value
MOST_S = 10 * 365 * 86_400.0  # a later moment is a broken measurement


def read_run(document: Mapping[str, object]) -> Run:
    """Return the run of a document, without the parts that are missing or malformed."""
    command = document.get("command")
    steps, took = _steps(document.get("steps"))
    counted = document.get("step_count")  # the record of a long run has fewer steps
    return Run(
        id=_text(document.get("id")) or "?",
        kind=_text(document.get("kind")) or RUN,
        command=without_secret_arguments([_text(word) for word in command] if isinstance(command, list) else []),
        cluster=_texts(document.get("cluster")),
        profile=_text(document.get("profile")),
        changes=[change for one in _mappings(document.get("changes")) if (change := _change(one)).key],
        variables=without_secrets(_texts(document.get("variables"))),
        lock=_texts(document.get("lock")),
        started=_number(document.get("started")),
        ended=_number(document.get("ended")),
        status=_text(document.get("status")) or "unknown",
        exit_code=code if isinstance(code := document.get("exit_code"), int) else None,
        first_error=_texts(document.get("first_error")) or None,
        phases=sorted(_phases(document.get("phases")), key=lambda phase: phase.start_s),
        steps=sorted(steps, key=lambda step: step.end_s),
        steps_kept=len(took),
        step_count=max(counted, len(took)) if type(counted) is int else len(took),
        median_step_s=sorted(took)[len(took) // 2] if took else None,
        memory=_memory(document.get("memory")),
        gpus=_gpus(document.get("gpus")),
        pauses=sorted(_pauses(document.get("pauses")), key=lambda pause: pause.start_s),
        findings=[_texts(one) for one in _mappings(document.get("findings"))],
        crashes=[_texts(one) for one in _mappings(document.get("crashes"))],
        log=_text(document.get("log")),
        slow_step=_text(document.get("slow_step")),
    )


def _change(one: Mapping[str, object]) -> Change:
    key = _text(one.get("key"))
    old, new = (without_secret(key, _value(one.get(side))) for side in ("old", "new"))
    return Change(key, old, new, _text(one.get("why")))


def _phases(found: object) -> list[Phase]:
    spans = [(one, _span(one)) for one in _mappings(found)]
    return [Phase(_text(one.get("name")) or "?", *span) for one, span in spans if span]


def _pauses(found: object) -> list[Pause]:
    return [
        Pause(
            _text(one.get("id")), _text(one.get("where")) or "?", _text(one.get("kind")) or "?", _text(one.get("who")),
            _text(one.get("exception")), *span,
        )
        for one in _mappings(found)
        if (span := _span(one))
    ]  # fmt: skip


def _seconds(value: object) -> float | None:
    """Return a moment of the run, at least 0 (clocks of machines may differ); None if it is impossible."""
    seconds = _number(value)
    return None if seconds is None or abs(seconds) > MOST_S else max(0.0, seconds)


def _span(one: Mapping[str, object]) -> tuple[float, float | None] | None:
    start, end = _seconds(one.get("start_s")), _seconds(one.get("end_s"))
    if start is None:
        return None
    return start, None if end is None else max(start, end)


def _steps(found: object) -> tuple[list[Step], list[float]]:
    """Return the steps, very many in bins, and how long each of them took."""
    rows = [(row, times) for row in _mappings(found) if (times := _times(row))]
    size = max(1, math.ceil(len(rows) / MOST_STEPS))
    alone = max(0, len(rows) - ALONE) if size > 1 else 0
    steps = [_binned(rows[at : min(at + size, alone)]) for at in range(0, alone, size)]
    steps += [Step(*times, _metrics(row.get("metrics"))) for row, times in rows[alone:]]
    return steps, [took for _, (_, _, took) in rows]


def _times(one: Mapping[str, object]) -> tuple[int, float, float] | None:
    """Return number, end and duration of a step; None if one of them is impossible. A run may have a million steps."""
    step, end, took = one.get("step"), one.get("end_s"), one.get("seconds")
    if type(step) is int and type(end) is float and type(took) is float and 0 <= end <= MOST_S and 0 <= took <= MOST_S:
        return step, end, took
    number, end, took = _number(step), _seconds(end), _seconds(took)
    return None if number is None or end is None or took is None else (int(number), end, took)


def _binned(same: Sequence[tuple[Mapping[str, object], tuple[int, float, float]]]) -> Step:
    """Return several steps as one; no lowest or highest value and no NaN is lost."""
    columns: dict[str, list[object]] = {}
    for row, _ in same:
        metrics = row.get("metrics")
        for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
            columns.setdefault(str(name), []).append(value)
    took = [seconds for _, (_, _, seconds) in same]
    means, spreads = {SECONDS: math.fsum(took) / len(took)}, {SECONDS: Spread(min(took), max(took), 0, None)}
    for name, found in columns.items():
        values = _floats(found)
        known, odd = values, None
        if not math.isfinite(sum(values)):
            known = [value for value in values if math.isfinite(value)]
            each = ((times[0], _metrics(row.get("metrics")).get(name, 0.0)) for row, times in same)
            odd = next((one for one in each if not math.isfinite(one[1])), None)
        if values:
            means[name] = sum(value / len(known) for value in known) if known else math.nan
            low, high = (min(known), max(known)) if known else (math.nan, math.nan)
            spreads[name] = Spread(low, high, len(values) - len(known), odd)
    step, end, _ = same[-1][1]
    return Step(step, end, means.pop(SECONDS), means, spreads)


def _metrics(found: object) -> dict[str, float]:
    metrics = {}
    for name, value in found.items() if isinstance(found, Mapping) else ():
        for number in _floats([value]):
            metrics[str(name)] = number
    return metrics


def _floats(values: list[object]) -> list[float]:
    """Return the values that are numbers; "NaN" too: strict JSON cannot write it otherwise."""
    if set(map(type, values)) == {float}:
        return cast("list[float]", values)
    numbers = []
    for value in values:
        if isinstance(value, int | float | str):
            with contextlib.suppress(ValueError, OverflowError):
                numbers.append(float(value))
    return numbers


def _memory(found: object) -> list[ProcessMemory]:
    read = ((one, _samples(one.get("samples"), 2)) for one in _mappings(found))
    return [ProcessMemory(_text(one.get("process")) or "?", _text(one.get("node")), s) for one, s in read if s]


def _gpus(found: object) -> list[GpuLoad]:
    read = ((gpu, _samples(gpu.get("samples"), 3)) for gpu in _mappings(found))
    return [
        GpuLoad(_text(gpu.get("name")) or "GPU", _text(gpu.get("node")), _number(gpu.get("total_mib")) or 0.0, samples)
        for gpu, samples in read
        if samples
    ]


def _samples(found: object, width: int) -> list[tuple[float, ...]]:
    rows = (row for row in found if isinstance(row, list) and len(row) == width) if isinstance(found, list) else ()
    samples = (tuple([_or_nan(value) for value in row]) for row in rows)
    known = [sample for sample in samples if 0 <= sample[0] <= MOST_S and any(value >= 0 for value in sample[1:])]
    known.sort(key=lambda sample: sample[0])
    return known


def _mappings(found: object) -> list[Mapping[str, object]]:
    return [one for one in found if type(one) is dict or isinstance(one, Mapping)] if isinstance(found, list) else []


def _texts(found: object) -> dict[str, str]:
    return {str(key): _text(value) for key, value in found.items()} if isinstance(found, Mapping) else {}


def _text(value: object) -> str:
    text = "" if value is None else str(value)
    if len(text) > MOST_TEXT:
        return f"{text[:MOST_TEXT]} ... and {len(text) - MOST_TEXT:,} more characters"
    return text


def _value(value: object) -> str:
    """Return a setting's value as YAML and Hydra write it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else _text(value)


def _or_nan(value: object) -> float:
    """Return a measurement; NaN for any other value. A run has tens of thousands of them."""
    if (type(value) is int or type(value) is float) and 0 <= value <= MOST_NUMBER:
        return value
    number = _number(value)
    return math.nan if number is None or number < 0 else number


def _number(value: object) -> float | None:
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
