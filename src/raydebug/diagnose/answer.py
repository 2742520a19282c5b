"""What a run's logs say: the possible causes, the best first, each with its evidence, its fix and whose error it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise

from raydebug.diagnose.events import EXCEPTION, MENTION, Event
from raydebug.diagnose.read import Line
from raydebug.protocol.secrets import scrubbed, scrubbed_texts

FAILURE, NO_FAILURE, UNKNOWN = "failure", "no-failure", "unknown"
EXACT, LIKELY, UNSURE = "exact", "likely", "unsure"
MOST_LINES = 400  # of one traceback; anything longer is broken output
_PID = re.compile(r"\bpid[= ](\d+)")


@dataclass(frozen=True)
class LoggedError:
    """One error in a log, as the record of a run has it."""

    kind: str  # the exception's class; of another line, the class of its diagnosis
    text: str  # its message, first line
    who: str  # the process or task that raised it, as far as known
    pid: int | None
    place: str  # the user's innermost frame, else the innermost; empty without frames
    file: str
    line: int  # from 1, where the error begins
    at: str  # as written; empty if unknown
    traceback: list[str]  # without colours and prefixes

    @property
    def title(self) -> str:
        """Its type and message on one line."""
        return f"{self.kind}: {self.text}" if self.text else self.kind

    @property
    def source_line(self) -> str:
        """The line of source at its place, as the traceback has it; empty without."""
        file, _, number = self.place.rpartition(":")
        at = f'File "{file}", line {number}, in '
        after = [below for row, below in pairwise(self.traceback) if at in row]
        return next((row.strip() for row in reversed(after) if row.startswith("    ")), "")  # a frame may have no line


def error_of(lines: Sequence[Line], event: Event, name: str, process: str = "") -> LoggedError:
    """Return the error that an event shows: the exception that it is, or an error of a class, in a process."""
    process, line = process or event.process, event.line
    pid = _PID.search(process)
    at = event.place
    is_raised = event.kind in (EXCEPTION, MENTION)
    return LoggedError(
        kind=event.type if is_raised else name,
        text=event.message if is_raised else line.text.strip(),
        who=process.replace(" pid=", ", pid "),
        pid=int(pid[1]) if pid else None,
        place=f"{at[0]}:{at[1]}" if at else "",
        file=line.source,
        line=lines[event.first].number,
        at=line.at or lines[event.first].at,
        traceback=[row.text for row in lines[event.first : event.index + 1] if row.process == line.process][
            -MOST_LINES:
        ],
    )


@dataclass
class Diagnosis:
    """One possible cause."""

    name: str  # its class
    confidence: str  # EXACT, LIKELY or UNSURE
    title: str
    cause: str
    fix: str
    evidence: list[Line]
    effects: list[str] = field(default_factory=list)  # classes that follow from it
    process: str = ""  # whose line it is
    settings: dict[str, str] = field(default_factory=dict)  # the fix in raydebug's words, where it is one; see fix.py
    variables: dict[str, str] = field(default_factory=dict)  # the fix as environment variables, where it is one
    error: LoggedError | None = None  # that the evidence shows
    command: str | None = None  # the user's command with the fix, where there is one and it is asked for

    def as_json(self) -> dict[str, object]:
        """Return what `--json` prints of it."""
        return {
            "class": self.name,
            "confidence": self.confidence,
            "title": self.title,
            "cause": self.cause,
            "fix": self.fix,
            "command": self.command,
            "evidence": [{"source": at.source, "line": at.number, "text": at.text} for at in self.evidence],
            "effects": self.effects,
            "process": {"name": self.process},
        }

    def as_first_error(self) -> dict[str, str]:
        """Return the first error as `run.json` has it, without secrets; `headline` and `origin` put it in words."""
        error = self.error
        first = {
            "kind": error.kind if error else self.name,
            "text": error.text if error else self.cause,
            "who": error.who if error else "",
            "place": error.place if error else "",
            "class": self.name, "confidence": self.confidence, "title": self.title, "cause": self.cause,
        }  # fmt: skip
        return {name: scrubbed(text) for name, text in first.items()}


def headline(first: Mapping[str, str]) -> tuple[str, str]:
    """Return what the first error of a run is, and the rest of the sentence; a record may have no diagnosis."""
    if "title" not in first:
        return first.get("kind", ""), f": {first['text']}" if first.get("text") else ""
    title, cause, confidence = first["title"], first.get("cause", ""), first.get("confidence", EXACT)
    certainty = "" if confidence == EXACT else f", {confidence}"
    cause = cause.removeprefix(f"{title.partition(' ')[0]}: ")  # ValueError in the program; ValueError: ...
    return title, f" ({first.get('class', '')}{certainty})" + (f"; {cause}" if cause and cause != title else "")


def origin(first: Mapping[str, str]) -> str:
    """Return which process the first error is of, and where; empty if neither is known."""
    who, place = first.get("who", ""), first.get("place", "")
    verb = "in" if first.get("kind") == first.get("class") else "raised by"
    return ", ".join(filter(None, (who and f"{verb} {who}", place and f"at {place}")))


@dataclass(frozen=True)
class Related:
    """What else a run has left."""

    kind: str  # `stacks`, `snapshot`, `again`
    command: str  # shows it
    text: str  # says what it is


@dataclass
class Answer:
    """What a run's logs say; the best diagnosis first."""

    status: str
    diagnoses: list[Diagnosis]
    related: list[Related] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what the answer does not cover

    @property
    def first(self) -> Diagnosis | None:
        """The first cause; None if nothing failed."""
        return next(iter(self.diagnoses), None)

    def as_json(self) -> dict[str, object]:
        """Return the document of `--json`, without secrets of the logs."""
        return {
            "version": 1,
            "status": self.status,
            "diagnoses": [scrubbed_texts(diagnosis.as_json()) for diagnosis in self.diagnoses],
            "related": [asdict(related) for related in self.related],
            "notes": self.notes,
        }
