"""Takes our hook along into a Ray worker whose Python is another one (`py_executable`, `uv run`, conda).

Such a Python may have no raydebug. Ray's own debugger would then open a port there without a token, that nobody's list
has. So the worker's program is run by this file: it has the hook of the Python that starts the worker.

`python another_python.py WORKER_PROGRAM ARGUMENTS...`
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in startup.py
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONTAINER_ENGINES = ("podman", "docker")  # their images do not have this file


def take_along(module: ModuleType) -> None:
    """Let Ray start workers of another Python by this file.

    Source: ray 2.60.0 _private/workers/setup_worker.py executes a worker through
    _private/runtime_env/context.py RuntimeEnvContext.exec_worker(["DEFAULT_WORKER.py", ...], language).
    """
    context: Any = module.RuntimeEnvContext
    exec_worker = context.exec_worker

    def exec_worker_with_hook(self: Any, arguments: list[str], language: Any) -> Any:
        if _is_another(self) and arguments and arguments[0].endswith(".py"):
            arguments = [os.path.abspath(__file__), *arguments]
        return exec_worker(self, arguments, language)

    context.exec_worker = exec_worker_with_hook


def _is_another(context: Any) -> bool:
    words = [*context.command_prefix, *context.py_executable.split()]
    if context.override_worker_entrypoint or {os.path.basename(word) for word in words}.intersection(CONTAINER_ENGINES):
        return False
    return bool(context.command_prefix) or context.py_executable != sys.executable


def main() -> None:
    """Put the hook in place, and run the worker's program."""
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    try:
        _hook()
    except Exception as error:  # noqa: BLE001 - the worker must start, and open no port
        os.environ["RAY_DEBUG"] = "0"
        sys.stderr.write(f"raydebug: no breakpoints in {sys.executable}: {type(error).__name__}: {error}\n")
    import runpy

    runpy.run_path(sys.argv[0], run_name="__main__")


def _hook() -> None:
    import importlib.util

    if importlib.util.find_spec("raydebug") is None:
        path = os.path.join(PACKAGE, "__init__.py")
        spec = importlib.util.spec_from_file_location("raydebug", path, submodule_search_locations=[PACKAGE])
        assert spec is not None
        assert spec.loader is not None
        sys.modules["raydebug"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["raydebug"])
    import raydebug.worker.startup  # noqa: F401 - loaded already where this Python has our .pth


if __name__ == "__main__":
    main()
