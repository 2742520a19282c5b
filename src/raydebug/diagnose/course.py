"""The course of a run: where each log makes progress, and where it ends well."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from raydebug.diagnose.read import ECHO, Line
from raydebug.diagnose.rules import signs_of

SHOWN_CHARS = 120
SHOWN_LOGS = 3


class Course:
    """What came before and after each line of the logs of a run.

    A step of the training is progress of its whole log, whichever process says so; other work only of the process that
    does it. Logs are not compared: their lines have no order. A step or a start after an end takes the end back: it is
    another phase.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._steps: defaultdict[str, list[int]] = defaultdict(list)  # by log
        self._ends: defaultdict[str, list[int]] = defaultdict(list)
        self._phases: defaultdict[str, list[int]] = defaultdict(list)  # steps and starts
        self._last: dict[tuple[str, str], int] = {}  # by log and process: its last sign of life
        for index, line in enumerate(lines):
            signs = signs_of(line.text)
            if not signs:
                continue
            if "start" in signs:
                self._phases[line.source].append(index)
            if line.level == ECHO:
                continue
            if "end" in signs:
                self._ends[line.source].append(index)
            elif "step" in signs:
                self._steps[line.source].append(index)
                self._phases[line.source].append(index)
            elif "work" not in signs:
                continue
            self._last[line.source, line.process] = index

    def went_on(self, index: int) -> bool:
        """Return whether the run, or the process of a line, made progress or ended well after it."""
        source = self._lines[index].source
        later = max(self._steps[source][-1:] + self._ends[source][-1:], default=-1)
        return later > index or self.process_went_on(index)

    def process_went_on(self, index: int) -> bool:
        """Return whether the process of a line made progress after it."""
        line = self._lines[index]
        return self._last.get((line.source, line.process), -1) > index

    def has_ended(self, index: int) -> bool:
        """Return whether the run had ended well before a line."""
        return self._end_before(index) is not None

    def is_main(self, index: int) -> bool:
        """Return whether a line is of the program that said that the run has ended, or has no process of its own."""
        line, end = self._lines[index], self._end_before(index)
        return line.process == line.source or (end is not None and line.process == self._lines[end].process)

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

    def _end_before(self, index: int) -> int | None:
        source = self._lines[index].source
        ends, phases = self._ends[source], self._phases[source]
        at, phase = bisect_left(ends, index), bisect_left(phases, index)
        if not at or (phase and phases[phase - 1] > ends[at - 1]):
            return None
        return ends[at - 1]
