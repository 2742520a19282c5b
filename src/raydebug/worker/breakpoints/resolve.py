"""`python -m raydebug.worker.breakpoints.resolve PATH WHERE...`: resolve breakpoint locations where the job will run.

PATH is the job's PYTHONPATH, or empty.

Prints one JSON list: for each WHERE a BreakpointSpec, or {"where", "cause", "fix"}. Nothing of the job is imported.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from raydebug.protocol.records import BreakpointSpec
from raydebug.worker.breakpoints.compile import NoSuchPlace, find_statement

_LINE = re.compile(r"(?P<file>.+\.py):(?P<line>\d+)")
_IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<function>[A-Za-z_][\w.]*)")
_IN_MODULE = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<function>[A-Za-z_][\w.]*)")


class NotResolved(Exception):
    """A WHERE that names nothing: the text says why, `fix` what to change."""

    def __init__(self, cause: str, fix: str) -> None:
        super().__init__(cause)
        self.fix = fix


def resolve(where: str, search: list[str]) -> BreakpointSpec:
    """Return the breakpoint that a WHERE describes; folders are searched first to last for its file or module.

    Raises:
        NotResolved: it describes none.
    """
    spec: BreakpointSpec
    if found := _LINE.fullmatch(where):
        spec = {"file": found["file"], "line": int(found["line"])}
    elif found := _IN_FILE.fullmatch(where):
        spec = {"file": found["file"], "function": found["function"]}
    elif found := _IN_MODULE.fullmatch(where):
        spec = {"module": found["module"], "function": found["function"]}
    else:
        raise NotResolved(
            "it is neither file.py:LINE nor package.module:function",
            "write --break train.py:120, --break my.reward:compute_score or --break my.agent:Agent.run",
        )
    source = _find_file(spec["file"], search) if "file" in spec else _find_module(spec["module"], search)
    if "file" in spec:
        spec["file"] = os.path.realpath(source)
    _check(spec, source)
    return {"where": where, **spec, "source": os.path.realpath(source)}


def _find_file(file: str, search: list[str]) -> str:
    for folder in search:
        if os.path.isfile(candidate := os.path.join(folder, file)):
            return candidate
    cause = f"there is no file {file} in {search[0]} or on the job's Python path"
    raise NotResolved(cause, "name the file by its path from the working directory")


def _find_module(module: str, search: list[str]) -> str:
    path: Any = search
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        if spec is None:
            break
        path = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        # Whether a module is built in depends on the distribution: `math` is on Ubuntu, elsewhere it is a file.
        exists = spec is not None or module in sys.builtin_module_names
        result = "has no Python source" if exists else "is not found in the job's Python"
        fix = "check the module's name; a script is named by its file: --break script.py:LINE"
        raise NotResolved(f"module {module} {result}", fix)
    return spec.origin


def _check(spec: BreakpointSpec, source: str) -> None:
    try:
        with open(source, "rb") as file:
            tree = ast.parse(file.read(), source)
        find_statement(tree, spec.get("line"), spec.get("function"))
    except SyntaxError as error:
        raise NotResolved(f"{source}:{error.lineno} does not parse: {error.msg}", "correct the file") from error
    except NoSuchPlace as error:
        raise NotResolved(f"{source}: {error}", f"look up the right name or line in {source}") from error


def main(python_path: str, *wheres: str) -> None:
    """Print the breakpoint that each WHERE describes."""
    folder = os.getcwd()
    entries = [*python_path.split(os.pathsep), *sys.path]
    search = [folder, *(entry for entry in entries if entry and entry != folder and os.path.isdir(entry))]
    answers: list[Any] = []
    for where in wheres:
        try:
            answers.append(resolve(where, search))
        except NotResolved as failure:
            answers.append({"where": where, "cause": str(failure), "fix": failure.fix})
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
