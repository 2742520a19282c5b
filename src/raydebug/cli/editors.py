"""`raydebug vscode`, `listen`, `adapter`: pauses in an editor."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Name
from raydebug.errors import Exit, RaydebugError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from raydebug.console.session import GatewayAddress


def vscode(
    print_only: Annotated[bool, typer.Option("--print", help="Print the configuration and write nothing.")] = False,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="FILE|RUN", help="Open what a crash left: a file, a run, `last`."),
    ] = None,
    name: Name = "default",
) -> None:
    """Write .vscode/launch.json in the current folder: one F5 then opens every pause of the cluster in VS Code.

    Example: raydebug vscode --print
    """
    from raydebug.cluster.find import load_cluster
    from raydebug.editors.vscode import configuration_for, configuration_for_snapshot, write_configuration

    folder = Path.cwd()
    if snapshot is not None:
        configuration = configuration_for_snapshot(snapshot)
    else:
        configuration = configuration_for(load_cluster(name), folder)
    if print_only:
        render.out(json.dumps(configuration, indent=2, ensure_ascii=False))
        return
    path, changed = write_configuration(configuration, folder)
    render.out(render.visible(str(path), keep=""))
    render.say(f"wrote '{configuration['name']}'" if changed else f"'{configuration['name']}' is there already")
    opens = "each pause opens as a session of its own" if snapshot is None else "the crash opens as a session"
    render.say(f"next: in VS Code, F5 with this configuration; {opens}")


def listen(
    target: Annotated[str, typer.Argument(metavar="ID|next", help="A pause of `raydebug paused`, or `next`.")],
    port: Annotated[int, typer.Option(help="Default: any free one.", min=0, max=65535, metavar="PORT")] = 0,
    name: Name = "default",
) -> None:
    """Give one pause to a debugger that knows no token: a port on loopback, for one client of this user.

    Example: raydebug listen 3 --port 5700
    """
    from raydebug.client.gateway_client import fetch_pauses
    from raydebug.cluster.find import load_cluster
    from raydebug.console.session import GatewayAddress

    cluster = load_cluster(name)

    def is_over() -> bool:
        return target != "next" and all(pause["id"] != target for pause in fetch_pauses(cluster))

    if target == "all":
        raise UsageError(
            "`listen` gives out one pause, not all of them",
            cause="a session of its own is needed for each pause, and this port takes one client",
            fix="`raydebug listen next`, or `raydebug vscode` and `raydebug adapter`, which open all of them",
            code="listen.one-pause",
        )
    if is_over():
        raise RaydebugError(
            "the pause cannot be attached",
            cause=f"there is no pause '{target}'",
            fix="list the pauses with `raydebug paused`",
            code="pause.unknown",
        )
    address = GatewayAddress.of(cluster)
    import asyncio  # 30 ms that every other verb would pay

    raise typer.Exit(int(asyncio.run(_listen(address, target, port, is_over))))


async def _listen(address: GatewayAddress, target: str, port: int, is_over: Callable[[], bool]) -> Exit:
    from raydebug.cluster.port_owner import can_tell
    from raydebug.console.interrupt import Interrupted, interruptible
    from raydebug.editors import listen as listening

    listener = listening.Listener(address, target, say=render.say, is_over=is_over)
    try:
        bound = await listener.open(port)
    except OSError as error:
        raise RaydebugError(
            f"port {port} cannot be listened on",
            cause=str(error),
            fix="leave --port out to take a free one",
            code="port.taken",
            exit_code=Exit.TAKEN,
        ) from error
    render.out(f"{listening.HOST}:{bound}")
    whose = f"pause {target}" if target != "next" else "the next pause"
    render.say(f"attach one DAP client there to {whose}; it needs no token. Ctrl-C ends it")
    if not can_tell():
        render.say("warning: this system does not tell whose a connection is: any user of this machine may come first")
    try:
        attached = await interruptible(listener.run())
    except Interrupted:
        return Exit.INTERRUPTED
    if attached:
        render.say("the client has left; what it did not resume stays paused")
        return Exit.OK
    render.say(f"pause {target} has ended; nobody attached")
    return Exit.SESSION_LOST


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
