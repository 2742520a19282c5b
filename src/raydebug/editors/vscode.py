"""VS Code's launch.json: one configuration with which F5 opens every pause of a cluster.

It contains no token. VS Code's Python debugger starts the program of `debugAdapterPath` as its adapter, which finds the
cluster and reads the token (adapter.py). Source: microsoft/vscode-python-debugger accf683 (2026.7),
src/extension/debugger/adapter/factory.ts:60-100: an `attach` with `listen` and without `connect` uses the adapter's
stdin and stdout, and `listen` has no other effect.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from raydebug.cluster.state import Cluster
from raydebug.editors import adapter
from raydebug.editors.jsonc import JsoncError, Node, parse_jsonc
from raydebug.errors import RaydebugError, UsageError
from raydebug.settings.files import atomic_write, decode, read_bounded, require_own

FILE = Path(".vscode") / "launch.json"
MAX_FILE_BYTES = 1024 * 1024
INDENT = 2
# What a user may set in a configuration of ours (docs/02-attach.md). Any other key of it is replaced: who made the
# folder may have put a task or another interpreter there.
KEPT = ("justMyCode", "ranks", "job", "target")


def configuration_for(cluster: Cluster, folder: Path) -> dict[str, object]:
    """Return the configuration that attaches to a cluster from an editor with this folder open.

    Raises:
        RaydebugError: the folder is not mounted in the containers of the cluster.
    """
    configuration = _configuration(cluster.name, cluster=cluster.name, target="all")
    from raydebug.cluster.kinds import kind_of

    # Where the nodes have copies of the folder, the adapter names these: each edit makes a new one.
    remote = str(folder) if cluster.is_of_nodes else kind_of(cluster).runner().folder(folder)
    if remote != str(folder):
        configuration["pathMappings"] = [{"localRoot": "${workspaceFolder}", "remoteRoot": remote}]
    return configuration


def configuration_for_snapshot(target: str) -> dict[str, object]:
    """Return the configuration that opens what a crash left: a file, or a run, by its id or `last`."""
    return _configuration("crash", snapshot=str(Path(target).resolve()) if Path(target).exists() else target)


def _configuration(name: str, **what: object) -> dict[str, object]:
    return {
        "name": f"raydebug: {name}",
        "type": "debugpy",
        "request": "attach",
        "listen": {"host": "127.0.0.1", "port": 0},
        "debugAdapterPath": str(Path(adapter.__file__).resolve()),
        "debugAdapterPython": sys.executable,
        **what,
        "justMyCode": False,
    }


def write_configuration(configuration: Mapping[str, object], folder: Path) -> tuple[Path, bool]:
    """Write the configuration into the launch.json of a folder; return the file, and whether it had to be changed.

    The rest of the file stays as it is.

    Raises:
        RaydebugError: the existing file is not a launch.json, or cannot be written.
    """
    path = folder / FILE
    try:
        real = Path(os.path.realpath(path))  # a link stays, where it does not lead out of the folder
        if not real.is_relative_to(folder.resolve()):
            raise OSError(f"it is a link out of this folder, to {real}")
        there = real.exists()
        before = decode(read_bounded(real, bytes_max=MAX_FILE_BYTES, what="a launch.json")) if there else ""
        after = merge(before, configuration)
        if after != before:
            require_own(folder)  # of a new .vscode too
            path.parent.mkdir(exist_ok=True)
            atomic_write(real, after, mode=stat.S_IMODE(real.stat().st_mode) if there else None)
    except ValueError as error:  # JsoncError, NotPlainText
        raise _bad_file(path, str(error)) from error
    except OSError as error:
        raise _bad_file(path, error.strerror or str(error)) from error
    return path, after != before


def merge(text: str, configuration: Mapping[str, object]) -> str:
    """Return the text of a launch.json with the configuration in it.

    It is appended to the list, or put in place of the one with the same name, whose KEPT keys stay.

    Raises:
        JsoncError: the text is not a launch.json.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    if not text.strip():
        document = {"version": "0.2.0", "configurations": [configuration]}
        return mark + json.dumps(document, indent=INDENT, ensure_ascii=False) + "\n"
    end = "\r\n" if "\r\n" in text else "\n"
    start, stop, fresh = _change(text, parse_jsonc(text), configuration)
    return mark + text[:start] + fresh.replace("\n", end) + text[stop:]


def _change(text: str, root: Node, configuration: Mapping[str, object]) -> tuple[int, int, str]:
    """Return start and end of the text to replace, and the new text."""
    if not isinstance(root.value, dict):
        raise JsoncError(1, "an object is expected: { ... }")
    listed = root.members.get("configurations")
    if listed is None:
        block = json.dumps([configuration], indent=INDENT, ensure_ascii=False)
        comma = "," if root.members else ""
        return root.start + 1, root.start + 1, f'\n  "configurations": {_indented(block, INDENT)}{comma}'
    if not isinstance(listed.value, list):
        raise JsoncError(text.count("\n", 0, listed.start) + 1, '"configurations" is not a list')
    for node in listed.items:
        if isinstance(node.value, dict) and node.value.get("name") == configuration["name"]:
            updated = {**configuration, **{name: node.value[name] for name in KEPT if name in node.value}}
            if updated == node.value:
                return node.start, node.start, ""
            return node.start, node.end, _block(updated, _column(text, node.start))
    if listed.items:
        last = listed.items[-1]
        column = _column(text, last.start)
        return last.end, last.end, ",\n" + " " * column + _block(configuration, column)
    column = _column(text, listed.start) + INDENT
    inside = "\n" + " " * column + _block(configuration, column)
    return listed.start + 1, listed.start + 1, inside + "\n" + " " * (column - INDENT)


def _column(text: str, at: int) -> int:
    """Return the indentation of the line at a position."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return len(line) - len(line.lstrip())


def _block(configuration: Mapping[str, object], column: int) -> str:
    return _indented(json.dumps(configuration, indent=INDENT, ensure_ascii=False), column)


def _indented(block: str, column: int) -> str:
    return block.replace("\n", "\n" + " " * column)


def _bad_file(path: Path, cause: str) -> RaydebugError:
    return UsageError(
        f"{path} was not changed",
        cause=cause,
        fix="correct it by hand; `raydebug vscode --print` shows the configuration to add",
        code="vscode.bad-file",
    )
