"""Call a function when a module has been imported. Imports nothing that a Python has not loaded at its start."""

from __future__ import annotations

import sys

# importlib.machinery has it from here, and is 0.5 ms of files that no interpreter has loaded yet.
from _frozen_importlib_external import PathFinder

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost every Python 17 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class _Finder:
    """A meta path finder for one module."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self._then = name, then

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with the module of this name when it has been executed, once; at once if it is there already."""
    if name in sys.modules:
        then(sys.modules[name])
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, then))  # no class of importlib: see above
