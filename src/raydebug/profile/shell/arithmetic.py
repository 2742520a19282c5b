"""Calculate what a script calculates: whole numbers, and nothing that runs."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

NUMBER_MAX = 10**15  # a product beyond is nobody's batch size
_MATH: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculate(expression: str) -> int | None:
    """Return the value of a plain calculation; None for anything else."""
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
