"""Watches imports: Ray's debugger module gets our pause; modules with breakpoints from outside get them built in."""

from __future__ import annotations

import os
import sys

# importlib.machinery has them from here, and is 0.5 ms of files that no interpreter has loaded yet.
from _frozen_importlib_external import PathFinder, SourceFileLoader

from raydebug.worker import job_log, names

TYPE_CHECKING = False  # as in startup.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any


class _Watcher:
    """A meta path finder that answers only for modules that we put a hook into; one look-up for every other import."""

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]) -> None:
        self._hooks = hooks

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self._hooks:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _TellingLoader(fullname, spec.origin, self._hooks[fullname])
        return spec


class _TellingLoader(SourceFileLoader):
    """Loads a module as ever, then lets us put our hooks into it."""

    def __init__(self, fullname: str, path: str, hook: Callable[[ModuleType], None]) -> None:
        super().__init__(fullname, path)
        self._hook = hook

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        self._hook(module)


def _take_over_ray(module: ModuleType) -> None:
    from raydebug.worker import ray_hooks

    ray_hooks.take_over(module)


def _take_over_legacy(module: ModuleType) -> None:
    if os.environ.get("RAY_DEBUG") == "legacy":
        from raydebug.worker import legacy

        legacy.take_over(module)


def watch_threads(module: ModuleType) -> None:
    """Let an error that ends a thread pause it, as one that ends the program does."""
    from raydebug.worker import startup

    previous = module.excepthook

    def excepthook(arguments: Any) -> None:
        if startup.post_mortem_is_on() and arguments.exc_value is not None:
            from raydebug.worker import pause

            pause.pause_on_error(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        previous(arguments)

    module.excepthook = excepthook  # type: ignore[attr-defined]


def _tell_children(module: ModuleType) -> None:
    from raydebug.worker import descent

    descent.tell_children(module)


def _open_control_line(_module: ModuleType) -> None:
    if names.JOB in os.environ:
        from raydebug.worker import control

        control.open_line()


def _take_over_ray_and_open_line(module: ModuleType) -> None:
    _take_over_ray(module)
    _open_control_line(module)


def _widen_groups(module: ModuleType) -> None:
    if names.GROUP_TIMEOUT in os.environ:
        _widen_groups_on_demand(module)


def _widen_groups_on_demand(module: ModuleType) -> None:
    from raydebug.worker import watchdogs

    watchdogs.widen_groups(module)


def _stay_out_of_graphs(module: ModuleType) -> None:
    from raydebug.worker import compiled

    try:
        compiled.stay_out(module)
    except Exception as error:  # noqa: BLE001 - another torch: the job goes on, and its breakpoints too
        job_log.write(f"torch.compile looks into breakpoints here: {type(error).__name__}: {error}")


def _go_into_other_pythons(module: ModuleType) -> None:
    if names.OPEN not in os.environ:
        from raydebug.worker import another_python

        another_python.take_along(module)


# Source: ray 2.60.0 util/rpdb.py:298 and 343 call `ray.util.debugpy.set_trace` and `_post_mortem`.
# torch: what a child of a training process (vLLM's engine, a data loader's worker) imports; it takes seconds anyway.
_ON_LOAD = {
    "ray.util.debugpy": _take_over_ray_and_open_line,
    "ray.util.rpdb": _take_over_legacy,
    "ray._private.function_manager": _tell_children,
    "ray._private.runtime_env.context": _go_into_other_pythons,
    "threading": watch_threads,
    "torch": _open_control_line,
    "torch._dynamo.trace_rules": _stay_out_of_graphs,
    "torch.distributed.distributed_c10d": _widen_groups,
}


_breaks: list[dict[str, Any]] = []
loaded: set[str] = set()
"""The ids of those that stand in code of this process since it was loaded."""


def add_break(definition: dict[str, Any]) -> None:
    """Build a breakpoint from outside into every module that is loaded from now on.

    The first one takes the place of `SourceFileLoader.get_code`, not of a finder: verl and others load a user's file by
    its path, past all finders (importlib.util.spec_from_file_location).
    """
    remove_break(definition["id"])
    _breaks.append(definition)
    if SourceFileLoader.get_code is _plain_get_code:
        SourceFileLoader.get_code = _get_code  # type: ignore[assignment, method-assign]


def remove_break(break_id: str) -> None:
    """Leave a breakpoint out of the modules that are loaded from now on."""
    _breaks[:] = [b for b in _breaks if b["id"] != break_id]


def known_breaks() -> list[dict[str, Any]]:
    """Return the breakpoints from outside that this process has."""
    return list(_breaks)


def breaks_in(fullname: str, path: str) -> list[dict[str, Any]]:
    """Return the breakpoints in a module."""
    base = os.path.basename(path)
    return [
        b
        for b in _breaks
        if (b.get("module") and b["module"] == fullname)
        or (b.get("file") and os.path.basename(b["file"]) == base and same_file(b["file"], path))
    ]


_plain_get_code = SourceFileLoader.get_code


def _get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
    mine = breaks_in(fullname, loader.path)
    if not mine:
        return _plain_get_code(loader, fullname)
    from raydebug.worker import breaks

    try:
        code = breaks.compile_with(loader.get_data(loader.path), loader.path, mine, as_script=fullname == "__main__")
    except Exception as error:  # noqa: BLE001 - the module itself must still load
        job_log.write(f"no breakpoint in {loader.path}: {type(error).__name__}: {error}")
        return _plain_get_code(loader, fullname)
    note_set([str(b["id"]) for b in mine])
    return code


def note_set(ids: list[str]) -> None:
    """Note that these breakpoints stand in code of this process, and tell the gateway where there is a line to it."""
    loaded.update(ids)
    control = sys.modules.get("raydebug.worker.control")
    if control is not None:
        control.report_set(ids)


def same_file(wanted: str, path: str) -> bool:
    """Say whether a file named by a user (whole path, or the end of one) is this one."""
    path = os.path.realpath(path)
    if os.path.isabs(wanted):
        return os.path.realpath(wanted) == path
    return path.endswith("/" + os.path.normpath(wanted))


class _MainImporter:
    """Runs `python SCRIPT` with breakpoints built in by the loader, the way Python runs a zip file or a folder.

    Source: CPython Modules/main.c pymain_get_importer: a path hook that takes the script's path makes Python look
    for `__main__` there.
    """

    def __init__(self, script: str) -> None:
        self._script = os.path.abspath(script)  # Python makes the path absolute before it asks (since 3.9)

    def __call__(self, path: str) -> _MainImporter:
        if os.path.abspath(path) != self._script:
            raise ImportError
        return self

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "__main__":
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location("__main__", self._script, loader=_MainLoader("__main__", self._script))


class _MainLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        sys.path[0] = os.path.dirname(self.path)  # what the script would find under plain Python
        return super().get_code(fullname)


def watch() -> None:
    """Install the finder and, where there are breakpoints from outside, what builds them in."""
    if "threading" in sys.modules:
        watch_threads(sys.modules["threading"])
    sys.meta_path.insert(0, _Watcher(_ON_LOAD))
    if not os.environ.get(names.BREAKS):
        return
    import json

    for definition in json.loads(os.environ[names.BREAKS]):
        add_break(definition)
    script = (getattr(sys, "argv", None) or [""])[0]
    if script not in ("", "-c", "-m") and os.path.isfile(script) and breaks_in("", os.path.abspath(script)):
        sys.path_hooks.insert(0, _MainImporter(script))


def watch_ahead() -> _Watcher:
    """Install what must be in place when others bind a module's names, in a process that others are forked from."""
    watcher = _Watcher({"torch.distributed.distributed_c10d": _widen_groups_on_demand})
    sys.meta_path.insert(0, watcher)
    return watcher


def catch_up() -> None:
    """Do what the loading of a module would have done, for those that a warm process has loaded before its start."""
    for name, hook in _ON_LOAD.items():
        if name != "threading" and name in sys.modules:
            hook(sys.modules[name])
    if _breaks:
        from raydebug.worker import live

        reports = live.build_in(_breaks)
        note_set([str(report["id"]) for report in reports if report["state"] == live.SET])
