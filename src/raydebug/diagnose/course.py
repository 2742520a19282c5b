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
EXPLAINING_LINES = 4  # that may follow what a program says of its error
LATE_STEPS = 2  # of other processes, that Ray may print after the end of the driver: it holds repeated lines for 5 s

# What stands before an exception that is only reported: cpython 3.11 threading.py, atexit, asyncio, multiprocessing.
TEARDOWN = re.compile(
    r"Exception (ignored )?in |Error in (atexit|sys\.)|was never retrieved|^future: <Task"
    r"|^Process (?!EngineCore|VllmWorker)\S+:$|[Ss]hut(ting)? ?down|[Tt]eardown"
)
# What programs say behind an end: wandb's summary, hints of hydra and torch, advice.
_NOISE = re.compile(
    r"^wandb: |^Set the environment variable HYDRA|^For (more|debugging)|^Compile with"
    r"|^(please|see|check|to|use|try|if) |^[-=*#~_\s]*$|^[\]})]|^\S+ exited\b|leaked",
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
        # By kind of sign and log, or process of a log: the places of its lines.
        self._at: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for index, line in enumerate(lines):
            if not line.is_repeated and (signs := signs_of(line.text)):
                self._take(index, line, signs)
        self._steps_from = {
            source: self._count_steps(source) for source in dict.fromkeys(line.source for line in lines)
        }
        for event in events:
            is_told = event.kind == RECORD and event.producer in PROGRAMS and event.level in ("", "INFO")
            if is_told and not _NOISE.search(event.text):
                self._at["told", event.line.source, event.line.process].append(event.index)
                self._at["told", event.line.source].append(event.index)
        self.ended = {event for event in events if self._is_end(event)}
        for event in events:
            if event.kind in (EXIT, FATAL) or event in self.ended:
                self._at["stop", event.line.source].append(event.index)

    def _take(self, index: int, line: Line, signs: frozenset[str]) -> None:
        kinds = ["start", "phase"] if "start" in signs else []
        if line.level != ECHO and signs & {"end", "step", "work"}:
            kinds += ["end"] if "end" in signs else ["step", "phase"] if "step" in signs else []
            self._at["work", line.source, line.process].append(index)
        for kind in kinds:
            self._at[kind, line.source].append(index)

    def _count_steps(self, source: str) -> list[int]:
        """Return how many different lines tell of progress of a log from each of them on."""
        counts, texts = [0], set[str]()
        for index in reversed(self._at["step", source]):
            texts.add(self._lines[index].text)
            counts.append(len(texts))
        return counts[::-1]

    def _steps_after(self, source: str, index: int) -> int:
        return self._steps_from[source][bisect_right(self._at["step", source], index)]

    def _is_after(self, index: int, *sign: str) -> bool:
        """Return whether a log, or a process of one, has such a sign after a line."""
        return self._at[sign][-1:] > [index]

    def _is_end(self, event: Event) -> bool:
        """Return whether an event is the end of the driver, or of the engine, and not taken back."""
        source, index = event.line.source, event.index
        if is_uncaught(event):
            return not self.is_handled(event) and not self._driver_went_on(event)
        is_engines = _ENGINE_ENDS.search(event.text) or _ENGINE_ENDS.search(event.intro)
        is_back = self._is_after(index, "start", source) or self._is_after(index, "step", source)
        return is_engines is not None and event.level not in ("WARNING", "INFO", "DEBUG") and not is_back

    def _driver_went_on(self, event: Event) -> bool:
        source, index = event.line.source, event.index
        works = self._at["work", source, event.line.process]
        own = [self._lines[at].text for at in works[bisect_right(works, index) :]]
        bars = {text for text in own if _BAR.search(text)}  # tqdm writes the last state of a bar once more
        if len(bars) > 1 or len(own) > len(bars) or self._is_after(index, "start", source):
            return True
        tells = event.is_loose or self._is_after(index, "told", source, event.line.process)
        has_trace = bool(event.frames) or bool(event.carried)
        return (tells or not has_trace) and self._steps_after(source, index) > LATE_STEPS

    def is_handled(self, event: Event) -> bool:
        """Return whether a program only reports an exception: a thread or callback ends with it, or more is told."""
        tells = event.is_loose or self._is_after(event.index, "told", event.line.source, event.line.process)
        is_reported = event.is_reported and not event.level and tells
        return event.kind == EXCEPTION and (TEARDOWN.search(event.intro) is not None or is_reported)

    def went_on(self, event: Event) -> bool:
        """Return whether the run, or the process of an event, made progress or ended well after it."""
        source, index = event.line.source, event.index
        if event in self.ended:
            return False
        if self._is_after(index, "end", source) or self.process_went_on(event):
            return True
        stops = self._at["stop", source]
        stop = next(iter(stops[bisect_right(stops, index) :]), index)
        late = self._steps_after(source, stop)
        return self._steps_after(source, index) > (late if stop > index and late <= LATE_STEPS else 0)

    def tells_on(self, event: Event) -> bool:
        """Return whether the programs of a log tell of more than an error's own explanation after an event."""
        told = self._at["told", event.line.source]
        return len(told) - bisect_right(told, event.index) > EXPLAINING_LINES

    def process_went_on(self, event: Event) -> bool:
        """Return whether the process of an event made progress after it."""
        return event not in self.ended and self._is_after(event.index, "work", event.line.source, event.line.process)

    def end_before(self, event: Event) -> int | None:
        """Return the line that says that the run has ended well, before an event and without a start between."""
        ends, phases = self._at["end", event.line.source], self._at["phase", event.line.source]
        at, phase = bisect_left(ends, event.first), bisect_left(phases, event.first)
        is_over = at and not (phase and phases[phase - 1] > ends[at - 1])
        return ends[at - 1] if is_over else None

    def is_open(self, event: Event) -> bool:
        """Return whether the run did not get past an event; after its end only what ended the program counts."""
        end = self.end_before(event)
        if self.went_on(event) or end is None:
            return end is None and not self.went_on(event)
        if not (event.is_drivers or event.line.process == self._lines[end].process):
            return False
        if event.kind != EXCEPTION:
            return "exit" in event.signs and not _ENDED.search(event.text)
        is_teardown = TEARDOWN.search(event.intro) or _LOGGERS.search(event.raising_frames[1])
        return bool(event.frames) and not is_teardown

    def cut_off(self) -> list[str]:
        """Return a note for each log that stops at a step."""
        steps = {source: self._at["step", source] for source in self._steps_from}
        last = [at[-1] for source, at in steps.items() if at[-1:] > self._at["end", source][-1:]]
        notes = [
            f"{line.source} has no end of the run after line {line.number}: it still runs, or was ended from outside: "
            f"{line.text.strip()[:SHOWN_CHARS]}"
            for line in (self._lines[index] for index in last)
        ]
        more = len(notes) - SHOWN_LOGS
        return [*notes[:SHOWN_LOGS], *([f"{more} more logs have no end of the run"] if more > 0 else [])]


def is_uncaught(event: Event) -> bool:
    """Say whether an event is an exception that reached the main program: no record, thread or callback reports it."""
    is_reported = event.level != "" or TEARDOWN.search(event.intro) is not None
    return event.kind == EXCEPTION and event.is_drivers and not is_reported
