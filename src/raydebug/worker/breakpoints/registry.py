"""The breakpoints from outside that this process has: compiled into modules as they load, and into loaded functions.

Nothing is traced: a loaded function gets its code swapped for code with its breakpoints compiled in.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from _frozen_importlib_external import SourceFileLoader  # as in import_hooks.py
from types import CodeType, FunctionType

from raydebug import worker
from raydebug.protocol import variables
from raydebug.protocol.messages import FAILED, SET, WAITING
from raydebug.worker.breakpoints import runtime

TYPE_CHECKING = False  # as in startup.py
if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from raydebug.protocol.records import BreakpointReport, BreakpointSpec

_specs: list[BreakpointSpec] = []


def add_from_environment() -> None:
    """Add the breakpoints that the process was started with; its script is loaded with them too."""
    import json

    for spec in json.loads(os.environ[variables.BREAKS]):
        add(spec)
    script = (getattr(sys, "argv", None) or [""])[0]
    if script not in ("", "-c", "-m") and os.path.isfile(script) and specs_in("", os.path.abspath(script)):
        sys.path_hooks.insert(0, _ScriptImporter(script))
    atexit.register(_say_what_was_never_set)


def _say_what_was_never_set() -> None:
    """Log each breakpoint in a file that this process has compiled itself, past all loaders."""
    pending = [spec for spec in _specs if spec["id"] not in runtime.loaded]
    ran = {os.path.realpath((getattr(sys, "argv", None) or [""])[0])}
    if pending and worker.debugger_is_ours():
        ran.update(_functions_by_file({os.path.basename(spec.get("source", "")) for spec in pending}))
        for spec in pending:
            if os.path.realpath(spec.get("source", "")) in ran:
                why = "the program compiled the file itself, as `python -m cProfile` does; write breakpoint() into it"
                worker.log(f"breakpoint {spec['where']} was never set: {why}")


def add(spec: BreakpointSpec) -> None:
    """Arm a breakpoint, and compile it into every module that is loaded from now on.

    The first one replaces `SourceFileLoader.get_code`; a finder would not do, because verl and others load a user's
    file by its path, past all finders (importlib.util.spec_from_file_location).
    """
    _forget(spec["id"])
    runtime.site_of(spec).arm()
    _specs.append(spec)
    if SourceFileLoader.get_code is _plain_get_code:
        SourceFileLoader.get_code = _get_code  # type: ignore[assignment, method-assign]


def remove(break_id: str) -> None:
    """Let a breakpoint stop nowhere, and leave it out of the modules that are loaded from now on."""
    _forget(break_id)
    runtime.disarm(break_id)


def _forget(break_id: str) -> None:
    _specs[:] = [spec for spec in _specs if spec["id"] != break_id]
    runtime.loaded.discard(break_id)


def all_specs() -> list[BreakpointSpec]:
    """Return the breakpoints from outside that this process has."""
    return list(_specs)


def specs_in(fullname: str, path: str) -> list[BreakpointSpec]:
    """Return the breakpoints in a module."""
    base = os.path.basename(path)
    return [
        spec
        for spec in _specs
        if (spec.get("module") and spec["module"] == fullname)
        or (spec.get("file") and os.path.basename(spec["file"]) == base and is_same_file(spec["file"], path))
    ]


def is_same_file(wanted: str, path: str) -> bool:
    """Return whether a file named by a user (a whole path, or the end of one) is this one."""
    path = os.path.realpath(path)
    if os.path.isabs(wanted):
        return os.path.realpath(wanted) == path
    return path.endswith("/" + os.path.normpath(wanted))


_plain_get_code = SourceFileLoader.get_code


def _get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
    specs = specs_in(fullname, loader.path)
    if not specs:
        return _plain_get_code(loader, fullname)
    with worker.fork_guard:
        from raydebug.worker.breakpoints import compile as compiler
    try:
        source = loader.get_data(loader.path)
        code = compiler.compile_with(source, loader.path, specs, as_script=fullname == "__main__")
    except Exception as error:  # noqa: BLE001 - the module itself must still load
        worker.log(f"no breakpoint in {loader.path}: {type(error).__name__}: {error}")
        return _plain_get_code(loader, fullname)
    runtime.note_set([spec["id"] for spec in specs if compiler.site_name(spec["id"]) in code.co_names])
    return code


class _ScriptImporter:
    """Runs `python SCRIPT` through the loader that compiles breakpoints in, the way Python runs a zip file or a folder.

    Source: CPython Modules/main.c pymain_get_importer: if a path hook accepts the script's path, Python imports
    `__main__` from there.
    """

    def __init__(self, script: str) -> None:
        self._script = os.path.abspath(script)  # Python makes the path absolute before it asks (since 3.9)

    def __call__(self, path: str) -> _ScriptImporter:
        if os.path.abspath(path) != self._script:
            raise ImportError
        return self

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "__main__":
            return None
        with worker.fork_guard:
            from importlib.util import spec_from_file_location
        return spec_from_file_location("__main__", self._script, loader=_ScriptLoader("__main__", self._script))


class _ScriptLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        # Python has put the script itself there. In its place comes what plain Python puts there for a script
        # (CPython 3.11 to 3.13 Python/pathconfig.c, _PyPathConfig_ComputeSysPath0), which is nothing with -P.
        sys.path[:1] = [] if sys.flags.safe_path else [os.path.dirname(os.path.realpath(self.path))]
        return super().get_code(fullname)


# Functions that are loaded already


def build_in_pending() -> None:
    """Build the breakpoints that are in no loaded code yet into functions that have arrived; never raises."""
    with worker.harmless("no breakpoint in functions that have arrived"):
        if pending := [spec for spec in _specs if spec["id"] not in runtime.loaded]:
            runtime.note_set([report["id"] for report in build_in(pending) if report["state"] == SET])


def build_in(specs: list[BreakpointSpec]) -> list[BreakpointReport]:
    """Build breakpoints into the loaded functions of their files, and return the state of each.

    It is `set` in loaded functions, `waiting` for its file to be loaded, or `failed` with the reason.
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
    with worker.fork_guard:
        from raydebug.worker.breakpoints import compile as compiler
    with open(path, "rb") as file:
        source = file.read()
    if fault := compiler.fault_of(source, path, spec):
        return FAILED, fault
    # The breakpoints that the file has already stay in it.
    specs_of_file = [spec for spec in _specs if os.path.realpath(spec["source"]) == path]
    new = dict(compiler.codes_of(compiler.compile_with(source, path, specs_of_file)))
    name = compiler.site_name(spec["id"])
    if not any(name in code.co_names for key, code in new.items() if key[0] != "<module>"):
        return FAILED, "its line has run already: it is outside of any function"
    found, running, fault = False, set(), ""
    now_running = _running_codes()
    for function in functions:
        key = (function.__code__.co_qualname, function.__code__.co_firstlineno)
        code = new.get(key)
        # Python 3.11 has a function for a module that runs: it is not called again.
        if code is None or not _mentions(code, name) or key[0] == "<module>":
            continue
        found = True
        old, plain = compiler.PLAIN.get(function.__code__, function.__code__), compiler.PLAIN[code]
        if plain.co_code != old.co_code or plain.co_freevars != old.co_freevars:
            return FAILED, f"{path} has changed since it was loaded here"
        if missing := sorted({*code.co_freevars}.difference(function.__code__.co_freevars)):
            fault = (
                f"it uses {', '.join(missing)} of the enclosing function, which {key[0]} does not use itself; "
                "it stops only where this function is made from now on"
            )
            continue
        if function.__code__ in now_running:
            running.add(function.__qualname__)
        for spec in specs_of_file:
            function.__globals__[compiler.site_name(spec["id"])] = runtime.site_of(spec)
        function.__code__ = code
    if fault:
        return FAILED, fault
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
                elif issubclass(type(thing), type):  # isinstance asks thing.__class__: code of its own, and warnings
                    for member in list(vars(thing).values()):
                        is_wrapped = isinstance(member, staticmethod | classmethod)
                        inner = getattr(member, "__func__", member) if is_wrapped else member
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
