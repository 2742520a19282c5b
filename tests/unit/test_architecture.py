"""The import graph of src/raydebug: no cycle of any kind, a map that names every room, and no name everywhere."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"
ROOM = SRC / "raydebug"


def module_of(path: Path) -> str:
    """Return a file's dotted name; a package has the name of its folder."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of ours that a file imports: at load time, inside functions and under TYPE_CHECKING."""
    own = module_of(path)
    package = own if path.name == "__init__.py" else own.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(name, package) if node.level else name
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base for alias in node.names}
    return (found & modules) - {own}


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Return which modules of ours each one imports."""
    paths = sorted(ROOM.rglob("*.py"))
    modules = {module_of(path) for path in paths}
    return {module_of(path): imports_of(path, modules) for path in paths}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected groups of more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in graph:
        if module not in index:
            visit(module)
    return found


def test_no_cycle_of_modules():
    """No module imports itself through others, also not inside functions or under TYPE_CHECKING."""
    assert cycles(import_graph()) == []


def test_cycles_are_found():
    """The test above would see a cycle: of two modules, and of three."""
    graph = {"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"e"}, "e": {"c", "a"}, "f": {"a"}}
    assert cycles(graph) == [["a", "b"], ["c", "d", "e"]]


def rooms_on_the_map() -> list[str]:
    """Return the folders in the table of docs/architecture.md, in its order: from the bottom to the top."""
    text = (SRC.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([a-z]+)/` \|", text, flags=re.MULTILINE)


def test_map_names_every_room():
    """docs/architecture.md has one row for every folder of src/raydebug, and none for another one."""
    folders = {path.relative_to(ROOM).parts[0] for path in ROOM.glob("*/**/*.py")}
    assert sorted(rooms_on_the_map()) == sorted(folders)


def test_rooms_import_what_is_below_them():
    """A room imports only rooms that come before it on the map."""
    height = {room: number for number, room in enumerate(rooms_on_the_map())}
    wrong = []
    for module, imported in import_graph().items():
        room = module.split(".")[1:2]
        for other in imported:
            target = other.split(".")[1:2]
            if room and target and height.get(room[0], -1) < height.get(target[0], -1) and room[0] in height:
                wrong.append(f"{module} imports {other}")
    assert wrong == []


def test_no_name_in_more_than_two_rooms():
    """A file's name says what is in it: no more than two rooms have one of the same name."""
    rooms: dict[str, set[str]] = {}
    for path in ROOM.rglob("*.py"):
        inside = path.relative_to(ROOM).parts
        if len(inside) > 1 and not path.name.startswith("__"):
            rooms.setdefault(path.name, set()).add(inside[0])
    assert {name: found for name, found in rooms.items() if len(found) > 2} == {}
