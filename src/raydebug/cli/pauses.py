"""`raydebug paused`: the pauses of a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Address, Json, Name

if TYPE_CHECKING:
    from raydebug.cluster.state import Cluster
    from raydebug.protocol.listings import ListedPause

WATCH_PERIOD_S = 0.5


def paused(
    name: Name = "default",
    address: Address = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show each new pause until Ctrl-C.")] = False,
) -> None:
    """List every pause of the cluster.

    Example: raydebug paused --watch
    """
    from raydebug.gateway.gateway_client import fetch_pauses

    cluster, option = find(name, address)

    def show(pauses: list[ListedPause]) -> None:
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
    """Return the cluster, and the option that names it in suggested commands."""
    from raydebug.cluster import state
    from raydebug.cluster.find import load_cluster
    from raydebug.cluster.unmanaged import cluster_at

    if address is None:
        return load_cluster(name), state.name_option(name)
    return cluster_at(address), f" --address {address}"


def show_table(pauses: list[ListedPause], *, to_stderr: bool = False) -> None:
    """Print pauses as a table, on stdout or stderr."""
    from raydebug.gateway.gateway_client import name_owner, name_place

    rows = [
        [
            p["id"],
            p["kind"] or "?",
            name_place(p),
            p["exception"] or "",
            name_owner(p),
            render.duration(p["since_s"], whole=True),
            p["state"],
        ]
        for p in pauses
    ]
    render.table(None, ["id", "kind", "where", "exception", "who", "since", "state"], rows, to_stderr=to_stderr)
