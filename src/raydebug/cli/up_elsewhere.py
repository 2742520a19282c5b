"""`raydebug up --join`: a Ray cluster that runs already, by its dashboard or by the folder of its nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from raydebug import render
from raydebug.cli.status import describe, show_cluster, show_variables
from raydebug.errors import RaydebugError

if TYPE_CHECKING:
    from pathlib import Path

    from raydebug.cluster.state import Cluster
    from raydebug.cluster.up import UpOptions


def join_cluster(options: UpOptions, address: str, through: str | None, *, as_json: bool) -> None:
    """Join a cluster, check that its gateway can be reached from here, and show what a job of the user's own needs.

    Args:
        options: of `up`.
        address: URL of a dashboard, the folder of a cluster of `raydebug node`, or `auto` for the one of this machine.
        through: a command that runs a program on the head.
        as_json: print the cluster's document alone.
    """
    from raydebug.cluster import joined, node_cluster

    if address == joined.AUTO:
        address = joined.cluster_here()
    if folder := node_cluster.folder_at(address):
        _join_folder(options, folder, through, as_json=as_json)
    else:
        _join_dashboard(options, address, through, as_json=as_json)


def _join_folder(options: UpOptions, folder: Path, through: str | None, *, as_json: bool) -> None:
    from raydebug.cluster.node_cluster import join_folder
    from raydebug.cluster.rendezvous import UP

    with render.phases(f"joining the nodes of {folder} as cluster '{options.name}'") as on_phase:
        cluster, nodes, was_joined = join_folder(options, folder, through, on_phase=on_phase)
        cluster = _reach_gateway(cluster, options, on_phase)
    if as_json:
        render.out_json(describe(cluster))
        return
    if was_joined:
        render.say(f"cluster '{options.name}' was joined already:")
    show_cluster(cluster)
    for node in nodes:
        if node["phase"] != UP:
            reason = f": {node['reason']}" if node["reason"] else ""
            render.say(render.visible(f"note: {node['host']} is not up ({node['phase']}{reason})"))


def _join_dashboard(options: UpOptions, address: str, through: str | None, *, as_json: bool) -> None:
    from raydebug.cluster import head_requests, joined
    from raydebug.jobs.submit import node_variables

    named = joined.cluster_to_join(address, options.name)
    with render.phases(f"joining {named.dashboard} as cluster '{options.name}'") as on_phase:
        cluster, nodes, was_joined = joined.join(options, named, through, on_phase=on_phase)
        cluster = _reach_gateway(cluster, options, on_phase)
    needed = node_variables(cluster)
    if as_json:
        render.out_json({**describe(cluster), "variables": needed})
        return
    if was_joined:
        render.say(f"cluster '{options.name}' was joined already; its nodes have what they need:")
    show_cluster(cluster, nodes)
    for line in head_requests.problems_of(nodes):
        render.say(f"note: no breakpoints on {line}")
    if not cluster.remote.asks_token:
        render.say(
            f"warning: this cluster asks for no token: anyone who reaches {cluster.dashboard} can run code on its nodes"
        )
    show_variables(needed)


def _way_to_head(cluster: Cluster) -> str:
    """Return what to do where there is no way to the head, in words."""
    from raydebug.cluster.tunnel import LOG

    log = f"all that it says: {cluster.folder / LOG}"
    head, port = cluster.remote.head, cluster.remote.client_port
    again = f"`raydebug up --join {cluster.remote.join_url}"
    fix = f"{again} --through 'ssh {head}'`, or keep `ssh -N -L {port}:127.0.0.1:{port} {head}` open and join again"
    if cluster.remote.through:
        fix = f"{again} --through COMMAND` with one that works; {log}"
    return f"{fix}; `raydebug down` leaves the cluster"


def _reach_gateway(cluster: Cluster, options: UpOptions, on_phase: Callable[[str], None]) -> Cluster:
    """Wait for an answer of a cluster's gateway; return the cluster, as it is recorded.

    A tunnel that does not lead there is opened anew, once: it may have the ssh-agent of a terminal that is closed.
    """
    from raydebug.cluster import tunnel

    on_phase("asking its gateway")
    problem = _ask_gateway(cluster)
    if problem and cluster.remote.through:
        on_phase("opening another way to its gateway")
        tunnel.close_way(cluster)
        cluster = tunnel.open_way(cluster, options.ports)
        problem = _ask_gateway(cluster)
    if problem:
        said, way, port = tunnel.last_said(cluster), cluster.remote.through, cluster.remote.client_port
        raise RaydebugError(
            f"the gateway runs on the head, {cluster.remote.head}, and cannot be reached from here",
            cause=f"{f'{way} said: {said}; ' if said else ''}{problem}; there it is 127.0.0.1:{port}",
            fix=_way_to_head(cluster), code="joined.no-way",
        )  # fmt: skip
    return cluster


def _ask_gateway(cluster: Cluster) -> str | None:
    from raydebug.client.gateway_client import fetch_status
    from raydebug.cluster import tunnel

    deadline = time.monotonic() + (tunnel.STARTS_S if cluster.remote.through else 0.0)
    while (problem := fetch_status(cluster)["problem"]) and time.monotonic() < deadline:
        if tunnel.has_failed(cluster):
            break
        time.sleep(0.2)
    return problem
