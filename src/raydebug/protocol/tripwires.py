"""The conditions of `run --stop-when`: a small language. The host checks them, the trainer's process evaluates them.

    CONDITION := TEST [for N steps]
    TEST      := METRIC OPERATOR NUMBER | nan(METRIC) | inf(METRIC) | (TEST) | TEST and TEST | TEST or TEST

`and` has precedence over `or`. A metric with other characters than letters, digits and `_./@-` needs quotes.
"""

from __future__ import annotations

import ast
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
EXPECTED = "expected METRIC OPERATOR NUMBER, nan(METRIC) or inf(METRIC)"
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.GtE: operator.ge, ast.LtE: operator.le, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Gt: operator.gt, ast.Lt: operator.lt,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[float], bool]] = {"nan": math.isnan, "inf": math.isinf}
_METRIC = re.compile(
    r"""'[^']+'|"[^"]+"|(?<![\w.])(?!(?:and|or)(?![\w./@-])|(?:nan|inf)\s*\()[a-z_][\w./@-]*""", re.IGNORECASE
)
_FOR_STEPS = re.compile(r"\sfor\s+(\S+)\s+steps?\s*$")


class BadCondition(ValueError):
    """A condition with a syntax error; the text says where and why."""


@dataclass(frozen=True)
class Condition:
    """A parsed condition."""

    text: str  # as the user wrote it
    names: tuple[str, ...]  # the metrics that it reads, in order
    holds: Test  # evaluates it for one step, whose values include all of these metrics
    steps: int  # for how many in a row it has to hold


def parse(text: str) -> Condition:
    """Parse a condition. Nothing of the text is executed.

    Raises:
        BadCondition: the text has a syntax error.
    """
    if len(text) > MAX_CHARACTERS:
        raise BadCondition(f"it has {len(text)} characters; {MAX_CHARACTERS} are the limit")
    end = _FOR_STEPS.search(text)
    if end is not None and not (end[1].isdecimal() and int(end[1]) > 0):
        raise BadCondition(f"expected a whole number from 1 on after `for`; found {end[1]!r}")
    parser = _Parser(text if end is None else text[: end.start()])
    holds = parser.holds()
    return Condition(text, tuple(parser.names), holds, 1 if end is None else int(end[1]))


class _Parser:
    """Python's own parser, for which each metric is a name of the same length: `/`, `@` and `-` are operators there."""

    def __init__(self, test: str) -> None:
        self._test = test.strip().replace("\n", " ")
        self.names: dict[str, None] = {}

    def holds(self) -> Test:
        """Return what evaluates the test; `names` has the metrics then."""
        masked = _METRIC.sub(lambda metric: "_" * len(metric[0].encode()), self._test)
        try:
            tree = ast.parse(masked, mode="eval").body
        except (SyntaxError, ValueError) as error:
            at = getattr(error, "offset", None)
            where = f"at character {at}" if at else "at its end" if at == 0 else "with this character"
            raise BadCondition(f"it is no condition {where}; {EXPECTED}, joined by `and` and `or`") from None
        return self._holds(tree)

    def _holds(self, node: ast.expr) -> Test:
        """Return what evaluates a part of a condition."""
        match node:
            case ast.BoolOp():
                tests, combine = [self._holds(value) for value in node.values], all
                if isinstance(node.op, ast.Or):
                    combine = any
                return lambda values: combine(test(values) for test in tests)
            case ast.Compare(left=ast.Name(), ops=[kind], comparators=[limit]) if type(kind) in _COMPARE:
                name, number, compare = self._metric(node.left), self._number(limit), _COMPARE[type(kind)]
                return lambda values: compare(values[name], number)
            case ast.Call(func=ast.Name(id=word), args=[ast.Name() as metric], keywords=[]) if word in _FUNCTIONS:
                inside, function = self._metric(metric), _FUNCTIONS[word]
                return lambda values: function(values[inside])
        found = self._text(node)
        raise BadCondition(f"{EXPECTED}; found {found!r}")

    def _text(self, node: ast.expr) -> str:
        return ast.get_source_segment(self._test, node) or ""

    def _metric(self, node: ast.expr) -> str:
        name = self._text(node).strip("'\"")
        self.names[name] = None
        return name

    def _number(self, node: ast.expr) -> float:
        try:
            return float(ast.literal_eval(node))
        except (ValueError, TypeError, OverflowError):
            found = self._text(node)
            hint = f"; write {found}(METRIC)" if found in _FUNCTIONS else ""
            raise BadCondition(f"expected a number{hint}; found {found!r}") from None


def history_lines(tripwire: TripwireRecord | None) -> list[str]:
    """Return a line with the last values of each metric: `actor/grad_norm of steps 1-3: 0.31, 0.29, nan`."""
    lines = []
    for metric in (tripwire or {}).get("history") or []:
        steps = metric.get("steps") or [0]
        in_a_row = len(steps) > 1 and steps == list(range(steps[0], steps[-1] + 1))
        named = f"steps {steps[0]}-{steps[-1]}" if in_a_row else f"step {', '.join(map(str, steps))}"
        lines.append(f"{metric.get('metric')} of {named}: {', '.join(metric.get('values') or [])}")
    return lines
