"""The course of a run: where each log makes progress, where it ends well, and what it did not get past."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence

from raydebug.diagnose.events import EXCEPTION, EXIT, FATAL, PROGRAMS, RECORD, Event
from raydebug.diagnose.read import ECHO, Line
from raydebug.diagnose.signs import signs_of

SHOWN_CHARS = 120
SHOWN_LOGS = 3
LATE_STEPS = 2  # of other processes, that Ray may print after the end of the driver: it holds repeated lines for 5 s

# What stands before an exception that is only reported: cpython 3.11 threading.py, atexit, asyncio, multiprocessing.
TEARDOWN = re.compile(
    r"Exception (ignored )?in |Error in (atexit|sys\.)|was never retrieved|^future: <Task|^Process \S+:$|[Ss]hut(ting)? ?down"
    r"|[Tt]eardown"
)
# What programs say behind an end: wandb's summary, hints of hydra and torch, advice.
_NOISE = re.compile(
    r"^wandb: |^Set the environment variable HYDRA|^For (more|debugging)|^Compile with|^(please|see|check|to|use|try|if) "
    r"|^[-=*#~_\s]*$|^[\]})]|^\S+ exited\b|leaked",
    re.IGNORECASE,
)
_ENDED = re.compile(r"\b(?:137|143|-9|-15)\b|SIGTERM|SIGKILL")  # by who needed it no more
_LOGGERS = re.compile(r"/(?:wandb|mlflow|swanlab|neptune|comet_ml|clearml|tensorboard\w*)/")
# vLLM 0.6-0.28 v1/engine/core.py, core_client.py; sglang 0.3-0.5 managers/scheduler.py: the engine is no more.
_ENGINE_ENDS = re.compile(
    r"EngineCore (?:encountered|hit|failed)|EngineDeadError|Got fatal signal from worker|[Ww]orker proc \S+ died"
    r"|Scheduler hit an exception"
)
_BAR = re.compile(r"\d+%\|")


class Course:
    """What came before and after each event of the logs of a run.

    A step of the training is progress of its whole log, whichever process says so; other work only of the process that
    does it. Logs are not compared: their lines have no order. A step or a start after an end takes the end back: it is
    another phase. What ended the driver, or the engine, is taken back by nothing that another process says.
    """

    def __init__(self, lines: Sequence[Line], events: Sequence[Event]) -> None:
        self._lines = lines
        self._steps: defaultdict[str, list[int]] = defaultdict(list)  # by log
        self._ends: defaultdict[str, list[int]] = defaultdict(list)
        self._starts: defaultdict[str, list[int]] = defaultdict(list)
        self._phases: defaultdict[str, list[int]] = defaultdict(list)  # steps and starts
        self._work: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # by log and process: signs of life
        self._said: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # by log and process: what it tells
        for index, line in enumerate(lines):
            if not line.is_repeated and (signs := signs_of(line.text)):
                self._take(index, line, signs)
        for event in events:
            if (
                event.kind == RECORD
                and event.producer in PROGRAMS
                and event.level in ("", "INFO")
                and not _NOISE.search(event.text)
            ):
                self._said[event.line.source, event.line.process].append(event.index)
        self.ended = {event for event in events if self._is_end(event)}
        self._stops: defaultdict[str, list[int]] = defaultdict(list)  # by log: where it says that it has failed
        for event in events:
            if event.kind in (EXIT, FATAL) or event in self.ended:
                self._stops[event.line.source].append(event.index)

    def _take(self, index: int, line: Line, signs: frozenset[str]) -> None:
        if "start" in signs:
            self._starts[line.source].append(index)
            self._phases[line.source].append(index)
        if line.level == ECHO:
            return
        if "end" in signs:
            self._ends[line.source].append(index)
        elif "step" in signs:
            self._steps[line.source].append(index)
            self._phases[line.source].append(index)
        elif "work" not in signs:
            return
        self._work[line.source, line.process].append(index)

    def _is_end(self, event: Event) -> bool:
        """Return whether an event is the end of the driver, or of the engine, and not taken back."""
        source, index = event.line.source, event.index
        if is_uncaught(event):
            return not self.is_handled(event) and not self._driver_went_on(event)
        is_engines = _ENGINE_ENDS.search(event.text) or _ENGINE_ENDS.search(event.intro)
        if not is_engines or event.level in ("WARNING", "INFO", "DEBUG"):
            return False
        return not self._starts[source][-1:] > [index] and not self._steps[source][-1:] > [index]

    def _driver_went_on(self, event: Event) -> bool:
        source, index = event.line.source, event.index
        own = [at for at in self._work[source, event.line.process] if at > index]
        bars = {self._lines[at].text for at in own if _BAR.search(self._lines[at].text)}
        if len(bars) > 1 or len(own) > len(bars) or self._starts[source][-1:] > [index]:
            return True
        says_more = event.is_loose or self._said[source, event.line.process][-1:] > [index] or not _has_trace(event)
        return says_more and self._steps_after(source, index) > LATE_STEPS

    def _steps_after(self, source: str, index: int) -> int:
        """Return how many different lines tell of progress of a log after one of its lines."""
        steps = self._steps[source]
        return len({self._lines[at].text for at in steps[bisect_right(steps, index) :]})

    def is_handled(self, event: Event) -> bool:
        """Return whether a program only reports an exception: a thread or callback ends with it, or more is told."""
        if event.kind != EXCEPTION or TEARDOWN.search(event.intro):
            return event.kind == EXCEPTION
        said = self._said[event.line.source, event.line.process]
        return event.is_reported and (event.is_loose or said[-1:] > [event.index])

    def went_on(self, event: Event) -> bool:
        """Return whether the run, or the process of an event, made progress or ended well after it."""
        if event in self.ended:
            return False
        source, index = event.line.source, event.index
        if self._ends[source][-1:] > [index] or self.process_went_on(event):
            return True
        stops = self._stops[source]
        stop = next(iter(stops[bisect_right(stops, index) :]), None)
        if stop is not None and self._steps_after(source, stop) <= LATE_STEPS:
            return self._steps_after(source, index) > self._steps_after(source, stop)
        return self._steps_after(source, index) > 0

    def process_went_on(self, event: Event) -> bool:
        """Return whether the process of an event made progress after it."""
        return event not in self.ended and self._work[event.line.source, event.line.process][-1:] > [event.index]

    def has_ended(self, event: Event) -> bool:
        """Return whether the run had ended well before an event."""
        return self._end_before(event) is not None

    def is_open(self, event: Event) -> bool:
        """Return whether the run did not get past an event; after its end only what ended the program counts."""
        if self.went_on(event):
            return False
        end = self._end_before(event)
        if end is None:
            return True
        if not (event.is_drivers or event.line.process == self._lines[end].process):
            return False
        if event.kind != EXCEPTION:
            return "exit" in event.signs and not _ENDED.search(event.text)
        is_loggers = bool(event.frames) and _LOGGERS.search(event.frames[-1][0]) is not None
        return bool(event.frames) and not TEARDOWN.search(event.intro) and not is_loggers

    def cut_off(self) -> list[str]:
        """Return a note for each log that stops at a step."""
        last = [steps[-1] for source, steps in self._steps.items() if steps[-1:] > self._ends[source][-1:]]
        notes = [
            f"{line.source} has no end of the run after line {line.number}: it still runs, or was ended from outside: "
            f"{line.text.strip()[:SHOWN_CHARS]}"
            for line in (self._lines[index] for index in last)
        ]
        more = len(notes) - SHOWN_LOGS
        return [*notes[:SHOWN_LOGS], *([f"{more} more logs have no end of the run"] if more > 0 else [])]

    def _end_before(self, event: Event) -> int | None:
        source = event.line.source
        ends, phases = self._ends[source], self._phases[source]
        at, phase = bisect_left(ends, event.first), bisect_left(phases, event.first)
        if not at or (phase and phases[phase - 1] > ends[at - 1]):
            return None
        return ends[at - 1]


def is_uncaught(event: Event) -> bool:
    """Say whether an event is an exception that reached the main program: no record, thread or callback reports it."""
    is_reported = event.level != "" or TEARDOWN.search(event.intro) is not None
    return event.kind == EXCEPTION and event.is_drivers and not is_reported


def _has_trace(event: Event) -> bool:
    return bool(event.frames) or bool(event.carried)
