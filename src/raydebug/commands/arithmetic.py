"""Calculate as a shell does, with whole numbers: `$(( ))`, `(( ))`, `let`. Runs nothing.

Source: bash 5.2 manual, "Shell Arithmetic".
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

NUMBER_MAX = 10**15  # no batch size is larger


def _quotient(left: int, right: int) -> int:
    """Return the quotient, rounded towards 0, as in C."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_MATH: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda left, right: left - right * _quotient(left, right),
}
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:(\+\+|--)|([-+*/%]?)=(?!=)(.+))\s*", re.DOTALL)
_ASSIGNED = re.compile(r"(?<!\w)([A-Za-z_]\w*+)\s*+(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)([A-Za-z_]\w*)")


def assigned_names(text: str) -> set[str]:
    """Return the variables that an expression changes."""
    return {first or second for first, second in _ASSIGNED.findall(text)}


def assignment(text: str) -> tuple[str, str] | None:
    """Return the variable that an expression sets, and the expression of its new value; None for another expression.

    >>> assignment("N++"), assignment("N *= 2 + 1"), assignment("N == 2")
    (('N', 'N + 1'), ('N', 'N * (2 + 1)'), None)
    """
    found = _ASSIGNMENT.fullmatch(text)
    if found is None:
        return None
    name, step, sign, value = found.groups()
    if step:
        return name, f"{name} {step[0]} 1"
    return name, f"{name} {sign} ({value.strip()})" if sign else value


def calculate(expression: str) -> int | None:
    """Return the value of a plain calculation; None for anything else."""
    if "#" in expression:  # BASE#NUMBER, of which Python would take the rest for a comment
        return None
    try:
        return _value_of(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value_of(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value_of(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _MATH:
        result = _MATH[type(node.op)](_value_of(node.left), _value_of(node.right))
        if abs(result) > NUMBER_MAX:
            raise ValueError("too large")
        return result
    raise ValueError("no plain calculation")
