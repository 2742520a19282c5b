"""Source text: where a function begins and ends, and lines with the current one marked."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from raydebug.console.paint import Paint
from raydebug.render import visible

AROUND = 5  # lines before and after the current one, as pdb's `list`

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Function:
    """The innermost function around a line; first and last count from 1 and include decorators."""

    name: str
    first: int
    last: int
    arguments: tuple[str, ...]
    statements: tuple[int, ...]  # first lines of the statements that run in it, not in functions inside it


def read_local(path: str) -> list[str] | None:
    """Return the lines of a file on this machine; None where there is none, or it is no Python text."""
    if not Path(path).is_file():
        return None
    try:
        with tokenize.open(path) as file:
            return file.read().splitlines()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def function_at(lines: list[str], line: int) -> Function | None:
    """Return the innermost function around a line; None for module level and for text that does not parse."""
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return None
    found: _Function | None = None
    for node in ast.walk(tree):  # breadth first: a deeper one comes later and replaces the outer
        if isinstance(node, _Function) and _first_line(node) <= line <= (node.end_lineno or node.lineno):
            found = node
    if found is None:
        return None
    return Function(
        name=getattr(found, "name", "<lambda>"),
        first=_first_line(found),
        last=found.end_lineno or found.lineno,
        arguments=_arguments(found.args),
        statements=tuple(sorted(set(_statement_lines(found)))),
    )


def _first_line(node: _Function) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _arguments(spec: ast.arguments) -> tuple[str, ...]:
    plain = [*spec.posonlyargs, *spec.args]
    star = [spec.vararg] if spec.vararg else []
    double = [spec.kwarg] if spec.kwarg else []
    return tuple(argument.arg for argument in [*plain, *star, *spec.kwonlyargs, *double])


def _statement_lines(function: ast.AST) -> list[int]:
    lines = []
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.stmt):
            lines.append(child.lineno)
        if not isinstance(child, (_Function, ast.ClassDef)):
            lines += _statement_lines(child)
    return lines


def listing(
    lines: list[str],
    first: int,
    last: int,
    *,
    current: int | None = None,
    breakpoints: Collection[int] = (),
    paint: Paint | None = None,
) -> str:
    """Return lines first..last (from 1) with their numbers, `B` at breakpoints and `->` at the current line."""
    paint = paint or Paint()
    first, last = max(1, first), min(len(lines), last)
    width = max(4, len(str(last)))
    code = paint.code([visible(line) for line in lines[first - 1 : last]])
    shown = []
    for number, text in enumerate(code, start=first):
        here = number == current
        mark = (paint("B", "red", "bold") if number in breakpoints else " ") + (
            paint("->", "green", "bold") if here else "  "
        )
        shown.append(f"{paint(str(number).rjust(width), *(('bold',) if here else ('dim',)))} {mark} {text}".rstrip())
    return "\n".join(shown)
