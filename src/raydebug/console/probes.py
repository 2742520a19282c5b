"""The Python expressions that the debugger evaluates in a paused process, and how a failure there is read.

A probe is a module or a function: its source is sent inside the expression, as it is, so the process needs nothing of
raydebug, and no other version of raydebug there can disagree with this one. A function's imports are inside it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

from raydebug.console import interrupt, tensor_probe

# pydevd 1.8.22 shortens its own reprs (strings in lists after 128 characters, lists after 60 items), so the probes
# return text; of text it cuts only what exceeds 2**16 characters.
_BUILTINS = "__import__('builtins')"


Probe: TypeAlias = ModuleType | tuple[Callable[..., object], ...]


@cache
def _source(probe: Probe) -> str:
    if isinstance(probe, tuple):
        return "\n\n".join(["from __future__ import annotations", *map(inspect.getsource, probe)])
    return inspect.getsource(probe)


def _call(probe: Probe, name: str, arguments: str) -> str:
    return f"(lambda space: (exec({_source(probe)!r}, space), space[{name!r}])[1])({{}})({arguments})"


def as_description(expression: str) -> str:
    """Return an expression whose value is the JSON of `tensor_probe.describe`."""
    return _call(tensor_probe, "describe", f"({expression}\n)")


def as_summary(expression: str, key: str) -> str:
    """Return an expression whose value is the JSON of `tensor_probe.summarise`."""
    return _call(tensor_probe, "summarise", f"({expression}\n), {key!r}")


def as_packed(key: str, start: int, end: int) -> str:
    """Return an expression whose value is a piece, as JSON, of a text that a probe keeps."""
    return f"__import__('json').dumps(__import__('sys').__dict__['_raydebug_packed'][{key!r}][{start}:{end}])"


def as_forgotten(key: str) -> str:
    """Return an expression that drops a text that a probe keeps."""
    return f"__import__('sys').__dict__.get('_raydebug_packed', {{}}).pop({key!r}, None) and None"


def shown(value: Any, limit: int) -> str:
    """Return the repr of a value, cut at `limit` characters, with a note on the rest.

    A long text or list is cut before its repr is made.
    """
    if type(value) in (str, bytes, bytearray) and len(value) > limit:
        return repr(value[:limit]) + f" ... the first {limit:,} of {len(value):,}; `full` shows all"
    if type(value) in (list, tuple) and len(value) > limit:
        text = repr(value[: limit // 3 + 1])  # an item takes three characters at least
        return text[:limit] + f" ... the first of {len(value):,} items; `full` shows all"
    text = repr(value)
    if len(text) <= limit:
        return text
    return text[:limit] + f" ... the first {limit:,} of {len(text):,} characters; `full` shows all"


def keep_text(value: Any, key: str, most: int) -> str:
    """Keep the whole repr of a value in sys, to be fetched in pieces; return its length, as JSON."""
    import json
    import sys

    text = repr(value)[:most]
    sys.__dict__.setdefault("_raydebug_packed", {})[key] = text
    return json.dumps(len(text))


def as_shown(expression: str, limit: int) -> str:
    """Return an expression whose value is the repr of `expression`, cut at `limit` characters."""
    return _call((shown,), "shown", f"({expression}\n), {limit}")


def as_shown_unless_none(expression: str, limit: int) -> str:
    """Return an expression whose value is the cut repr, or None for None: what Python's own prompt shows."""
    text = _call((shown,), "shown", f"value, {limit}")
    return f"(lambda value: None if value is None else {text})(({expression}\n))"


def as_kept_text(expression: str, key: str, most: int) -> str:
    """Return an expression that keeps the whole repr for `as_packed`; its value is the length, as JSON."""
    return _call((keep_text,), "keep_text", f"({expression}\n), {key!r}, {most}")


def as_interrupt(expression: str) -> str:
    """Return code that raises KeyboardInterrupt in the thread that evaluates `expression`."""
    return _call(interrupt.PROBE, "interrupt_evaluation", repr(expression))


class NotPython(ValueError):
    """The text does not parse; the message is Python's own."""


def is_expression(text: str) -> bool:
    """Return whether the text is an expression; False for a statement.

    Raises:
        NotPython: it does not parse.
    """
    try:
        ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        try:
            compile(text, "<stdin>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        except SyntaxError as error:
            raise NotPython(f"SyntaxError: {error.msg}") from error
        return False
    return True


def check_expression(text: str) -> str:
    """Return the text, stripped, when it is one expression (pdb's commands take a tuple without brackets too).

    Raises:
        NotPython: it is not.
    """
    if not text.strip() or not is_expression(text):
        raise NotPython("SyntaxError: invalid syntax" if text.strip() else "an expression is missing")
    return text.strip()


def as_pretty(expression: str, width: int) -> str:
    """Return an expression whose value is the pretty-printed repr, at most `width` columns where it can."""
    return f"__import__('pprint').pformat(({expression}\n), width={width})"


def as_kind(expression: str) -> str:
    """Return an expression whose value is the text of pdb's `whatis`."""
    return (
        "(lambda v: 'Method ' + v.__func__.__code__.co_name if hasattr(getattr(v, '__func__', None), '__code__') else "
        "'Function ' + v.__code__.co_name if hasattr(v, '__code__') else "
        "'Class ' + v.__module__ + '.' + v.__qualname__ if v.__class__ is v.__class__.__class__ else "
        f"{_BUILTINS}.str(v.__class__))(({expression}\n))"
    )


def as_source(expression: str) -> str:
    """Return an expression whose value is JSON: [lines, number of the first]."""
    return f"__import__('json').dumps(__import__('inspect').getsourcelines(({expression}\n)))"


def as_code_place(expression: str) -> str:
    """Return an expression whose value is JSON: [file, first line of the body] of a function, or null."""
    return (
        "(lambda v: (lambda c: __import__('json').dumps(c and [c.co_filename, "
        "min([n for _, _, n in c.co_lines() if n and n > c.co_firstlineno] or [c.co_firstlineno])]))"
        "(getattr(__import__('inspect').unwrap(getattr(v, '__func__', v)), '__code__', None)))"
        f"(({expression}\n))"
    )


def as_loaded_files(ending: str) -> str:
    """Return an expression whose value is JSON: files of loaded modules whose path ends in `ending`."""
    return (
        "__import__('json').dumps(sorted({f for f in (getattr(m, '__file__', None) for m in "
        f"list(__import__('sys').modules.values())) if f and ('/' + f).endswith({'/' + ending!r})}}))"
    )


def exception_line(traceback: str) -> str:
    """Return the last exception of a traceback, without its frames: `NameError: name 'x' is not defined`."""
    lines = traceback.rstrip("\n").split("\n")
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    for index in range(starts[-1] + 1 if starts else 0, len(lines)):
        if lines[index] and not lines[index].startswith(" "):
            return "\n".join(lines[index:])
    return lines[-1].strip()
