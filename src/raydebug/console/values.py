"""Expressions as we send them into the paused process, and what its failures read like."""

from __future__ import annotations

import ast

# pydevd 1.8.22 shortens the reprs it makes itself (strings in lists after 128 characters, lists after 60 items), so
# the process makes the text and we read it whole; it cuts a string only after 2**16 characters.
_BUILTINS = "__import__('builtins')"


class NotPython(ValueError):
    """The text does not parse; the message is Python's own."""


def is_expression(text: str) -> bool:
    """Return whether the text is an expression; False for a statement.

    Raises:
        NotPython: it is neither.
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
        NotPython: it is none.
    """
    if not text.strip() or not is_expression(text):
        raise NotPython("SyntaxError: invalid syntax" if text.strip() else "an expression is missing")
    return text.strip()


def as_pretty(expression: str, width: int) -> str:
    """Return an expression whose value is the pretty-printed repr, at most `width` columns where it can."""
    return f"__import__('pprint').pformat(({expression}\n), width={width})"


def as_kind(expression: str) -> str:
    """Return an expression that says what pdb's `whatis` says."""
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
    """Return what follows the last frame of a traceback: `NameError: name 'x' is not defined`."""
    lines = traceback.rstrip("\n").split("\n")
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    for index in range(starts[-1] + 1 if starts else 0, len(lines)):
        if lines[index] and not lines[index].startswith(" "):
            return "\n".join(lines[index:])
    return lines[-1].strip()
