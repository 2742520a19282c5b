"""`raydebug vscode`, `adapter`: pauses in an editor."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from raydebug import render
from raydebug.cli.options import Name
from raydebug.errors import UsageError


def vscode(
    print_only: Annotated[bool, typer.Option("--print", help="Print the configuration and write nothing.")] = False,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="FILE|RUN", help="Open what a crash left: a file, a run, `last`."),
    ] = None,
    name: Name = "default",
) -> None:
    """Write .vscode/launch.json in the current folder: one F5 then opens every pause of the cluster in VS Code.

    Where the file exists, the configuration is printed for pasting.

    Example: raydebug vscode --print
    """
    from raydebug.editors.vscode import FILE, configuration_for, configuration_for_snapshot, write_configuration

    folder = Path.cwd()
    configuration = configuration_for(name, folder) if snapshot is None else configuration_for_snapshot(snapshot)
    path = None if print_only else write_configuration(configuration, folder)
    if path is None:
        render.out(json.dumps(configuration, indent=2, ensure_ascii=False))
        if not print_only:
            render.say(f'{FILE} exists: paste this into its list "configurations"')
        return
    render.out(render.visible(str(path), keep=""))
    render.say(f"wrote '{configuration['name']}'")
    opens = "each pause opens as a session of its own" if snapshot is None else "the crash opens as a session"
    render.say(f"next: in VS Code, F5 with this configuration; {opens}")


def adapter(
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", metavar="FILE|RUN", help="Open what a crash left; no cluster is needed.")
    ] = None,
) -> None:
    """Speak DAP on stdin and stdout, for an editor that starts its debug adapter by itself (Neovim, Emacs).

    Example: raydebug adapter
    """
    from raydebug.editors.adapter import serve

    if sys.stdin.isatty():
        raise UsageError(
            "`raydebug adapter` is for editors",
            cause="stdin is a terminal, and a debug adapter speaks DAP there",
            fix="attach from a terminal with `raydebug attach`",
            code="adapter.terminal",
        )
    serve(snapshot)
