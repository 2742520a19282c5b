"""Rules: which mechanism a line of a log speaks of. They are data: one TOML file per area, in the folder `rules`.

A rule has these keys:
    class: name of the failure; several rules may have one.
    role: `cause` (explains the failure), `effect` (follows from a cause elsewhere), `symptom` (something has ended).
    any: patterns; one of them matches a line.
    near: patterns; one of them matches within `within` lines of the same process, or a frame of the same traceback.
    not_near: patterns; none of them does.
    frame: patterns; one of them matches `file:function` of the frame that raised the exception of the line, or that
        called Python's own library, which raised it.
    not_frame: patterns; none of them matches the frame that raised it, or that called Python's own library. In them
        {users} stands for a frame that is of no framework and no package.
    within: lines before and after; 30 unless given.
    fatal: false for a line that a healthy run may have too: it counts only where the run has failed otherwise, and
        makes no progress after it.
    info: true for a line that counts although the program writes it as information, if no progress follows: it waits.
    rank: 0 to 9, which of several causes on one exception is the more exact one; 5 unless given.
    title, cause, fix: words for people; {name} is a named group of the pattern.
    apply: fixes that can be applied to the user's command, of which the first that fits counts. Each has
        when: a pattern that the line also matches, with named groups of its own; any line unless given.
        override: settings in raydebug's words (trainers/registry.py `words`) and their values, as fix.py reads them.
        variable: environment variables and their values.
    source: who raises it, with versions. example: a line that it must match.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any, TypeAlias, cast

from raydebug.diagnose.prefilter import Prefilter
from raydebug.diagnose.raised import LIBRARY, Raised
from raydebug.diagnose.read import Line
from raydebug.diagnose.scan import Stop, never
from raydebug.diagnose.signs import EXITED, FATAL, FINISHED, PROGRESS, START, STEP, WORK

SIGNS = (*FINISHED, *FATAL, r"(Error|Exception)\b")
# Words and a number are a measurement, and no message: `error rate 0.0`, `abort_threshold=3`, `fatal flaws found: 0`.
_MEASUREMENT = re.compile(r"^[^\d:=]{0,80}[ :=]{1,3}\d[\d.]*%?\W*$")

CAUSE, EFFECT, SYMPTOM = "cause", "effect", "symptom"
ROLES = (SYMPTOM, EFFECT, CAUSE)
_PATTERN_KEYS = {"any", "near", "not_near", "frame", "not_frame"}
SHORT = 400  # characters; a longer text meets RE2, which needs time in proportion to its length, where RE2 can do it
STOP_LINES = 256  # after which it is asked whether to stop
PLACEHOLDERS = {"{users}": f"^(?!.*(?:{LIBRARY})).*$"}  # of the rules' patterns
_OF_PYTHON = re.compile(r"/lib/python3\.\d+/(?!(site|dist)-packages/)|^<")


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
    any: Patterns
    role: str = CAUSE
    near: Patterns = ()
    not_near: Patterns = ()
    frame: Patterns = ()
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
    """A line that a rule explains."""

    rule: Rule
    index: int
    named: dict[str, str]
    raised: Raised | None  # the exception that the line is of
    direct: bool = True  # the line itself matches, and not only the rest of a message of several lines


@cache
def load_rules() -> tuple[Rule, ...]:
    """Return all rules.

    Raises:
        ValueError: a file is no TOML, or a rule lacks a key or has an unknown one.
    """
    found: list[Rule] = []
    for file in sorted(resources.files("raydebug.diagnose").joinpath("rules").iterdir(), key=lambda one: one.name):
        if file.name.endswith(".toml"):
            found += [_rule(row, file.name) for row in tomllib.loads(file.read_text(encoding="utf-8"))["rule"]]
    return tuple(found)


def _rule(row: dict[str, Any], where: str) -> Rule:
    values = {"name" if key == "class" else key: value for key, value in row.items()}
    try:
        for key in _PATTERN_KEYS & values.keys():
            texts = [values[key]] if isinstance(values[key], str) else values[key]
            values[key] = tuple(re.compile(PLACEHOLDERS.get(text, text)) for text in texts)
        values["apply"] = tuple(
            Remedy(re.compile(one.get("when", "")), one.get("override", {}), one.get("variable", {}))
            for one in row.get("apply", [])
        )
        return Rule(**values)
    except (TypeError, re.error) as error:
        raise ValueError(f"{where}: rule {row.get('class')!r}: {error}") from error


@cache
def _patterns() -> tuple[tuple[int, re.Pattern[str]], ...]:
    """Return all patterns, each with the number of its rule."""
    return tuple((number, pattern) for number, rule in enumerate(load_rules()) for pattern in rule.any)


@cache
def prefilter() -> Prefilter:
    """Return what finds the lines that a rule may explain, and those of SIGNS; its marks are PROGRESS and START."""
    return Prefilter([*(pattern.pattern for _, pattern in _patterns()), *SIGNS], marks=[*PROGRESS, *START])


@lru_cache(1000)  # lines repeat; of those that do not, this is asked once
def _candidates(text: str) -> frozenset[int]:
    return prefilter().find(text.encode("utf-8", "surrogatepass"))


@cache
def _signs() -> dict[int, tuple[frozenset[str], re.Pattern[str]]]:
    """Return the signs by their numbers in the prefilter, each with what it is a sign of."""
    kinds = {STEP: "step", WORK: "work", START: "start", FINISHED: "end", FATAL: "fatal", EXITED: "exit"}
    return {
        number: (frozenset(kind for patterns, kind in kinds.items() if one in patterns), re.compile(one))
        for number, one in enumerate((*SIGNS, *PROGRESS, *START), start=len(_patterns()))
    }


@lru_cache(10_000)  # lines repeat
def signs_of(text: str) -> frozenset[str]:
    """Return what a line is a sign of: `step`, `work`, `start`, `end`, `fatal`, `exit`; see signs.py."""
    found = frozenset[str]()
    for number in _candidates(text) & _signs().keys():
        kinds, pattern = _signs()[number]
        if not kinds <= found and search(pattern, text):
            found |= kinds
    is_measurement = "fatal" in found and "exit" not in found and _MEASUREMENT.match(text)
    return found - {"fatal"} if is_measurement else found


def find_hits(lines: Sequence[Line], raised: Sequence[Raised], stop: Stop = never) -> list[Hit]:
    """Return what the rules say of the lines, in the order of the lines; of each rule the first match in a line."""
    of_line = {one.index: one for one in raised}
    found = []
    for index, line in enumerate(lines):
        if index % STOP_LINES == 0 and stop():
            break
        error = of_line.get(index)
        caller, inner = _raising_frames(error)
        for rule, match, direct in _matches(line.text, error.more if error is not None else ""):
            if rule.near and not _is_near(rule.near, rule, index, lines, error):
                continue
            if rule.not_near and _is_near(rule.not_near, rule, index, lines, error):
                continue
            if rule.frame and not (_first_match(rule.frame, caller) or _first_match(rule.frame, inner)):
                continue
            if rule.not_frame and caller and _first_match(rule.not_frame, caller):
                continue
            named = {name: value for name, value in match.groupdict().items() if value}
            found.append(Hit(rule, index, named, error, direct))
    return found


@lru_cache(10_000)  # lines repeat
def _matches(text: str, more: str) -> list[tuple[Rule, re.Match[str], bool]]:
    """Return the rules with a pattern that matches a line, or the line with the rest of its message: not directly."""
    whole = f"{text} {more}" if more else text
    of_rule: dict[int, list[re.Pattern[str]]] = {}
    for number in sorted(_candidates(whole)):
        if number < len(_patterns()):
            rule, pattern = _patterns()[number]
            of_rule.setdefault(rule, []).append(pattern)
    found = []
    for rule, patterns in of_rule.items():
        match = _first_match(patterns, text)
        if match is not None or (match := _first_match(patterns, whole)) is not None:
            found.append((load_rules()[rule], match, match.string == text))
    return found


def _first_match(patterns: Sequence[re.Pattern[str]], text: str) -> re.Match[str] | None:
    return next((match for pattern in patterns if (match := search(pattern, text))), None)


def search(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Search a text of any length in time that is proportional to it."""
    return (pattern if len(text) <= SHORT else _linear(pattern)).search(text)


@cache
def _linear(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Return the pattern as one of RE2, or itself if it looks around: such ones are written without nested repeats."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return cast("re.Pattern[str]", re2.compile(pattern.pattern, options))
    except re2.error:
        return pattern


def _raising_frames(error: Raised | None) -> tuple[str, str]:
    """Return `file:function` of the last frame outside of Python's own library, and of the last one; empty if none."""
    frames = [f"{file}:{function}" for file, _, function in error.frames] if error is not None else []
    outer = [frame for frame in frames if not _OF_PYTHON.search(frame)] or frames
    return (outer[-1], frames[-1]) if frames else ("", "")


def _is_near(
    patterns: Sequence[re.Pattern[str]], rule: Rule, index: int, lines: Sequence[Line], error: Raised | None
) -> bool:
    first = min(index - rule.within, error.first if error is not None else index)
    process = lines[index].process
    around = [line.text for line in lines[max(0, first) : index + rule.within + 1] if line.process == process]
    return any(search(pattern, text) for pattern in patterns for text in around)
