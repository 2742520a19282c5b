"""Watches imports: Ray's debugger module gets our pause; modules with breakpoints from outside get them built in."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

from raydebug.worker import names

TYPE_CHECKING = False  # as in startup.py
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any


class _Watcher:
    """A meta path finder that answers only for modules that we put a hook into; one look-up for every other import."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in _ON_LOAD:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _TellingLoader(fullname, spec.origin)
        return spec


class _TellingLoader(SourceFileLoader):
    """Loads a module as ever, then lets us put our hooks into it."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _ON_LOAD[module.__name__](module)


def _take_over_ray(module: ModuleType) -> None:
    from raydebug.worker import ray_hooks

    ray_hooks.take_over(module)


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


# Source: ray 2.60.0 util/rpdb.py:298 and 343 call `ray.util.debugpy.set_trace` and `_post_mortem`.
_ON_LOAD = {"ray.util.debugpy": _take_over_ray, "threading": watch_threads}


class _Breaks:
    """Compiles the modules that breakpoints from outside name with the stops built in.

    It stands in for `SourceFileLoader.get_code`, not for a finder: verl and others load a user's file by its path,
    past all finders (importlib.util.spec_from_file_location).
    """

    def __init__(self, breaks: list[dict[str, Any]]) -> None:
        self._modules = {b["module"] for b in breaks if b.get("module")}
        self._file_names = {os.path.basename(b["file"]) for b in breaks if b.get("file")}
        self._breaks = breaks

    def named_by(self, fullname: str, path: str) -> list[dict[str, Any]]:
        """Return the breakpoints in a module."""
        if fullname not in self._modules and os.path.basename(path) not in self._file_names:
            return []
        return [
            b for b in self._breaks if b.get("module") == fullname or (b.get("file") and same_file(b["file"], path))
        ]

    def install(self) -> None:
        """Take the place of the loader's own method."""
        plain = SourceFileLoader.get_code
        named_by = self.named_by

        def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
            mine = named_by(fullname, loader.path)
            if not mine:
                return plain(loader, fullname)
            from raydebug.worker import breaks

            try:
                return breaks.compile_with(
                    loader.get_data(loader.path), loader.path, mine, as_script=fullname == "__main__"
                )
            except Exception as error:  # noqa: BLE001 - the module itself must still load
                sys.stderr.write(f"raydebug: no breakpoint in {loader.path}: {type(error).__name__}: {error}\n")
                return plain(loader, fullname)

        SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]


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
    sys.meta_path.insert(0, _Watcher())
    if not os.environ.get(names.BREAKS):
        return
    import json

    breaks = _Breaks(json.loads(os.environ[names.BREAKS]))
    breaks.install()
    script = (getattr(sys, "argv", None) or [""])[0]
    if script not in ("", "-c", "-m") and os.path.isfile(script) and breaks.named_by("", os.path.abspath(script)):
        sys.path_hooks.insert(0, _MainImporter(script))
