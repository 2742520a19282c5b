"""VS Code's launch.json: one configuration with which F5 opens every pause of a cluster.

It contains no token. VS Code's Python debugger starts the program of `debugAdapterPath` as its adapter, which finds the
cluster and reads the token (adapter.py). Source: microsoft/vscode-python-debugger accf683 (2026.7),
src/extension/debugger/adapter/factory.ts:60-100: an `attach` with `listen` and without `connect` uses the adapter's
stdin and stdout, and `listen` has no other effect.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from raydebug.editors import adapter
from raydebug.errors import UsageError
from raydebug.settings.files import atomic_write, require_own

FILE = Path(".vscode") / "launch.json"


def configuration_for(name: str, folder: Path) -> dict[str, object]:
    """Return the configuration that attaches to a cluster, now or once it runs, with this folder open in the editor.

    Raises:
        RaydebugError: the folder is not mounted in the containers of the cluster.
    """
    from raydebug.cluster.find import find_by_labels, find_cluster
    from raydebug.cluster.kinds import kind_of

    configuration = _configuration(name, cluster=name, target="all")
    cluster = find_cluster(name) or find_by_labels(name)
    if cluster is None:
        return configuration
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


def write_configuration(configuration: Mapping[str, object], folder: Path) -> Path | None:
    """Write a launch.json with the configuration into a folder, and return the file; None where there is one already.

    Raises:
        RaydebugError: it cannot be written.
    """
    path = folder / FILE
    if os.path.lexists(path):
        return None
    document = {"version": "0.2.0", "configurations": [configuration]}
    try:
        if not path.parent.resolve().is_relative_to(folder.resolve()):
            raise OSError(f"its folder is a link out of this folder, to {path.parent.resolve()}")
        require_own(folder)  # of a new .vscode too
        path.parent.mkdir(exist_ok=True)
        atomic_write(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n", mode=None)
    except OSError as error:
        raise UsageError(
            f"{path} was not written",
            cause=error.strerror or str(error),
            fix='paste what `raydebug vscode --print` shows into its list "configurations"',
            code="vscode.bad-file",
        ) from error
    return path
