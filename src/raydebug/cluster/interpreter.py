"""The interpreter that Ray runs in: which one it is, and what is installed there."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import raydebug
from raydebug import process
from raydebug.cluster.joined_job import facts_of_python, problem_of
from raydebug.errors import RaydebugError, UsageError
from raydebug.process import SAFE_PATH, answer_in
from raydebug.settings.flavours import flavour_of, install_raydebug

_IMPORTS = "import importlib.metadata, json, os, platform, site, sys, sysconfig\nfrom typing import Any\n"


@dataclass(frozen=True)
class Environment:
    """The environment of a cluster's interpreter: its flavour (core, cpu, cuda) and its Ray."""

    flavour: str
    ray: str


def probe() -> str:
    """Return the program that prints what is installed in the Python that runs it, without importing it."""
    import inspect  # for the start of a cluster only

    return f"{_IMPORTS}{inspect.getsource(facts_of_python)}print(json.dumps(facts_of_python()))"


def find_interpreter(named: str | None = None) -> str:
    """Return the absolute path of the interpreter that Ray starts in: its processes start in other folders.

    Args:
        named: a path, or a name on the PATH. None: the shell's `python` where it has Ray and raydebug, else ours.
    """
    if named:
        return os.path.abspath(shutil.which(named) or named)
    shells = shutil.which("python")
    if shells and Path(shells).parent != Path(sys.executable).parent:
        with contextlib.suppress(RaydebugError):
            packages = installed_in(shells)
            if packages["ray"] and packages["raydebug"]:
                return str(packages["executable"])  # pyenv's `python` is a script, whose folder is no environment
    return sys.executable


@functools.cache
def installed_in(python: str) -> dict[str, Any]:
    """Return what `facts_of_python` finds in an interpreter.

    Raises:
        RaydebugError: it does not run, or is no Python.
    """
    printed = process.run(
        [python, SAFE_PATH, "-c", probe()], timeout_s=30, fix="name a working interpreter with --python"
    )
    try:
        found: dict[str, Any] = answer_in(printed)
    except (ValueError, IndexError) as error:
        raise UsageError(
            f"{python} is no Python",
            cause="it ran, and did not answer as a Python does",
            fix="name a working interpreter with --python",
            code="environment.no-python",
        ) from error
    return found


def probe_environment(python: str) -> Environment:
    """Return the environment of the interpreter in which a cluster will run.

    Raises:
        RaydebugError: Ray, debugpy or this raydebug is missing there, or it is no Python.
    """
    found = installed_in(python)
    if problem := problem_of(found, raydebug.__version__):
        raise UsageError(
            f"{python} cannot run a cluster",
            cause=problem,
            fix=f"in raydebug's checkout: {python} -m {install_raydebug('ray')}",
            code="environment.unusable",
        )
    return Environment(flavour_of(found), found["ray"])
