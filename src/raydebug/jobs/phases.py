"""How long each part of a run took, read off its log as it arrives. Pure.

A phase ends with a line of the log. Where that has a time stamp of its own, the difference of two stamps counts; the
log of a worker reaches the driver's up to seconds later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from raydebug.runs.record import Phase, Step
from raydebug.trainers.registry import TRAINERS
from raydebug.trainers.trainer import Trainer

RAY = "driver: imports, Ray"
FIRST_STEP = "first step"
# Of a long training every second step is left out, then every second of these, but not the first and the last ones:
# rules about its numbers compare with them (trainers/verl/numbers.py).
MOST_STEPS, FIRST_STEPS, LAST_STEPS = 2_000, 10, 100
MOST_TAKEN = 1_000  # phases that vLLM says to have taken
# The line that ends a phase of every job. Source: ray 2.60.0 _private/worker.py:2029; a trainer's are in its folder.
CONNECTED = (RAY, re.compile(r"Connected to Ray cluster\."))
# What vLLM itself says to have taken, where its log is shown. Source: vllm 0.24.0 and 0.28.0,
# model_executor/model_loader, compilation/backends.py, v1/worker/gpu_model_runner.py.
TAKEN: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("vLLM: weights", re.compile(r"Loading (?:model )?weights took ([\d.]+) sec")),
    ("vLLM: compile", re.compile(r"torch\.compile (?:takes|took) ([\d.]+) s")),
    ("vLLM: graphs", re.compile(r"Graph capturing finished in ([\d.]+) sec")),
)


@dataclass
class Phases:
    """Collects the moments at which phases ended, and the steps.

    Args:
        started: when the job was submitted, in seconds of any clock that `take` is given too.
    """

    started: float
    ended: dict[str, float] = field(default_factory=dict)
    taken: list[Phase] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    step_count: int = 0  # those left out too
    trainer: Trainer | None = None  # whose log it is; while unknown, any trainer's lines count
    _every: int = 1  # of the steps between the first and the last ones, those with a multiple of this number are kept

    def take(self, line: str, now: float) -> None:
        """Record the phase that a line of the log ends."""
        trainers = TRAINERS if self.trainer is None else (self.trainer,)
        for name, pattern in (CONNECTED, *(phase for trainer in trainers for phase in trainer.log.phases.items())):
            if name not in self.ended and pattern.search(line):
                self.ended[name] = now
        for name, pattern in TAKEN:
            if (found := pattern.search(line)) and len(self.taken) < MOST_TAKEN:
                seconds = float(found[1])
                end_s = now - self.started
                self.taken.append(_phase(name, max(0.0, end_s - seconds), end_s))
        for trainer in trainers:
            if (reported := trainer.step_of(line)) is not None:
                self.trainer = trainer
                if reported["step"] == 1:
                    self.ended.setdefault(FIRST_STEP, now)
                kept = {name: value for name, value in reported["metrics"].items() if name in trainer.log.metrics}
                self._take_step(reported["step"], kept, kept.get(trainer.log.step_seconds), now - self.started)

    def _take_step(self, step: int, metrics: dict[str, float], seconds: float | None, end_s: float) -> None:
        if self.steps and step <= self.steps[-1]["step"]:  # a copy of the same line
            return
        if seconds is None:
            phases_s = (moment - self.started for name, moment in self.ended.items() if name != FIRST_STEP)
            before_s = self.steps[-1]["end_s"] if self.steps else max(phases_s, default=0.0)
            seconds = max(0.0, end_s - before_s)
        self.steps.append({"step": step, "end_s": round(end_s, 3), "seconds": round(seconds, 3), "metrics": metrics})
        self.step_count += 1
        if len(self.steps) > MOST_STEPS:
            middle = self.steps[FIRST_STEPS:-LAST_STEPS]
            while (kept := [other for other in middle if other["step"] % self._every == 0])[MOST_STEPS // 2 :]:
                self._every *= 2
            self.steps[FIRST_STEPS:-LAST_STEPS] = kept

    @property
    def current(self) -> str:
        """The name of the phase that is open."""
        if FIRST_STEP in self.ended or RAY not in self.ended:
            return "training" if FIRST_STEP in self.ended else "start"
        return "run" if self.trainer is None else FIRST_STEP

    def spans(self, end_s: float | None) -> list[Phase]:
        """Return the phases with their places in time, in seconds since the start.

        Args:
            end_s: when the run ended; None while it runs, and the last phase is open.
        """
        spans: list[Phase] = []
        before_s = 0.0
        for name, moment in sorted(self.ended.items(), key=lambda item: item[1]):
            spans.append(_phase(name, before_s, moment - self.started))
            before_s = moment - self.started
        if end_s is None or end_s > before_s:
            spans.append(_phase(self.current, before_s, end_s))
        return spans + self.taken


def _phase(name: str, start_s: float, end_s: float | None) -> Phase:
    return Phase(name=name, start_s=round(start_s, 3), end_s=None if end_s is None else round(end_s, 3))
