"""Decide conditions of a shell script: `[[ ]]`, `[ ]` and `test`. Runs nothing.

A question about files, and one with an operand that only a run can tell, stays undecided: None.
Source: POSIX.1-2024 XCU test; bash 5.2 manual, "Bash Conditional Expressions"; test.c.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from raydebug.commands import patterns
from raydebug.commands.arithmetic import whole
from raydebug.commands.expand import Expander
from raydebug.commands.state import NotFollowed, hidden, is_name
from raydebug.commands.syntax import Node

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge,
}  # fmt: skip
_FILES = ("-nt", "-ot", "-ef")
_BINARY = ("=", "==", "!=", "<", ">", "-a", "-o", *_NUMBERS, *_FILES)
_UNARY = re.compile(r"-[abcdefghknoprstuvwxzGLNORS]")
_OPERATOR = re.compile(r"!|[!=]?=|[<>]|-[a-zA-Z]{1,2}")
_NO_POSIX = re.compile(r"\\[A-Za-z0-9<>`'](?<![wWsSbB])|\(\?|[*+?}][?+]|\[[^\]]*\\")


class _Error(Exception):
    """What `test` complains about: its status is 2."""


def decide_condition(node: Node, expand: Expander) -> bool | None:
    """Return whether the expression of `[[ ... ]]` holds; None where that is not known."""
    kind = node["Type"]
    if kind == "ParenTest":
        return decide_condition(node["X"], expand)
    if kind == "UnaryTest" and node["Op"] == "!":
        holds = decide_condition(node["X"], expand)
        return None if holds is None else not holds
    if kind == "BinaryTest" and node["Op"] in ("&&", "||"):
        decisive: bool = node["Op"] == "||"
        first = decide_condition(node["X"], expand)
        if first is decisive:
            return first
        second = decide_condition(node["Y"], expand)
        return second if first is not None or second is decisive else None
    before, expand.notes = expand.notes, set()
    try:
        holds = _leaf(node, expand)
        return None if hidden(expand.notes) else holds
    except NotFollowed:
        return None
    finally:
        expand.notes |= before


def _leaf(node: Node, expand: Expander) -> bool | None:
    if node["Type"] == "Word":
        return expand.text(node) != ""
    if node["Type"] == "UnaryTest":
        return _unary(node["Op"], expand.text(node["X"]), expand)
    sign, first = str(node["Op"]), expand.text(node["X"])
    if sign == "=~":
        return _finds(expand.pattern(node["Y"], regex=True), first, expand)
    if sign in ("==", "=", "!="):
        return patterns.matches(expand.pattern(node["Y"]), first) != (sign == "!=")
    second = expand.text(node["Y"])
    if sign in _NUMBERS:
        return _NUMBERS[sign](whole(first, expand), whole(second, expand))
    return None if sign in _FILES else first < second if sign == "<" else first > second


def _unary(sign: str, text: str, expand: Expander) -> bool | None:
    if sign in ("-z", "-n"):
        return (text == "") == (sign == "-z")
    if sign == "-v" and is_name(text):
        variable = expand.state.get(text)
        expand.notes |= variable.notes
        return variable.text is not None
    return False if text == "" and sign not in ("-v", "-o") else None  # a file, a terminal


def _finds(pattern: str, text: str, expand: Expander) -> bool | None:
    """Return whether the right side of `=~` is in a text; None where POSIX may differ."""
    import re2  # google-re2: 40 ms that scripts without `=~` do without

    expand.state.hide("BASH_REMATCH", "what `=~` finds is not followed")
    if len(text) > patterns.CHARS_MAX or _NO_POSIX.search(pattern):
        return None
    options = re2.Options()
    options.log_errors, options.longest_match, options.dot_nl = False, True, True
    try:
        match = re2.compile(pattern, options).search(text)
    except re2.error:
        return None
    return match is not None


def decide_test(words: list[str], expand: Expander) -> int | None:
    """Return the status of `[ ... ]` or `test ...` with these words; None where that is not known."""
    try:
        holds = _test(words, expand)
    except _Error:
        return 2
    return None if holds is None else int(not holds)


def _test(words: list[str], expand: Expander) -> bool | None:
    """Evaluate words as `test` does, by how many there are."""
    if len(words) <= 1:
        return bool(words) and words[0] != ""
    if len(words) == 3 and words[1] in _BINARY:
        return _compared(*words)
    if words[0] == "!" and len(words) <= 4:
        holds = _test(words[1:], expand)
        return None if holds is None else not holds
    if words[0] == "(" and words[-1] == ")" and len(words) <= 4:
        return _test(words[1:-1], expand)
    if len(words) == 2:
        if not _UNARY.fullmatch(words[0]):
            raise _Error
        return _unary(words[0], words[1], expand)
    for sign, decisive in (("-o", True), ("-a", False)):  # of which each binds all that is on its sides
        if sign in words:
            at = words.index(sign)
            before = words[:at]
            if not before or before.count("(") != before.count(")") or _OPERATOR.fullmatch(before[-1]):
                return None
            first, second = _test(before, expand), _test(words[at + 1 :], expand)
            return decisive if decisive in (first, second) else None if None in (first, second) else not decisive
    if len(words) > 4 or "(" in words:
        return None
    raise _Error


def _compared(first: str, sign: str, second: str) -> bool | None:
    if sign in _NUMBERS:
        return _NUMBERS[sign](_whole(first), _whole(second))
    if sign in _FILES:
        return None
    if sign in ("-a", "-o"):
        return all((first, second)) if sign == "-a" else any((first, second))
    if sign in ("<", ">"):
        return first < second if sign == "<" else first > second
    return (first == second) != (sign == "!=")


def _whole(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?\d+\s*", text, re.ASCII):
        raise _Error
    return int(text)
