"""`python -m raydebug.worker.locate WHERE...`: what breakpoints from outside name, asked where the job will run.

Prints one JSON list: for each WHERE what worker/imports.py needs to build it in, or {"where", "cause", "fix"}.
Nothing of the job is imported.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from raydebug.worker.breaks import NothingThere, find_statement

_LINE = re.compile(r"(?P<file>.+\.py):(?P<line>\d+)")
_IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<function>[A-Za-z_][\w.]*)")
_IN_MODULE = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<function>[A-Za-z_][\w.]*)")


class NamesNothing(Exception):
    """A WHERE that names nothing: why, and what to change."""

    def __init__(self, cause: str, fix: str) -> None:
        super().__init__(cause)
        self.fix = fix


def locate(where: str, search: list[str]) -> dict[str, Any]:
    """Return what a WHERE names.

    Args:
        where: `file.py:LINE`, `file.py:function`, `package.module:function` or `package.module:Class.method`.
        search: folders in which a file or a module is looked for, first to last.

    Raises:
        NamesNothing: nothing.
    """
    wanted: dict[str, Any]
    if found := _LINE.fullmatch(where):
        wanted = {"file": found["file"], "line": int(found["line"])}
    elif found := _IN_FILE.fullmatch(where) or _IN_MODULE.fullmatch(where):
        wanted = found.groupdict()
    else:
        raise NamesNothing(
            "it is neither file.py:LINE nor package.module:function",
            "write --break train.py:120, --break my.reward:compute_score or --break my.agent:Agent.run",
        )
    source = _file_of(wanted["file"], search) if "file" in wanted else _module_source(wanted["module"], search)
    if "file" in wanted:
        wanted["file"] = os.path.realpath(source)
    _check(wanted, source)
    return {"where": where, **wanted, "source": os.path.realpath(source)}


def _file_of(file: str, search: list[str]) -> str:
    for folder in search:
        candidate = os.path.join(folder, file)
        if os.path.isfile(candidate):
            return candidate
    raise NamesNothing(
        f"there is no file {file} in {search[0]} or on the job's Python path",
        "name the file by its path from the working directory",
    )


def _module_source(module: str, search: list[str]) -> str:
    path: Any = search
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        if spec is None:
            break
        path = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        seen = "has no Python source" if spec is not None else "is not found in the job's Python"
        raise NamesNothing(
            f"module {module} {seen}",
            "check the module's name; a script is named by its file: --break script.py:LINE",
        )
    return spec.origin


def _check(wanted: dict[str, Any], source: str) -> None:
    try:
        with open(source, "rb") as file:
            tree = ast.parse(file.read(), source)
        find_statement(tree, wanted.get("line"), wanted.get("function"))
    except SyntaxError as error:
        raise NamesNothing(f"{source}:{error.lineno} does not parse: {error.msg}", "mend the file") from error
    except NothingThere as error:
        raise NamesNothing(f"{source}: {error}", f"look into {source} for the right name or line") from error


def main(wheres: list[str]) -> None:
    """Print what each WHERE names."""
    folder = os.getcwd()
    search = [folder, *(entry for entry in sys.path if entry and entry != folder and os.path.isdir(entry))]
    answers = []
    for where in wheres:
        try:
            answers.append(locate(where, search))
        except NamesNothing as nothing:
            answers.append({"where": where, "cause": str(nothing), "fix": nothing.fix})
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
