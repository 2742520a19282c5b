"""Who imports whom at import time: what import contracts cannot say, because they also see imports inside functions."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "raydebug"
WORKER_MAY = ("raydebug.worker", "raydebug.protocol")
HEAVY = ("ray", "torch", "transformers", "vllm", "verl", "debugpy")


def imported_on_load(tree: ast.Module) -> set[str]:
    """Return the modules that a file imports when it is loaded, without those under TYPE_CHECKING."""
    found: set[str] = set()
    rest: list[ast.AST] = list(tree.body)
    while rest:
        node = rest.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            whole = f"{node.module}.{node.names[0].name}"
            found.add(whole if node.module == "raydebug" else str(node.module))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            rest += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            rest += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("path", sorted((SOURCE / "worker").rglob("*.py")), ids=lambda path: path.name)
def test_worker_loads_the_standard_library_only(path: Path) -> None:
    """A file of the worker side, when loaded, imports the standard library, its neighbours and raydebug.protocol."""
    foreign = {
        name
        for name in imported_on_load(ast.parse(path.read_text()))
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not name.startswith(WORKER_MAY)
        and name != "raydebug"  # the package itself: a version and a function that does nothing
    }
    assert foreign == set()


def test_cli_loads_nothing_heavy() -> None:
    """`import raydebug.cli` in a fresh Python loads none of ray, torch, transformers, vllm, verl, debugpy."""
    program = f"import sys, raydebug.cli; print(sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


MODULES_MOST = {  # a few more than when this was written: files may be split
    "--help": 37,
    "paused --help": 11,
    "report --list": 20,
    "paused": 34,
    "attach": 61,
    "stacks": 55,
    "diagnose FILE": 50,
    "check env --fresh": 67,
}


@pytest.mark.parametrize("line", MODULES_MOST)
def test_a_verb_loads_few_modules(line: str, tmp_path: Path) -> None:
    """A verb imports its own part of raydebug: a ceiling for each, and one who raises it says why in the commit."""
    (tmp_path / "FILE").write_text("ValueError: no\n")
    (tmp_path / "token").write_text("0" * 64)
    (tmp_path / "token").chmod(0o600)
    program = "import atexit, sys; from raydebug.cli import main; sys.argv[0] = 'raydebug'; atexit.register(lambda:"
    program += " print(sum(name.startswith('raydebug') for name in sys.modules))); main()"
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "RAYDEBUG_TOKEN_PATH": str(tmp_path / "token")}
    if line in ("paused", "attach", "stacks"):  # a cluster whose gateway does not answer
        environment |= {"RAYDEBUG_DASHBOARD": "http://127.0.0.1:9", "RAYDEBUG_GATEWAY_CLIENTS": "127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *line.split()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert int(done.stdout.split()[-1]) <= MODULES_MOST[line], done.stdout + done.stderr
