"""Breakpoints set from outside, built into the source: no tracing, so nothing else in the process gets slower."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType
from typing import Any

from raydebug.worker import job_log

# No name of the module's own is relied on.
_SITES = "__import__('raydebug.worker.sites', None, None, ('sites',))"


PLAIN: dict[CodeType, CodeType] = {}
"""For code with breakpoints built in: what it is without them."""


class NothingThere(ValueError):
    """A breakpoint names no statement of its file; the text says why."""


def compile_with(source: bytes, path: str, breaks: list[dict[str, Any]], *, as_script: bool = False) -> CodeType:
    """Return the code of a module with a stop before each statement that a breakpoint names.

    Args:
        source: the module's source.
        path: its file.
        breaks: each has "id", "where", "policy" and either "line" or "function" (a qualified name inside the module).
        as_script: give the module the empty `__spec__` of a script; multiprocessing's spawn goes by it.

    Raises:
        SyntaxError: the source does not parse.
    """
    tree = ast.parse(source, path)
    plain = dict(codes_of(compile(tree, path, "exec", dont_inherit=True)))
    names: dict[str, dict[str, Any]] = {}
    for wanted in breaks:
        try:
            body, index = find_statement(tree, wanted.get("line"), wanted.get("function"))
        except NothingThere as error:
            job_log.write(f"breakpoint {wanted['where']} is not set: {error}")
            continue
        name = site_name(str(wanted["id"]))
        body.insert(index, _stop_before(body[index], wanted, name))
        names[name] = wanted
    head = [f"{name} = {_SITES}.restore({_plain(wanted)!r})" for name, wanted in names.items()]
    if as_script:
        head.append("__spec__ = None")
    first = next((i for i, s in enumerate(tree.body) if not _is_docstring(s) and not _is_future(s)), len(tree.body))
    tree.body[first:first] = ast.parse("\n".join(head)).body
    built = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
    PLAIN.update((code, plain[key]) for key, code in codes_of(built))
    return built


def codes_of(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Return a code and all that is inside it, each by its qualified name and first line."""
    yield (code.co_qualname, code.co_firstlineno), code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


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


def site_name(break_id: str) -> str:
    """Return the global of a module that holds a breakpoint's site."""
    return f"__raydebug_{''.join(c if c.isalnum() else '_' for c in break_id)}__"


def _plain(wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: wanted.get(name) for name in ("id", "where", "policy")}


def _stop_before(statement: ast.stmt, wanted: dict[str, Any], name: str) -> ast.stmt:
    """Return the statement that calls a breakpoint's site.

    The site is a global of the module, not a constant of the code: a function that travels by value (cloudpickle) takes
    it along, and compilers of bytecode (torch.compile) know what to do with a global.
    """
    policy: dict[str, Any] = wanted.get("policy") or {}
    stop = f"if {name}.is_due(): {name}.say(f{policy['log']!r})" if "log" in policy else f"{name}.at()"
    if "if" in policy:
        stop = f"if ({policy['if']}\n): " + (f"{name}.at()" if "log" not in policy else f"\n   {stop}")
    text = f"try:\n  {stop}\nexcept Exception: {_SITES}.failed({_plain(wanted)!r})"
    built = ast.parse(text).body[0]
    for node in ast.walk(built):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = _begins(statement)  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = statement.col_offset  # type: ignore[attr-defined]
    return built
