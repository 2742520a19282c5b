"""A run as values, in the shape of its document (run.json, version 1): who records it makes them, all others read them.

A run that was killed leaves an incomplete document, and that is when it is needed most: what is missing or impossible
is left out, and reading never raises. Pure.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

from raydebug.protocol.secrets import (
    scrubbed,
    scrubbed_texts,
    without_secret,
    without_secret_arguments,
    without_secrets,
)
from raydebug.trainers.trainer import StepMetrics

RUN, CHECK = "run", "check"
NODE = "all processes of the node"  # the name of a row of `memory`
MOST_NUMBER = 1e300
MOST_TEXT = 10_000  # characters of one value
MOST_S = 10 * 365 * 86_400.0  # a later moment is a broken measurement
Samples: TypeAlias = list[tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of a run; seconds since its start, `end_s` is None while the phase is open."""

    name: Annotated[str, _text] = "?"
    start_s: Annotated[float, _moment]
    end_s: Annotated[float | None, _moment] = None


class Step(StepMetrics):
    """A step of a training with its place in time; metrics may be NaN or infinite."""

    end_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ProcessMemory:
    """The memory of a process, or of a node (NODE): samples of (seconds, MiB), in order."""

    process: Annotated[str, _text] = "?"
    node: Annotated[str, _text] = ""
    samples: Annotated[Samples, _samples_of(2)]


@dataclass(frozen=True, kw_only=True)
class GpuLoad:
    """A GPU: samples of (seconds, MiB in use, % busy), in order; NaN for an unknown value."""

    name: Annotated[str, _text] = "GPU"
    node: Annotated[str, _text] = ""
    total_mib: Annotated[float, _number] = 0.0
    samples: Annotated[Samples, _samples_of(3)]


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A pause; `end_s` is None for one that was not resumed."""

    id: Annotated[str, _text] = ""
    where: Annotated[str, _text] = "?"
    kind: Annotated[str, _text] = "?"
    who: Annotated[str, _text] = ""
    exception: Annotated[str | None, _text] = None
    start_s: Annotated[float, _moment]
    end_s: Annotated[float | None, _moment] = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """A setting that the profile changed, with its values as text."""

    key: Annotated[str, _text]
    old: Annotated[str, _value] = "null"
    new: Annotated[str, _value] = "null"
    why: Annotated[str, _text] = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run or a check; findings, snapshots, deaths and the first error are as in the document."""

    kind: Annotated[str, _text] = RUN
    id: Annotated[str, _text] = "?"
    command: Annotated[list[str], _words] = field(default_factory=list)
    working_dir: Annotated[str | None, _text] = None
    cluster: Annotated[dict[str, str], _texts] = field(default_factory=dict)
    profile: Annotated[str | None, _text] = None
    changes: Annotated[list[Change], _list_of(Change)] = field(default_factory=list)
    variables: Annotated[dict[str, str], _texts] = field(default_factory=dict)
    lock: Annotated[dict[str, str], _texts] = field(default_factory=dict)
    started: Annotated[float | None, _number] = None  # seconds since the epoch
    ended: Annotated[float | None, _number] = None
    status: Annotated[str, _text] = "unknown"
    exit_code: Annotated[int | None, _integer] = None
    first_error: Annotated[dict[str, str] | None, _texts] = None
    phases: Annotated[list[Phase], _list_of(Phase)] = field(default_factory=list)
    steps: Annotated[list[Step], _steps] = field(default_factory=list)
    step_count: Annotated[int, _integer] = 0  # the record of a long run has fewer steps
    memory: Annotated[list[ProcessMemory], _list_of(ProcessMemory)] = field(default_factory=list)
    gpus: Annotated[list[GpuLoad], _list_of(GpuLoad)] = field(default_factory=list)
    pauses: Annotated[list[Pause], _list_of(Pause)] = field(default_factory=list)
    findings: Annotated[list[dict[str, str]], _list_of_texts] = field(default_factory=list)
    snapshots: Annotated[list[Mapping[str, Any]], _documents] = field(default_factory=list)
    deaths: Annotated[list[Mapping[str, Any]], _documents] = field(default_factory=list)
    log: Annotated[str, _text] = ""
    folder: Path = Path()
    document: Mapping[str, Any] = field(default_factory=dict)  # run.json as it is

    @property
    def took_s(self) -> float | None:
        """Seconds from start to end; None for a run that has not ended, or whose clock was set back."""
        if self.started is None or self.ended is None or self.ended < self.started:
            return None
        return self.ended - self.started

    @property
    def median_step_s(self) -> float | None:
        """The median of the durations of its steps; None without any."""
        took = sorted(step["seconds"] for step in self.steps)
        return took[len(took) // 2] if took else None

    @property
    def samples(self) -> list[Samples]:
        """The samples of every process and GPU."""
        return [process.samples for process in self.memory] + [gpu.samples for gpu in self.gpus]

    @cached_property
    def length_s(self) -> float:
        """The length of the time axis: the last known moment of the run; never 0."""
        moments = [self.took_s or 0.0]
        lasting: list[Phase | Pause] = [*self.phases, *self.pauses]
        moments += [moment for span in lasting for moment in (span.start_s, span.end_s or 0.0)]
        moments += [step["end_s"] for step in self.steps]
        moments += [samples[-1][0] for samples in self.samples]
        return max(moments) or 1.0

    def as_document(self) -> dict[str, Any]:
        """Return the parts of run.json."""
        return {name: value for name, value in vars(self).items() if name in _readers(Run)[0]}


def read_document(document: Mapping[str, Any], folder: Path = Path()) -> Run:
    """Return the run of a document, without the parts that are missing or malformed, and without secrets."""
    found = _fields_of(Run, document)
    found["command"] = without_secret_arguments(found.get("command", []))
    found["variables"] = without_secrets(found.get("variables", {}))
    found["first_error"] = found.get("first_error") or None
    found["step_count"] = max(found.get("step_count", 0), len(found.get("steps", [])))
    for name in ("phases", "pauses"):
        found[name] = sorted(found.get(name, []), key=lambda span: span.start_s)
    return Run(**found, folder=folder, document=document)


def read_changes(value: object) -> list[Change]:
    """Return the changes that a profile has made, from the list that the driver of the job has written."""
    return _list_of(Change)(value) or []


# How values are read: None for what is missing or impossible.

_Reader: TypeAlias = Callable[[Any], Any]


@cache
def _readers(kind: Any) -> tuple[dict[str, _Reader], set[str]]:
    """Return what reads each field of a part, and the names of the fields that it cannot be without."""
    hints = get_type_hints(kind, include_extras=True)
    parts = [part for part in fields(kind) if hasattr(hints[part.name], "__metadata__")]
    needed = {part.name for part in parts if part.default is MISSING and part.default_factory is MISSING}
    return {part.name: hints[part.name].__metadata__[0] for part in parts}, needed


def _fields_of(kind: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    readers, _ = _readers(kind)
    return {name: value for name, read in readers.items() if (value := read(row.get(name))) is not None}


def _list_of(kind: Any) -> Callable[[object], list[Any]]:
    def read(value: object) -> list[Any]:
        parts = []
        for row in _mappings(value):
            found = _fields_of(kind, row)
            if _readers(kind)[1] <= found.keys():
                if "end_s" in found:
                    found["end_s"] = max(found["start_s"], found["end_s"])
                for name in ("old", "new") if kind is Change else ():
                    found[name] = without_secret(found["key"], found.get(name, "null"))
                parts.append(kind(**found))
        return parts

    return read


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _documents(value: object) -> list[Any]:
    return [scrubbed_texts(row) for row in _mappings(value)]


def _list_of_texts(value: object) -> list[dict[str, str]]:
    return [_texts(row) for row in _mappings(value)]


def _texts(value: object) -> dict[str, str]:
    return {str(key): _text(text) or "" for key, text in value.items()} if isinstance(value, dict) else {}


def _words(value: object) -> list[str]:
    return [_text(word) or "" for word in value] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    if value is None or value == "":
        return None
    text = str(value)
    if len(text) > MOST_TEXT:
        return f"{_scrubbed(text[:MOST_TEXT])} ... and {len(text) - MOST_TEXT:,} more characters"
    return _scrubbed(text)  # again: the record may be of somebody else, or of an earlier raydebug


_scrubbed = lru_cache(4096)(scrubbed)  # most texts of a record are there many times


def _value(value: object) -> str | None:
    """Return a setting's value as YAML and Hydra write it."""
    return str(value).lower() if isinstance(value, bool) else "" if value == "" else _text(value)


def _integer(value: object) -> int | None:
    return value if type(value) is int else None


def _number(value: object) -> float | None:
    if type(value) is float and math.isfinite(value):
        return value
    with contextlib.suppress(OverflowError):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def _moment(value: object) -> float | None:
    """Return a moment of the run, at least 0: clocks of machines may differ."""
    seconds = _number(value)
    return None if seconds is None or abs(seconds) > MOST_S else max(0.0, seconds)


def _steps(value: object) -> list[Step]:
    steps: list[Step] = []
    for row in _mappings(value):
        step, end_s, seconds = _number(row.get("step")), _moment(row.get("end_s")), _moment(row.get("seconds"))
        if step is not None and end_s is not None and seconds is not None:
            metrics = _metrics(row.get("metrics"))
            steps.append({"step": int(step), "end_s": end_s, "seconds": seconds, "metrics": metrics})
    return sorted(steps, key=lambda step: step["end_s"])


def _metrics(value: object) -> dict[str, float]:
    """Return the metrics that are numbers; "NaN" too: strict JSON cannot write it otherwise."""
    metrics = {}
    for name, number in value.items() if isinstance(value, dict) else ():
        if isinstance(number, int | float | str):
            with contextlib.suppress(ValueError, OverflowError):
                metrics[str(name)] = float(number)
    return metrics


def _samples_of(width: int) -> Callable[[object], Samples | None]:
    def read(value: object) -> Samples | None:
        rows = (row for row in value if isinstance(row, list) and len(row) == width) if isinstance(value, list) else ()
        samples = (tuple([_measurement(number) for number in row]) for row in rows)
        known = [sample for sample in samples if 0 <= sample[0] <= MOST_S and any(mib >= 0 for mib in sample[1:])]
        return sorted(known, key=lambda sample: sample[0]) or None

    return read


def _measurement(value: object) -> float:
    """Return a measurement; NaN for any other value. A run has tens of thousands of them."""
    if (type(value) is int or type(value) is float) and 0 <= value <= MOST_NUMBER:
        return value
    number = _number(value)
    return math.nan if number is None or number < 0 else number
