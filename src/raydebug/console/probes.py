"""Expressions that run a probe (tensor_probe.py and the like) inside the paused process, by sending its source."""

from __future__ import annotations

import inspect
from functools import cache
from types import ModuleType

from raydebug.console import held_probe, interrupt_probe, tensor_probe, value_probe

_NEEDS = {tensor_probe: (held_probe,)}


@cache
def _sources(module: ModuleType) -> list[str]:
    """Return the texts to run, in one namespace: what a probe imports of another one is there already."""
    texts = (inspect.getsource(one) for one in (*_NEEDS.get(module, ()), module))
    return ["".join(line for line in text.splitlines(True) if not line.startswith("from raydebug.")) for text in texts]


def _call(module: ModuleType, name: str, arguments: str) -> str:
    run = f"[exec(text, space) for text in {_sources(module)!r}]"
    return f"(lambda space: ({run}, space[{name!r}])[1])({{}})({arguments})"


def as_description(expression: str) -> str:
    """Return an expression whose value is the JSON of `tensor_probe.describe`."""
    return _call(tensor_probe, "describe", f"({expression}\n)")


def as_summary(expression: str, key: str) -> str:
    """Return an expression whose value is the JSON of `tensor_probe.summarise`."""
    return _call(tensor_probe, "summarise", f"({expression}\n), {key!r}")


def as_packed(key: str, start: int, end: int) -> str:
    """Return an expression whose value is a piece of what a probe kept, as JSON."""
    return f"__import__('json').dumps(__import__('sys').__dict__['_raydebug_packed'][{key!r}][{start}:{end}])"


def as_forgotten(key: str) -> str:
    """Return an expression that drops what a probe kept."""
    return f"__import__('sys').__dict__.get('_raydebug_packed', {{}}).pop({key!r}, None) and None"


def as_shown(expression: str, limit: int) -> str:
    """Return an expression whose value is the repr of `expression`, cut at `limit` characters."""
    return _call(value_probe, "shown", f"({expression}\n), {limit}")


def as_shown_unless_none(expression: str, limit: int) -> str:
    """Return an expression whose value is the cut repr, or None for None: what Python's own prompt shows."""
    shown = _call(value_probe, "shown", f"value, {limit}")
    return f"(lambda value: None if value is None else {shown})(({expression}\n))"


def as_kept_text(expression: str, key: str, most: int) -> str:
    """Return an expression that keeps the whole repr for `as_packed`; its value is the length, as JSON."""
    return _call(value_probe, "keep_text", f"({expression}\n), {key!r}, {most}")


def as_interrupt(expression: str) -> str:
    """Return code that raises KeyboardInterrupt in the thread that evaluates `expression`."""
    return _call(interrupt_probe, "interrupt", repr(expression))
