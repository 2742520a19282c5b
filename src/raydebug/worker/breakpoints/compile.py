"""Compile breakpoints from outside into a module: without tracing, so that nothing else in the process gets slower."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

from raydebug import worker

if TYPE_CHECKING:
    from raydebug.protocol.records import BreakpointSpec

# Independent of the names of the module.
_RUNTIME = "__import__('raydebug.worker.breakpoints.runtime', None, None, ('runtime',))"


PLAIN: dict[CodeType, CodeType] = {}
"""By code with breakpoints compiled in: the same code without them."""


class NoSuchPlace(ValueError):
    """A breakpoint names no statement of its file; the text says why."""


def compile_with(source: bytes, path: str, specs: list[BreakpointSpec], *, as_script: bool = False) -> CodeType:
    """Return the code of a module with a call to each breakpoint before its statement.

    A breakpoint that cannot be compiled in is left out, and the job's log says why. A script gets the empty `__spec__`
    of one, on which multiprocessing's spawn relies.

    Raises:
        SyntaxError: the source does not parse.
    """
    plain = dict(codes_of(compile(source, path, "exec", dont_inherit=True)))
    try:
        built = _compile(source, path, specs, as_script)
    except (SyntaxError, NoSuchPlace):
        faults = [(spec, fault_of(source, path, spec)) for spec in specs]
        for spec, fault in faults:
            if fault:
                worker.log(f"breakpoint {spec['where']} is not set: {fault}")
        built = _compile(source, path, [spec for spec, fault in faults if not fault], as_script)
    # A condition with a comprehension or a lambda is code of its own, which the plain module lacks.
    PLAIN.update((code, plain[key]) for key, code in codes_of(built) if key in plain)
    return built


def fault_of(source: bytes, path: str, spec: BreakpointSpec) -> str:
    """Return why a breakpoint cannot be compiled into its module; empty if it can."""
    try:
        _compile(source, path, [spec])
    except (SyntaxError, NoSuchPlace) as error:
        return str(error)
    return ""


def _compile(source: bytes, path: str, specs: list[BreakpointSpec], as_script: bool = False) -> CodeType:
    tree = ast.parse(source, path)
    names: dict[str, BreakpointSpec] = {}
    for spec in specs:
        body, index = find_statement(tree, spec.get("line"), spec.get("function"))
        name = site_name(spec["id"])
        body.insert(index, _call_before(body[index], spec, name))
        names[name] = spec
    head = [f"{name} = {_RUNTIME}.site_of({_runtime_part(spec)!r})" for name, spec in names.items()]
    if as_script:
        head.append("__spec__ = None")
    first = _after_opening(tree.body, 0)
    tree.body[first:first] = ast.parse("\n".join(head)).body
    built: CodeType = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
    return built


def codes_of(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Return a code object and all that are nested in it, each by its qualified name and first line."""
    yield (code.co_qualname, code.co_firstlineno), code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def find_statement(tree: ast.Module, line: int | None, function: str | None) -> tuple[list[ast.stmt], int]:
    """Return the list of statements and the index before which a breakpoint is inserted.

    Docstrings, imports from `__future__`, `global` and `nonlocal` are passed over; a body that has nothing else gets a
    `pass` at its end.

    Args:
        tree: the module.
        line: choose the statement that begins on this line, or on the next line that has one.
        function: or choose the first statement of this function: `name`, `Class.method`.

    Raises:
        NoSuchPlace: there is no such line or function.
    """
    body, index = _first_on_line(tree, line or 0) if function is None else (_body_of(tree, function), 0)
    index = _after_opening(body, index)
    if index == len(body):
        body.append(ast.copy_location(ast.Pass(), body[-1]))
    return body, index


def _first_on_line(tree: ast.Module, line: int) -> tuple[list[ast.stmt], int]:
    found: tuple[int, list[ast.stmt], int] | None = None
    for body in _bodies(tree):
        for index, statement in enumerate(body):
            first_line = _first_line(statement)
            # The innermost statement wins where two begin on one line: `if x: y()`.
            if first_line >= line and (found is None or first_line <= found[0]):
                found = (first_line, body, index)
    if found is None:
        raise NoSuchPlace(f"no statement on line {line} or after it")
    return found[1:]


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return int(min([statement.lineno, *(d.lineno for d in decorators)]))


def _after_opening(body: list[ast.stmt], index: int) -> int:
    """Return the first index from `index` on where a call may be inserted.

    A call in front of a docstring would remove the docstring; an import from `__future__` after it is a SyntaxError,
    and so is a `global` for a name of its condition.
    """
    for statement in body[index:]:
        text = getattr(statement.value, "value", None) if isinstance(statement, ast.Expr) else None
        is_passed = isinstance(text, str) or isinstance(statement, ast.Global | ast.Nonlocal)
        if not is_passed and getattr(statement, "module", "") != "__future__":
            break
        index += 1
    return index


def _bodies(tree: ast.AST) -> list[list[ast.stmt]]:
    bodies = []
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                bodies.append(body)
    return bodies


def _body_of(tree: ast.Module, function: str) -> list[ast.stmt]:
    scope: Any = tree
    for name in function.split("."):
        matches = [
            node
            for body in _bodies(scope)
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name
        ]
        if not matches:
            raise NoSuchPlace(f"it has no '{function}'")
        scope = matches[-1]  # a later definition replaces an earlier one
    if isinstance(scope, ast.ClassDef):
        raise NoSuchPlace(f"'{function}' is a class; name a method of it")
    body: list[ast.stmt] = scope.body
    return body


def site_name(break_id: str) -> str:
    """Return the global of a module that holds a breakpoint's site."""
    return f"__raydebug_{''.join(c if c.isalnum() else '_' for c in break_id)}__"


def _runtime_part(spec: BreakpointSpec) -> BreakpointSpec:
    return {"id": spec["id"], "where": spec["where"], "policy": spec.get("policy") or {}}


def _call_before(statement: ast.stmt, spec: BreakpointSpec, name: str) -> ast.stmt:
    """Return the statement that calls a breakpoint's site.

    The site is a global of the module, not a constant of the code: a function that is pickled by value (cloudpickle)
    takes it along, and bytecode compilers (torch.compile) support globals.
    """
    policy = spec.get("policy") or {}
    stop = f"if {name}.is_due(): {name}.say(f{policy['log']!r})" if "log" in policy else f"{name}.at()"
    if "if" in policy:
        stop = f"if ({policy['if']}\n): " + (f"{name}.at()" if "log" not in policy else f"\n   {stop}")
    text = f"try:\n  {stop}\nexcept Exception: {_RUNTIME}.failed({_runtime_part(spec)!r})"
    built = ast.parse(text).body[0]
    for node in ast.walk(built):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = _first_line(statement)  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = statement.col_offset  # type: ignore[attr-defined]
    return built
