"""The breakpoints from outside that this process has, and the loader that compiles them into modules."""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import SourceFileLoader  # as in import_hooks.py

from raydebug.protocol import variables
from raydebug.worker import job

TYPE_CHECKING = False  # as in startup.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

    from raydebug.protocol.records import BreakpointSpec

_specs: list[BreakpointSpec] = []
loaded: set[str] = set()
"""Ids of breakpoints compiled into loaded code."""
on_set: Callable[[list[str]], None] = lambda ids: None  # noqa: E731
"""Called with the ids of breakpoints that have just been compiled into loaded code."""


def add_from_environment() -> None:
    """Add the breakpoints that the process was started with; its script is loaded with them too."""
    import json

    for spec in json.loads(os.environ[variables.BREAKS]):
        add(spec)
    script = (getattr(sys, "argv", None) or [""])[0]
    if script not in ("", "-c", "-m") and os.path.isfile(script) and specs_in("", os.path.abspath(script)):
        sys.path_hooks.insert(0, _ScriptImporter(script))


def add(spec: BreakpointSpec) -> None:
    """Compile a breakpoint into every module that is loaded from now on.

    The first one replaces `SourceFileLoader.get_code`; a finder would not do, because verl and others load a user's
    file by its path, past all finders (importlib.util.spec_from_file_location).
    """
    remove(spec["id"])
    _specs.append(spec)
    if SourceFileLoader.get_code is _plain_get_code:
        SourceFileLoader.get_code = _get_code  # type: ignore[assignment, method-assign]


def remove(break_id: str) -> None:
    """Leave a breakpoint out of the modules that are loaded from now on."""
    _specs[:] = [spec for spec in _specs if spec["id"] != break_id]
    loaded.discard(break_id)


def all_specs() -> list[BreakpointSpec]:
    """Return the breakpoints from outside that this process has."""
    return list(_specs)


def pending() -> list[BreakpointSpec]:
    """Return the breakpoints that are in no loaded code yet."""
    return [spec for spec in _specs if spec["id"] not in loaded]


def specs_in(fullname: str, path: str) -> list[BreakpointSpec]:
    """Return the breakpoints in a module."""
    base = os.path.basename(path)
    return [
        spec
        for spec in _specs
        if (spec.get("module") and spec["module"] == fullname)
        or (spec.get("file") and os.path.basename(spec["file"]) == base and is_same_file(spec["file"], path))
    ]


def note_set(ids: list[str]) -> None:
    """Note that these breakpoints are compiled into loaded code, and report it."""
    loaded.update(ids)
    on_set(ids)


def is_same_file(wanted: str, path: str) -> bool:
    """Say whether a file named by a user (a whole path, or the end of one) is this one."""
    path = os.path.realpath(path)
    if os.path.isabs(wanted):
        return os.path.realpath(wanted) == path
    return path.endswith("/" + os.path.normpath(wanted))


_plain_get_code = SourceFileLoader.get_code


def _get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
    specs = specs_in(fullname, loader.path)
    if not specs:
        return _plain_get_code(loader, fullname)
    from raydebug.worker.breakpoints import compile as compiler

    try:
        source = loader.get_data(loader.path)
        code = compiler.compile_with(source, loader.path, specs, as_script=fullname == "__main__")
    except Exception as error:  # noqa: BLE001 - the module itself must still load
        job.log(f"no breakpoint in {loader.path}: {type(error).__name__}: {error}")
        return _plain_get_code(loader, fullname)
    note_set([spec["id"] for spec in specs])
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
        from importlib.util import spec_from_file_location

        return spec_from_file_location("__main__", self._script, loader=_ScriptLoader("__main__", self._script))


class _ScriptLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        sys.path[0] = os.path.dirname(self.path)  # what plain Python puts there for a script
        return super().get_code(fullname)
