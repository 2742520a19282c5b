"""Breakpoints set from outside, built into the source: no tracing, so nothing else in the process gets slower."""

from __future__ import annotations

import ast
import sys
from types import CodeType
from typing import Any


class NothingThere(ValueError):
    """A breakpoint names no statement of its file; the text says why."""


def compile_with(source: bytes, path: str, breaks: list[dict[str, Any]], *, as_script: bool = False) -> CodeType:
    """Return the code of a module with a stop before each statement that a breakpoint names.

    Args:
        source: the module's source.
        path: its file.
        breaks: each has "where" and either "line" or "function" (a qualified name inside the module).
        as_script: give the module the empty `__spec__` of a script; multiprocessing's spawn goes by it.

    Raises:
        SyntaxError: the source does not parse.
    """
    tree = ast.parse(source, path)
    for wanted in breaks:
        try:
            body, index = find_statement(tree, wanted.get("line"), wanted.get("function"))
        except NothingThere as error:
            sys.stderr.write(f"raydebug: breakpoint {wanted['where']} is not set: {error}\n")
            continue
        body.insert(index, _stop_before(body[index], str(wanted["where"])))
    if as_script:
        first = next((i for i, s in enumerate(tree.body) if not _is_docstring(s) and not _is_future(s)), len(tree.body))
        tree.body.insert(first, ast.parse("__spec__ = None").body[0])
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def find_statement(tree: ast.Module, line: int | None, function: str | None) -> tuple[list[ast.stmt], int]:
    """Return the list of statements and the index before which a breakpoint goes.

    Args:
        tree: the module.
        line: stop before the statement that begins on this line, or on the next one that has a statement.
        function: or stop at the first statement of this function: `name`, `Class.method`.

    Raises:
        NothingThere: there is no such line or function.
    """
    if function is not None:
        return _first_of_function(tree, function)
    found: tuple[int, list[ast.stmt], int] | None = None
    for body in _bodies(tree):
        for index, statement in enumerate(body):
            begins = _begins(statement)
            # The innermost statement wins where two begin on one line: `if x: y()`.
            if begins >= (line or 0) and (found is None or begins <= found[0]) and not _is_future(statement):
                found = (begins, body, index)
    if found is None:
        raise NothingThere(f"no statement on line {line} or after it")
    return found[1], found[2]


def _begins(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return int(min([statement.lineno, *(d.lineno for d in decorators)]))


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _bodies(tree: ast.AST) -> list[list[ast.stmt]]:
    bodies = []
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                bodies.append(body)
    return bodies


def _first_of_function(tree: ast.Module, function: str) -> tuple[list[ast.stmt], int]:
    scope: Any = tree
    for name in function.split("."):
        inside = [
            node
            for body in _bodies(scope)
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name
        ]
        if not inside:
            raise NothingThere(f"it has no '{function}'")
        scope = inside[-1]  # a later definition replaces an earlier one
    if isinstance(scope, ast.ClassDef):
        raise NothingThere(f"'{function}' is a class; name a method of it")
    body = scope.body
    return body, 1 if len(body) > 1 and _is_docstring(body[0]) else 0


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _stop_before(statement: ast.stmt, where: str) -> ast.stmt:
    # An import each time, not a global: the function may travel to another process by value (cloudpickle).
    call = ast.parse(f"__import__('raydebug.worker.stops', None, None, ('at',)).at({where!r})").body[0]
    for node in ast.walk(call):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = _begins(statement)  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = statement.col_offset  # type: ignore[attr-defined]
    return call
