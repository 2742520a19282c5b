"""Swap the code of loaded functions for code with breakpoints compiled in; nothing is traced."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType

from raydebug.protocol.messages import FAILED, SET, WAITING
from raydebug.protocol.records import BreakpointReport, BreakpointSpec
from raydebug.worker import job
from raydebug.worker.breakpoints import compile as compiler
from raydebug.worker.breakpoints import registry, runtime


def build_in_loaded(specs: list[BreakpointSpec]) -> None:
    """Build breakpoints into loaded functions and note which of them are set; never raises."""
    try:
        registry.note_set([report["id"] for report in build_in(specs) if report["state"] == SET])
    except Exception as error:  # noqa: BLE001 - the task runs, with or without its breakpoints
        job.log(f"no breakpoint in functions that have arrived: {type(error).__name__}: {error}")


def build_in(specs: list[BreakpointSpec]) -> list[BreakpointReport]:
    """Build breakpoints into the loaded functions of their files.

    Returns:
        The state of each breakpoint: `set` in loaded functions, `waiting` for its file to be loaded, or `failed` with
        the reason.
    """
    functions = _functions_by_file({os.path.basename(spec["source"]) for spec in specs})
    reports: list[BreakpointReport] = []
    for spec in specs:
        path = os.path.realpath(spec["source"])
        try:
            state, message = _build_into(path, functions.get(path, []), spec)
        except Exception as error:  # noqa: BLE001 - a breakpoint that cannot be set must not harm the process
            state, message = FAILED, f"{type(error).__name__}: {error}"
        reports.append({"id": spec["id"], "state": state, "message": message})
    return reports


def _build_into(path: str, functions: list[FunctionType], spec: BreakpointSpec) -> tuple[str, str]:
    if not functions:
        return WAITING, "its file is not loaded here"
    with open(path, "rb") as file:
        source = file.read()
    # The breakpoints that the file has already stay in it.
    specs_of_file = [one for one in registry.all_specs() if os.path.realpath(one["source"]) == path]
    new = dict(compiler.codes_of(compiler.compile_with(source, path, specs_of_file)))
    name = compiler.site_name(spec["id"])
    if not any(name in code.co_names for key, code in new.items() if key[0] != "<module>"):
        return FAILED, "its line has run already: it is outside of any function"
    found, running = False, set()
    now_running = _running_codes()
    for function in functions:
        key = (function.__code__.co_qualname, function.__code__.co_firstlineno)
        code = new.get(key)
        if code is None or not _mentions(code, name):
            continue
        found = True
        old = compiler.PLAIN.get(function.__code__, function.__code__)
        if compiler.PLAIN[code].co_code != old.co_code or code.co_freevars != old.co_freevars:
            return FAILED, f"{path} has changed since it was loaded here"
        if function.__code__ in now_running:
            running.add(function.__qualname__)
        for one in specs_of_file:
            function.__globals__[compiler.site_name(one["id"])] = runtime.site_of(one)
        function.__code__ = code
    if not found:
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
    # vLLM freezes its heap (gc.freeze); get_objects() does not return frozen objects.
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
