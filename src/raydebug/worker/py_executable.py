"""Run a Ray worker with our hook in another Python (`py_executable`, `uv run`, conda).

Such a Python may have no raydebug. Ray's own debugger would then open a port there without a token, which appears in
no list. So ray_debugger.py lets this file run the worker's program: it installs the hook of the Python that starts the
worker.

`python py_executable.py WORKER_PROGRAM ARGUMENTS...`
"""

from __future__ import annotations

import os
import sys

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main() -> None:
    """Install the hook, and run the worker's program."""
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    try:
        _install_hook()
    except Exception as error:  # noqa: BLE001 - the worker must start, and open no port
        os.environ["RAY_DEBUG"] = "0"
        sys.stderr.write(f"raydebug: no breakpoints in {sys.executable}: {type(error).__name__}: {error}\n")
    import runpy

    runpy.run_path(sys.argv[0], run_name="__main__")


def _install_hook() -> None:
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
