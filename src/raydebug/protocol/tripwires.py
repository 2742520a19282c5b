"""The conditions of `run --stop-when`: a small language. The host checks them, the trainer's process evaluates them.

    CONDITION := TEST [for N steps]
    TEST      := METRIC OPERATOR NUMBER | nan(METRIC) | inf(METRIC) | (TEST) | TEST and TEST | TEST or TEST

`and` has precedence over `or`. A metric with other characters than letters, digits and `_./@-` needs quotes.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from raydebug.protocol.records import TripwireRecord

Values: TypeAlias = Mapping[str, float]
Test: TypeAlias = Callable[[Values], bool]

MEMORY = "memory"  # the fraction of the memory in use: of the host or of a GPU, whichever is larger
MAX_CHARACTERS = 500
MAX_DEPTH = 20  # of nested brackets
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[float], bool]] = {"nan": math.isnan, "inf": math.isinf}
_WORDS = ("and", "or", "for", "steps", "step")
_TOKEN = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?(?![\w.]))"
    r"""|(?P<name>[a-z_][\w./@-]*|'[^']+'|"[^"]+")|(?P<mark>>=|<=|==|!=|[<>()])|(?P<end>$)""",
    re.IGNORECASE,
)
_INSTEAD = {"=": "; == compares", "&": "; write `and`", "|": "; write `or`", "%": "; write 0.95 for 95 %"}


class BadCondition(ValueError):
    """A condition with a syntax error; the text says at which character, counted from 1, and why."""


@dataclass(frozen=True)
class Condition:
    """A parsed condition.

    Args:
        text: as the user wrote it.
        names: the metrics that it reads, in order.
        holds: evaluates it for one step, whose values include all of these metrics.
        steps: the number of consecutive steps for which it has to hold.
    """

    text: str
    names: tuple[str, ...]
    holds: Test
    steps: int


def parse(text: str) -> Condition:
    """Parse a condition. Nothing of the text is executed.

    Raises:
        BadCondition: the text has a syntax error.
    """
    if len(text) > MAX_CHARACTERS:
        raise BadCondition(f"it has {len(text)} characters; {MAX_CHARACTERS} are the limit")
    return _Parser(text).condition()


def history_lines(tripwire: TripwireRecord | None) -> list[str]:
    """Return a line with the last values of each metric: `actor/grad_norm of steps 1-3: 0.31, 0.29, nan`."""
    lines = []
    for one in (tripwire or {}).get("history") or []:
        steps = one.get("steps") or [0]
        in_a_row = len(steps) > 1 and steps == list(range(steps[0], steps[-1] + 1))
        named = f"steps {steps[0]}-{steps[-1]}" if in_a_row else f"step {', '.join(map(str, steps))}"
        lines.append(f"{one.get('metric')} of {named}: {', '.join(one.get('values') or [])}")
    return lines


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._names: dict[str, None] = {}
        self._depth = 0
        self._end = 0
        self._next()

    def condition(self) -> Condition:
        """Parse the whole text."""
        test, steps = self._joined("or"), 1
        if self._word == "for":
            self._next()
            counts = self._word.isdecimal() and int(self._word) > 0
            steps = int(self._take("a whole number from 1 on after `for`", counts))
            self._take("`steps`", self._word in ("steps", "step"))
        self._take("`and`, `or`, `for N steps` or the end", self._kind == "end")
        return Condition(self._text, tuple(self._names), test, steps)

    def _next(self) -> None:
        """Read the next word."""
        self._start = len(self._text) - len(self._text[self._end :].lstrip())
        found = _TOKEN.match(self._text, self._start)
        if found is None:
            wrong = self._text[self._start]
            raise self._refused(f"{wrong!r} is not part of a condition{_INSTEAD.get(wrong, '')}")
        self._kind, self._word, self._end = str(found.lastgroup), found[0], found.end()

    def _take(self, expected: str, fits: bool) -> str:
        """Return the current word and read the next one, if the current one fits."""
        if not fits:
            found = "the condition ends" if self._kind == "end" else f"found {self._word!r}"
            raise self._refused(f"expected {expected}; {found}")
        word = self._word
        if self._kind != "end":
            self._next()
        return word

    def _refused(self, why: str) -> BadCondition:
        return BadCondition(f"character {self._start + 1}: {why}")

    def _joined(self, word: str) -> Test:
        """Parse tests joined by `or`, each of which may be several joined by `and`."""
        tests: list[Test] = []
        holds = any if word == "or" else all
        while not tests or self._word == word:
            if tests:
                self._next()
            tests.append(self._joined("and") if word == "or" else self._test())
        return tests[0] if len(tests) == 1 else lambda values: holds(test(values) for test in tests)

    def _test(self) -> Test:
        if self._word == "(":
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise self._refused(f"more than {MAX_DEPTH} nested brackets")
            self._next()
            test = self._joined("or")
            self._take("')'", self._word == ")")
            self._depth -= 1
            return test
        word = self._word
        name = self._metric("a metric, nan(METRIC) or inf(METRIC)")
        if self._word == "(":
            if word not in _FUNCTIONS:
                raise self._refused(f"'(' after {word}: the only functions are nan(METRIC) and inf(METRIC)")
            self._next()
            name, function = self._metric("a metric"), _FUNCTIONS[word]
            self._names[name] = None
            self._take("')'", self._word == ")")
            return lambda values: function(values[name])
        self._names[name] = None
        compare = _COMPARE[self._take(f"one of {' '.join(_COMPARE)} after {word}", self._word in _COMPARE)]
        hint = f"; write {self._word}(METRIC)" if self._word in _FUNCTIONS else ""
        limit = float(self._take(f"a number{hint}", self._kind == "number"))
        return lambda values: compare(values[name], limit)

    def _metric(self, expected: str) -> str:
        return self._take(expected, self._kind == "name" and self._word not in _WORDS).strip("'\"")
