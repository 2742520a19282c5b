"""A run as values that a page can be drawn from; `reading` makes one of a document. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Phase:
    """A part of the run; `end_s` is None for one that had not ended."""

    name: str
    start_s: float
    end_s: float | None


@dataclass(frozen=True)
class Step:
    """A training step; metrics may be NaN or infinite, which is worth showing."""

    step: int
    end_s: float
    seconds: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Process:
    """The memory of a process: samples of (seconds, MiB), in order."""

    name: str
    node: str
    samples: list[tuple[float, ...]]


@dataclass(frozen=True)
class Gpu:
    """A GPU: samples of (seconds, MiB in use, % busy), in order; NaN where one of both is unknown."""

    name: str
    node: str
    total_mib: float
    samples: list[tuple[float, ...]]


@dataclass(frozen=True)
class Pause:
    """A pause; `end_s` is None for one that nobody had let go."""

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
    """A run, or a check, as its page shows it; `texts` are findings and the first error, as the document has them."""

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
    memory: list[Process]
    gpus: list[Gpu]
    pauses: list[Pause]
    findings: list[dict[str, str]]
    log: str

    @property
    def took_s(self) -> float | None:
        """From start to end; None for a run that goes on, or whose clock was set back."""
        if self.started is None or self.ended is None or self.ended < self.started:
            return None
        return self.ended - self.started

    @property
    def samples(self) -> list[list[tuple[float, ...]]]:
        """The samples of every process and GPU."""
        return [process.samples for process in self.memory] + [gpu.samples for gpu in self.gpus]

    @cached_property
    def length_s(self) -> float:
        """How far the time axis goes: to the last thing that is known of the run; never 0."""
        known = [self.took_s or 0.0]
        known += [moment for phase in self.phases for moment in (phase.start_s, phase.end_s or 0.0)]
        known += [moment for pause in self.pauses for moment in (pause.start_s, pause.end_s or 0.0)]
        known += [step.end_s for step in self.steps]
        known += [samples[-1][0] for samples in self.samples]
        return max(known) or 1.0
