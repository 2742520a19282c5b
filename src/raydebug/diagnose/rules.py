"""Rules: which mechanism an event of a log speaks of. They are data: one TOML file per area, in the folder `rules`.

A rule has these keys; the fields of events are those of events.py. The table `default` of a file holds for its rules:
    class: name of the failure; several rules may have one.
    role: `cause` (explains the failure), `effect` (follows from a cause elsewhere), `symptom` (something has ended).
    producer: who must have written the event; `program` stands for all programs in Python, an empty list for anybody.
    kind: of the event; any but progress unless given.
    type: pattern of an exception's class, of a signal, or of a scheduler's reason.
    message: patterns; one of them matches the message, with an exception's class before it; any unless given.
    not_message: patterns; none of them matches the message.
    about: patterns; one of them matches a frame or source line of the exception, what it was raised over, what
        introduces it, or the message of an event of the same process within `within` lines.
    not_about: patterns; none of them does.
    frame: patterns; one of them matches `file:function` of the frame that raised the exception, or that called Python's
        own library, which raised it.
    frames: patterns; one of them matches `file:function` of any of its frames.
    not_frame: patterns; none of them matches the frame that raised it, or that called Python's own library. In them
        {users} stands for a frame that is of no framework and no package.
    within: lines before and after; 30 unless given.
    fatal: false for what a healthy run may say too: it counts only where the run has failed otherwise, and makes no
        progress after it.
    info: true for what counts although the program says it as information, if no progress follows: it waits.
    rank: 0 to 9, which of several causes on one exception is the more exact one; 5 unless given.
    title, cause, fix: words for people; {name} is a named group of the pattern.
    apply: fixes that can be applied to the user's command, of which the first that fits counts. Each has
        when: a pattern that the message also matches, with named groups of its own; any message unless given.
        override: settings in raydebug's words (trainers/registry.py `words`) and their values, as fix.py reads them.
        variable: environment variables and their values.
    source: who raises it, with versions. example: a text that it must explain.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any, TypeAlias

from raydebug.diagnose.events import EXCEPTION, KINDS, LIBRARY, PROGRAMS, PROGRESS, Event, is_users
from raydebug.diagnose.prefilter import Prefilter, search
from raydebug.diagnose.scan import Stop, never
from raydebug.diagnose.signs import BEGINNINGS, EXITED, FINISHED, PROGRESS_SIGNS, START

CAUSE, EFFECT, SYMPTOM = "cause", "effect", "symptom"
ROLES = (SYMPTOM, EFFECT, CAUSE)
STOP_EVENTS = 256  # after which it is asked whether to stop
PROGRAMS_BY = {"program": PROGRAMS}
PLACEHOLDERS = {"{users}": f"^(?!.*(?:{LIBRARY})).*$"}  # of the rules' patterns
_PATTERN_KEYS = {"message", "not_message", "about", "not_about", "frame", "frames", "not_frame"}
_WORD_KEYS = {"kind", "producer"}
_QUOTED = re.compile(r"(?<!\w)(['\"`])(.{12,}?)\1(?!\w)")  # a shorter text in quotes is a name


@dataclass(frozen=True)
class Remedy:
    """A fix that can be applied; see `apply` of the module."""

    when: re.Pattern[str]
    override: Mapping[str, str]
    variable: Mapping[str, str]


Patterns: TypeAlias = tuple[re.Pattern[str], ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Rule:
    """One rule; see the module."""

    name: str
    title: str
    cause: str
    fix: str
    message: Patterns = ()
    role: str = CAUSE
    producer: tuple[str, ...]
    kind: tuple[str, ...] = tuple(kind for kind in KINDS if kind != PROGRESS)
    type: re.Pattern[str] | None = None
    not_message: Patterns = ()
    about: Patterns = ()
    not_about: Patterns = ()
    frame: Patterns = ()
    frames: Patterns = ()
    not_frame: Patterns = ()
    within: int = 30
    fatal: bool = True
    info: bool = False
    rank: int = 5
    source: str = ""
    example: str = ""
    apply: tuple[Remedy, ...] = ()


@dataclass(frozen=True)
class Hit:
    """An event that a rule explains."""

    rule: Rule
    event: Event
    named: dict[str, str]
    direct: bool = True  # its first line matches, and not only the rest of a message of several lines


@cache
def load_rules() -> tuple[Rule, ...]:
    """Return all rules.

    Raises:
        ValueError: a file is no TOML, or a rule lacks a key or has an unknown one.
    """
    rules: list[Rule] = []
    for file in sorted(resources.files("raydebug.diagnose").joinpath("rules").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            document = tomllib.loads(file.read_text(encoding="utf-8"))
            rules += [_rule(document["default"] | row, file.name) for row in document["rule"]]
    return tuple(rules)


def _rule(row: dict[str, Any], where: str) -> Rule:
    values = {"name" if key == "class" else key: value for key, value in row.items()}
    try:
        for key in (_PATTERN_KEYS | _WORD_KEYS) & values.keys():
            texts = [values[key]] if isinstance(values[key], str) else values[key]
            values[key] = tuple(
                text if key in _WORD_KEYS else re.compile(PLACEHOLDERS.get(text, text)) for text in texts
            )
        values["producer"] = tuple(name for word in values["producer"] for name in PROGRAMS_BY.get(word, (word,)))
        if "type" in values:
            values["type"] = re.compile(values["type"])
        values["apply"] = tuple(
            Remedy(re.compile(row.get("when", "")), row.get("override", {}), row.get("variable", {}))
            for row in row.get("apply", [])
        )
        return Rule(**values)
    except (TypeError, re.error) as error:
        raise ValueError(f"{where}: rule {row.get('class')!r}: {error}") from error


@cache
def _patterns() -> tuple[tuple[int, re.Pattern[str]], ...]:
    """Return the patterns of messages, each with the number of its rule."""
    return tuple((number, pattern) for number, rule in enumerate(load_rules()) for pattern in rule.message)


@cache
def prefilter() -> Prefilter:
    """Return what finds the lines that may begin an event; its marks are those of the course of a run."""
    patterns = [*(pattern.pattern for _, pattern in _patterns()), *FINISHED, *EXITED, *BEGINNINGS]
    return Prefilter(patterns, marks=[*PROGRESS_SIGNS, *START])


def find_hits(events: Sequence[Event], stop: Stop = never) -> list[Hit]:
    """Return what the rules say of the events, in their order; of each rule the first match in an event."""
    hits: list[Hit] = []
    for at, event in enumerate(events):
        if at % STOP_EVENTS == 0 and stop():
            break
        hits += (hit for hit in _hits_of(event) if _fits(hit.rule, at, events))
    return hits


def _hits_of(event: Event) -> Iterator[Hit]:
    """Yield what fits an event by itself."""
    for number, match, direct in _matches(event.text, event.more):
        if not _is_quoted(event, match, direct=direct):
            yield Hit(
                load_rules()[number], event, {name: text for name, text in match.groupdict().items() if text}, direct
            )
    if event.kind == EXCEPTION:
        yield from (Hit(rule, event, {}) for rule in _of_frames())


@lru_cache(10_000)  # lines repeat
def _matches(text: str, more: str) -> list[tuple[int, re.Match[str], bool]]:
    """Return the rules whose message matches a text, or the text with the rest of its message: not directly."""
    whole = f"{text} {more}" if more else text
    of_rule: dict[int, list[re.Pattern[str]]] = {}
    for number in sorted(prefilter().find(whole.encode("utf-8", "surrogatepass"))):
        if number < len(_patterns()):
            rule, pattern = _patterns()[number]
            of_rule.setdefault(rule, []).append(pattern)
    matches: list[tuple[int, re.Match[str], bool]] = []
    for rule, patterns in of_rule.items():
        match = _first_match(patterns, text)
        if match is not None or (match := _first_match(patterns, whole)) is not None:
            # pydantic says in its first line only that what follows it is wrong.
            matches.append((rule, match, match.string == text or "validation error" in text))
    return matches


@cache
def _of_frames() -> tuple[Rule, ...]:
    """Return the rules that ask for no message, but for the frames of an exception."""
    return tuple(rule for rule in load_rules() if not rule.message)


def _is_quoted(event: Event, match: re.Match[str], *, direct: bool) -> bool:
    """Return whether a user's own exception is of something else: its words are the user's, quoted, or of a note."""
    if event.kind != EXCEPTION or not event.frames or not is_users(event.frames[-1][0]):
        return False
    if not direct or "".join(event.code[-1:]).startswith("raise "):
        return True
    return any(
        quoted.start(2) <= match.start() and match.end() <= quoted.end(2) for quoted in _QUOTED.finditer(match.string)
    )


def _fits(rule: Rule, at: int, events: Sequence[Event]) -> bool:
    """Return whether the other fields of an event are those of a rule."""
    event = events[at]
    if event.kind not in rule.kind or (rule.producer and event.producer not in rule.producer):
        return False
    if rule.type is not None and not rule.type.search(event.type):
        return False
    if rule.not_message and _has_any(rule.not_message, event.whole):
        return False
    if rule.frame or rule.frames or rule.not_frame:
        caller, inner = event.raising_frames
        if rule.frame and not (_has_any(rule.frame, caller) or _has_any(rule.frame, inner)):
            return False
        if rule.not_frame and caller and _has_any(rule.not_frame, caller):
            return False
        if rule.frames and not any(_has_any(rule.frames, f"{file}:{function}") for file, _, function in event.frames):
            return False
    if not (rule.about or rule.not_about):
        return True
    context = _context(at, events, rule.within)
    is_about = not rule.about or any(_has_any(rule.about, text) for text in context)
    return is_about and not any(_has_any(rule.not_about, text) for text in context)


def _context(at: int, events: Sequence[Event], within: int) -> list[str]:
    """Return what an event is about: its message, frames and source lines, and events of the process around it."""
    event = events[at]
    first = bisect_left(events, event.first - within, key=lambda event: event.index)
    last = bisect_right(events, event.index + within, key=lambda event: event.index)
    around = [
        near for near in events[first:last] if near.process == event.process or near.line.process == event.line.process
    ]
    texts = [event.whole, event.intro]
    for near in {id(near): near for near in (*around, event, *([event.inner] if event.inner else []))}.values():
        texts += [
            near.whole,
            *(f'File "{file}", line {line}, in {name}' for file, line, name in near.frames),
            *near.code,
        ]
    return texts


@lru_cache(50_000)  # frames and lines repeat
def _has_any(patterns: Patterns, text: str) -> bool:
    return _first_match(patterns, text) is not None


def _first_match(patterns: Sequence[re.Pattern[str]], text: str) -> re.Match[str] | None:
    return next((match for pattern in patterns if (match := search(pattern, text))), None)
