"""Calculate as a shell does, with whole numbers: `$(( ))`, `(( ))`, `let`. Runs nothing.

Source: bash 5.2 manual, "Shell Arithmetic"; expr.c.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from raydebug.commands.state import NotFollowed, is_name
from raydebug.commands.syntax import Node, literal

NESTED_AT_MOST = 32  # variables whose values are names of others
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"


class _Store(Protocol):
    """Where variables are."""

    def text(self, word: Node) -> str: ...
    def number_text(self, name: str) -> str: ...
    def set_number(self, target: Node, value: int) -> None: ...


def _wrapped(value: int) -> int:
    """Return a number as 64 bits hold it."""
    return (value + 2**63) % 2**64 - 2**63


def _quotient(left: int, right: int) -> int:
    """Return the quotient, rounded towards 0, as in C."""
    if right == 0:
        raise NotFollowed
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _power(left: int, right: int) -> int:
    if right < 0:
        raise NotFollowed
    return pow(left, right, 2**64)


_MATH: dict[str, Callable[[int, int], int]] = {
    "**": _power, "*": operator.mul, "/": _quotient, "%": lambda left, right: left - right * _quotient(left, right),
    "+": operator.add, "-": operator.sub, "<<": lambda left, right: left << (right % 64),
    ">>": lambda left, right: left >> (right % 64), "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "&": operator.and_, "^": operator.xor, "|": operator.or_,
    ",": lambda _, right: right,
}  # fmt: skip
_UNARY: dict[str, Callable[[int], int]] = {
    "!": operator.not_, "~": operator.invert, "+": operator.pos, "-": operator.neg,
}  # fmt: skip
_SETS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|=")


def calculate(node: Node, store: _Store) -> int:
    """Return the value of an expression; variables that it sets are set."""
    kind, sign = node["Type"], node.get("Op", "")
    if kind == "Word":
        return whole(store.text(node), store)
    first = node["X"]
    if kind == "ParenArithm":
        return calculate(first, store)
    if kind == "UnaryArithm" and sign in ("++", "--"):
        before = calculate(first, store)
        after = _wrapped(before + (1 if sign == "++" else -1))
        store.set_number(first, after)
        return before if node.get("Post") else after
    if kind == "UnaryArithm":
        return _wrapped(int(_UNARY[sign](calculate(first, store))))
    if kind != "BinaryArithm":
        raise NotFollowed
    second = node["Y"]
    if sign in _SETS:
        left = calculate(first, store) if sign != "=" else 0
        right = calculate(second, store)
        result = right if sign == "=" else _wrapped(_MATH[sign[:-1]](left, right))
        store.set_number(first, result)
        return result
    left = calculate(first, store)
    if sign == "?":
        return calculate(second["X" if left else "Y"], store)
    if sign in ("&&", "||"):
        return int(bool(left if bool(left) == (sign == "||") else calculate(second, store)))
    return _wrapped(int(_MATH[sign](left, calculate(second, store))))


def whole(text: str, store: _Store, depth: int = 0) -> int:
    """Return the number that a text is, or that a variable of this name has."""
    text = text.strip()
    if is_name(text) and depth < NESTED_AT_MOST:
        return whole(store.number_text(text), store, depth + 1)
    match = re.fullmatch(r"([-+]?)\s*(?:(\d+)#|(0[xX])|(0))?([\w@]*)", text, re.ASCII)
    if match is None or (text and not text.lstrip("-+ ")[:1].isdigit()):
        raise NotFollowed
    base = int(match[2] or 0) or (16 if match[3] else 8 if match[4] else 10)
    result = 0
    for digit in match[5].lower() if base <= 36 else match[5]:
        value = _DIGITS.find(digit)
        if not 0 <= value < base <= 64:
            raise NotFollowed
        result = result * base + value
    return _wrapped(-result if match[1] == "-" else result)


def assigned_names(node: Any) -> Iterator[str]:
    """Yield the variables that an expression changes."""
    if isinstance(node, dict):
        if node.get("Op") in _SETS or node.get("Op") in ("++", "--"):
            part = node["X"].get("Parts", [{}])[0]
            yield literal(node["X"]) or part.get("Param", {}).get("Value", "")
        for inner in (node.get("X"), node.get("Y")):
            yield from assigned_names(inner)
