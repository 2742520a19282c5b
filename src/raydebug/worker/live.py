"""Builds breakpoints into functions that are loaded already, by giving them new code; nothing is traced."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from raydebug.worker import breaks, imports, sites

Report = dict[str, Any]
SET, WAITING, FAILED = "set", "waiting", "failed"


def build_in(definitions: list[dict[str, Any]]) -> list[Report]:
    """Build breakpoints into the loaded functions of their files; say for each what came of it.

    Returns:
        For each breakpoint {"id", "state", "message"}: `set` in functions that are loaded, `waiting` for its file to be
        loaded, or `failed` with the reason.
    """
    functions = _functions_by_file({os.path.basename(d["source"]) for d in definitions})
    reports = []
    for definition in definitions:
        path = os.path.realpath(definition["source"])
        try:
            state, message = _build_into(path, functions.get(path, []), definition)
        except Exception as error:  # noqa: BLE001 - a breakpoint that cannot be set must not harm the process
            state, message = FAILED, f"{type(error).__name__}: {error}"
        reports.append({"id": definition["id"], "state": state, "message": message})
    return reports


def _build_into(path: str, functions: list[FunctionType], definition: dict[str, Any]) -> tuple[str, str]:
    if not functions:
        return WAITING, "its file is not loaded here"
    with open(path, "rb") as file:
        source = file.read()
    # Those that stand there already stay.
    every = [b for b in imports.known_breaks() if os.path.realpath(b["source"]) == path]
    new = dict(breaks.codes_of(breaks.compile_with(source, path, every)))
    name = breaks.site_name(definition["id"])
    if not any(name in code.co_names for key, code in new.items() if key[0] != "<module>"):
        return FAILED, "its line has run already: it is outside of any function"
    reached, running = False, set()
    now_running = _running_codes()
    for function in functions:
        key = (function.__code__.co_qualname, function.__code__.co_firstlineno)
        code = new.get(key)
        if code is None or not _mentions(code, name):
            continue
        reached = True
        old = breaks.PLAIN.get(function.__code__, function.__code__)
        if breaks.PLAIN[code].co_code != old.co_code or code.co_freevars != old.co_freevars:
            return FAILED, f"{path} has changed since it was loaded here"
        if function.__code__ in now_running:
            running.add(function.__qualname__)
        for one in every:
            function.__globals__[breaks.site_name(one["id"])] = sites.restore(one)
        function.__code__ = code
    if not reached:
        return WAITING, "its function is not made here yet"
    return SET, f"{', '.join(sorted(running))} runs now and stops there from its next call" if running else ""


def _mentions(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(_mentions(c, name) for c in code.co_consts if isinstance(c, CodeType))


def _functions_by_file(base_names: set[str]) -> dict[str, list[FunctionType]]:
    """Return the functions of some files that exist in this process, by the files' real paths."""
    found: dict[str, dict[int, FunctionType]] = {}
    for function in _all_functions():
        path = function.__code__.co_filename
        if os.path.basename(path) in base_names:
            found.setdefault(os.path.realpath(path), {})[id(function)] = function
    return {path: list(functions.values()) for path, functions in found.items()}


def _all_functions() -> Iterator[FunctionType]:
    for thing in gc.get_objects():
        if type(thing) is FunctionType:
            yield thing
    # vLLM freezes its heap (gc.freeze), and what is frozen is not in the list.
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict:
            for thing in list(names.values()):
                if type(thing) is FunctionType:
                    yield thing
                elif isinstance(thing, type):
                    yield from _methods_of(thing)


def _methods_of(kind: type) -> Iterator[FunctionType]:
    for thing in list(vars(kind).values()):
        inner = getattr(thing, "__func__", thing) if isinstance(thing, staticmethod | classmethod) else thing
        if type(inner) is FunctionType:
            yield inner


def _running_codes() -> set[CodeType]:
    found = set()
    for top in sys._current_frames().values():
        frame = top
        while frame is not None:
            found.add(frame.f_code)
            frame = frame.f_back  # type: ignore[assignment]
    return found
