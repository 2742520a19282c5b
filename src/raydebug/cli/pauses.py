"""`raydebug paused`: what waits for a debugger."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydebug import render
from raydebug.cli.options import Address, Json, Name

if TYPE_CHECKING:
    from raydebug.cluster.state import Cluster

WATCH_PERIOD_S = 0.5


def paused(
    name: Name = "default",
    address: Address = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing each new pause until Ctrl-C.")] = False,
) -> None:
    """List every pause of the cluster.

    Example: raydebug paused --watch
    """
    from raydebug.pause.listing import Pause, fetch_pauses

    cluster, option = find(name, address)

    def show(pauses: list[Pause]) -> None:
        if as_json:
            render.out_json({"version": 1, "pauses": pauses})
            return
        if not pauses:
            render.say("nothing is paused")
            return
        show_table(pauses)
        waiting = [p for p in pauses if p["state"] == "waiting"]
        if waiting:
            render.say(f"next: raydebug attach {waiting[0]['id']}{option}")

    if not watch:
        show(fetch_pauses(cluster))
        return
    before: object = None
    while True:
        pauses = fetch_pauses(cluster)
        now = [(p["id"], p["state"], p["line"]) for p in pauses]
        if now != before:
            before = now
            show(pauses)
        time.sleep(WATCH_PERIOD_S)


def find(name: str, address: str | None) -> tuple[Cluster, str]:
    """Return the cluster that is meant, and the option that names it in a command that we recommend."""
    from raydebug.cluster import state, stock

    if address is None:
        return state.load_cluster(name), state.name_option(name)
    return stock.cluster_at(address), f" --address {address}"


def show_table(pauses: list[dict[str, Any]], *, to_stderr: bool = False) -> None:
    """Print pauses as a table: on stdout where they are what was asked for, else on stderr."""
    from raydebug.pause.listing import age, name_owner, name_place

    rows = [
        [p["id"], p["kind"] or "?", name_place(p), p["exception"] or "", name_owner(p), age(p["since_s"]), p["state"]]
        for p in pauses
    ]
    render.table(None, ["id", "kind", "where", "exception", "who", "since", "state"], rows, to_stderr=to_stderr)
