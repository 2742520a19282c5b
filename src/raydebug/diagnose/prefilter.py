"""Which of many patterns may match a text, by the literal texts that each match contains, all found by one RE2 set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, cast

MIN_LITERAL = 3  # bytes
MAX_CLAUSES = 3  # of a pattern
SHORT = 400  # characters; a longer text meets RE2, which needs time in proportion to its length, where RE2 can do it
SET_BYTES = 256 * 1024 * 1024  # limit of RE2 for its automaton; it takes what it needs

_parse: Any = re._parser.parse  # type: ignore[attr-defined]  # CPython 3.11 to 3.13: re/_parser.py


def clauses(pattern: str) -> tuple[frozenset[str], ...]:
    """Return what is in every match of a pattern, in this order: of each set one text, in lower case."""
    sets = _of_sequence(_parse(pattern))
    longest = sorted(range(len(sets)), key=lambda at: -min(map(len, sets[at])))[:MAX_CLAUSES]
    return tuple(sets[at] for at in sorted(longest))


def _of_sequence(items: Any) -> list[frozenset[str]]:
    sets: list[frozenset[str]] = []
    run = ""
    for operator, value in [*items, (None, None)]:
        name = str(operator)
        if name == "LITERAL":
            run += chr(value).lower()
            continue
        if len(run.encode()) >= MIN_LITERAL:
            sets.append(frozenset((run,)))
        run = ""
        if name == "SUBPATTERN":
            sets += _of_sequence(value[-1])
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and value[0] >= 1:
            sets += _of_sequence(value[2])
        elif name == "BRANCH":
            sets += _of_branches([_of_sequence(branch) for branch in value[1]])
    return sets


def _of_branches(branches: list[list[frozenset[str]]]) -> list[frozenset[str]]:
    """Return what is in a match whichever branch it takes: one text of the best clause of each."""
    if not all(branches):
        return []
    best = [max(branch, key=lambda texts: min(map(len, texts))) for branch in branches]
    return [frozenset[str]().union(*best)]


class Prefilter:
    """Says which of some patterns may match a text, by the literal texts that are in every match of each.

    Args:
        patterns: regular expressions.
        marks: further ones, which a healthy run matches all the time: of their lines only the last one is of interest.

    Attributes:
        numbers: of all patterns.
        marks: these further ones, by number.

    Raises:
        ValueError: a pattern has no literal text.
    """

    def __init__(self, patterns: Sequence[str], marks: Sequence[str] = ()) -> None:
        ids: dict[str, int] = {}
        self._of_literal: list[list[tuple[int, int]]] = []  # by literal: patterns and their clauses
        self._clauses: list[tuple[frozenset[str], ...]] = []  # by pattern
        self.numbers = frozenset(range(len(patterns) + len(marks)))
        self.marks = {len(patterns) + at: re.compile(pattern) for at, pattern in enumerate(marks)}
        for number, pattern in enumerate([*patterns, *marks]):
            needed = clauses(pattern)
            if not needed:
                raise ValueError(f"no literal text is in every match of {pattern!r}")
            self._clauses.append(needed)
            for clause, texts in enumerate(needed):
                for text in texts:
                    if ids.setdefault(text, len(ids)) == len(self._of_literal):
                        self._of_literal.append([])
                    self._of_literal[ids[text]].append((number, clause))
        self._set = _search_set(ids)
        self._of_literals = lru_cache(10_000)(self._of)  # lines of one kind have the same literals

    def find(self, text: bytes) -> frozenset[int]:
        """Return the numbers of the patterns that may match a text, or one line of it."""
        literals = self._set.Match(text)  # None where nothing matches
        return self._of_literals(tuple(literals)) if literals else frozenset()

    def _of(self, literals: tuple[int, ...]) -> frozenset[int]:
        met: dict[int, set[int]] = {}
        for literal in literals:
            for number, clause in self._of_literal[literal]:
                met.setdefault(number, set()).add(clause)
        return frozenset(number for number, clauses in met.items() if len(clauses) == len(self._clauses[number]))


def _search_set(texts: Iterable[str]) -> Any:
    import re2  # google-re2: 40 ms that verbs which read no log do without

    options = re2.Options()
    options.case_sensitive = False
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = SET_BYTES
    search_set = re2.Set.SearchSet(options)
    for text in texts:
        search_set.Add(re.escape(text.encode("utf-8")))
    search_set.Compile()
    return search_set


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
