"""VS Code's launch.json: one configuration with which F5 opens every pause of a cluster.

No token stands in it. VS Code's Python debugger starts the program that `debugAdapterPath` names as its adapter, and
that one finds the cluster and reads the token (adapter.py). Source: microsoft/vscode-python-debugger accf683 (2026.7),
src/extension/debugger/adapter/factory.ts:60-100: an `attach` with `listen`, without `connect`, is spoken over the
adapter's stdin and stdout; nothing else looks at `listen` then.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from raydebug.cluster.state import Cluster
from raydebug.editors import adapter, jsonc
from raydebug.errors import Exit, RaydebugError

Configuration = dict[str, Any]

FILE = Path(".vscode") / "launch.json"
MAX_FILE_BYTES = 1024 * 1024
INDENT = 2
# Where ours is there already these are brought up to date; the rest of it is its owner's.
OURS = ("type", "request", "listen", "debugAdapterPath", "debugAdapterPython", "cluster")


def configuration_for(cluster: Cluster, folder: Path) -> Configuration:
    """Return the configuration that attaches to a cluster.

    Args:
        cluster: which.
        folder: what the editor has open.

    Raises:
        RaydebugError: the cluster's containers do not see the folder.
    """
    configuration: Configuration = {
        "name": f"raydebug: {cluster.name}",
        "type": "debugpy",
        "request": "attach",
        "listen": {"host": "127.0.0.1", "port": 0},
        "debugAdapterPath": str(Path(adapter.__file__).resolve()),
        "debugAdapterPython": sys.executable,
        "cluster": cluster.name,
        "target": "all",
        "justMyCode": False,
    }
    there = _name_there(cluster, folder)
    if there != str(folder):
        configuration["pathMappings"] = [{"localRoot": "${workspaceFolder}", "remoteRoot": there}]
    return configuration


def _name_there(cluster: Cluster, folder: Path) -> str:
    if cluster.kind == "joined":  # this is a container of the cluster: one mount, one name
        return str(folder)
    from raydebug.cluster.lifecycle import place_of

    return place_of(cluster).folder(folder)


def write_configuration(configuration: Configuration, folder: Path) -> tuple[Path, bool]:
    """Put the configuration into a folder's launch.json; all else in that file stays as it is.

    Returns:
        The file, and whether it had to be changed.

    Raises:
        RaydebugError: the file is there and is no launch.json, or cannot be written.
    """
    path = folder / FILE
    try:
        before = _read(path)
        after = merge(before, configuration)
        if after != before:
            _write(path, after)
    except jsonc.JsoncError as error:
        raise _bad_file(path, str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_file(path, str(error)) from error
    return path, after != before


def merge(text: str, configuration: Configuration) -> str:
    """Return the text of a launch.json with the configuration in it.

    Args:
        text: of the file as it is; empty where there is none.
        configuration: goes to the end of the list, or into the one of its name.

    Raises:
        JsoncError: the text is no launch.json.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    if not text.strip():
        document = {"version": "0.2.0", "configurations": [configuration]}
        return mark + json.dumps(document, indent=INDENT, ensure_ascii=False) + "\n"
    end = "\r\n" if "\r\n" in text else "\n"
    start, stop, fresh = _change(text, jsonc.parse(text), configuration)
    return mark + text[:start] + fresh.replace("\n", end) + text[stop:]


def _change(text: str, root: jsonc.Node, configuration: Configuration) -> tuple[int, int, str]:
    """Return which part of the text is replaced, and by what."""
    if not isinstance(root.value, dict):
        raise jsonc.JsoncError(1, "an object is expected: { ... }")
    listed = root.members.get("configurations")
    if listed is None:
        block = json.dumps([configuration], indent=INDENT, ensure_ascii=False)
        comma = "," if root.members else ""
        return root.start + 1, root.start + 1, f'\n  "configurations": {_indented(block, INDENT)}{comma}'
    if not isinstance(listed.value, list):
        raise jsonc.JsoncError(text.count("\n", 0, listed.start) + 1, '"configurations" is no list')
    for node in listed.items:
        if isinstance(node.value, dict) and node.value.get("name") == configuration["name"]:
            updated = {**configuration, **node.value, **{name: configuration[name] for name in OURS}}
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
    """Return how far the line of a place is indented."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return len(line) - len(line.lstrip())


def _block(configuration: Configuration, column: int) -> str:
    return _indented(json.dumps(configuration, indent=INDENT, ensure_ascii=False), column)


def _indented(block: str, column: int) -> str:
    return block.replace("\n", "\n" + " " * column)


def _read(path: Path) -> str:
    if not path.exists():
        return ""
    if not path.is_file():
        raise OSError("it is no file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise OSError(f"it is larger than {MAX_FILE_BYTES} bytes")
    return path.read_bytes().decode("utf-8")


def _write(path: Path, text: str) -> None:
    """Write the file, whole or not at all; a link stays a link, and its rights stay as they are."""
    path.parent.mkdir(exist_ok=True)
    path = path.resolve()
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".launch-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644 & ~_umask()
        Path(fresh).chmod(mode)
        Path(fresh).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(fresh).unlink()
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _bad_file(path: Path, cause: str) -> RaydebugError:
    return RaydebugError(
        f"{path} was not changed",
        cause=cause,
        fix="mend it, or see what belongs there with `raydebug vscode --print`",
        code="vscode.bad-file",
        exit_code=Exit.USAGE,
    )
