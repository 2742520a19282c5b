"""`raydebug attach`: the terminal debugger."""

from __future__ import annotations

from typing import Annotated

import typer

from raydebug.cli.options import Name

_TARGET_HELP = "A pause of `raydebug paused`, or `next` to wait for the next one. Default: the only one that waits."
_TIMEOUT_HELP = "Limit of the wait for `next`, and of each wait for a stop with -x (there: 60)."
_Commands = Annotated[
    list[str] | None,
    typer.Option("-x", "--execute", metavar="COMMAND", help="Run this debugger command and leave; repeatable."),
]


def attach(
    target: Annotated[str | None, typer.Argument(metavar="[ID|next]", help=_TARGET_HELP)] = None,
    execute: _Commands = None,
    timeout: Annotated[float | None, typer.Option(min=0.0, metavar="SECONDS", help=_TIMEOUT_HELP)] = None,
    steal: Annotated[bool, typer.Option("--steal", help="Take the pause from a client that holds it.")] = False,
    name: Name = "default",
) -> None:
    """Take a paused task into a debugger with pdb's own commands.

    Example: raydebug attach next -x w -x "p loss" -x c
    """
    from raydebug.cluster.head import named_if_lost
    from raydebug.cluster.state import load_cluster
    from raydebug.console.attach import attach_pause, choose_pause
    from raydebug.console.session import Door
    from raydebug.pause.listing import fetch_pauses

    cluster = load_cluster(name)
    chosen = target or choose_pause(fetch_pauses(cluster))
    door = Door(cluster.gateway_host, cluster.gateway_port, cluster.token)
    with named_if_lost(cluster):
        code = attach_pause(door, chosen, cluster=cluster.name, commands=execute or (), timeout_s=timeout, steal=steal)
    raise typer.Exit(int(code))
