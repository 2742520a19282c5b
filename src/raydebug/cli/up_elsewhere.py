"""`raydebug up` of a cluster on other machines: joined, of Slurm, by ssh, or a manifest for Kubernetes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from raydebug import render
from raydebug.cli.status import describe, show_cluster, show_variables
from raydebug.errors import RaydebugError, UsageError

if TYPE_CHECKING:
    from raydebug.cluster.hosts import SshOptions
    from raydebug.cluster.kubernetes import Wanted
    from raydebug.cluster.slurm import SlurmOptions
    from raydebug.cluster.state import Cluster
    from raydebug.cluster.up import UpOptions


def join_cluster(options: UpOptions, address: str, through: str | None, *, as_json: bool) -> None:
    """Join a cluster, check that its gateway can be reached from here, and show what a job of the user's own needs."""
    from raydebug.cluster import joined, node_jobs
    from raydebug.jobs.submit import node_variables

    asked = joined.asked_at(address, options.name)
    with render.phases(f"joining {asked.dashboard} as cluster '{options.name}'") as on_phase:
        cluster, nodes, was_joined = joined.join(options, asked, through, on_phase=on_phase)
        cluster = _reach_gateway(cluster, options, on_phase, lambda: _way_to_head(cluster))
    needed = node_variables(cluster)
    if as_json:
        render.out_json({**describe(cluster), "variables": needed})
        return
    if was_joined:
        render.say(f"cluster '{options.name}' was joined already; its nodes have what they need:")
    show_cluster(cluster, nodes)
    for line in node_jobs.problems_of(nodes):
        render.say(f"note: no breakpoints on {line}")
    if not cluster.there.asks_token:
        render.say(
            f"warning: this cluster asks for no token: anyone who reaches {cluster.dashboard} can run code on its nodes"
        )
    show_variables(needed)


def up_on_slurm(options: UpOptions, asked: SlurmOptions, *, dry_run: bool, as_json: bool) -> None:
    """Submit a cluster to Slurm and wait for it, or show the script."""
    from raydebug.cluster import slurm

    if dry_run:
        folder = asked.folder.absolute() if asked.folder else slurm.fresh_folder(options.name)
        render.out(slurm.script_of(options, asked, folder).rstrip())
        return
    with render.phases(f"starting cluster '{options.name}' with Slurm") as on_phase:
        cluster, nodes, submitted = slurm.bring_up(options, asked, on_phase=on_phase)
        cluster = _reach_gateway(cluster, options, on_phase, lambda: _log_of_way(cluster))
    _show_launched(cluster, submitted, as_json=as_json)
    if as_json:
        return
    for node in nodes:
        if node["phase"] != "up":
            reason = f": {node['reason']}" if node["reason"] else ""
            render.say(render.visible(f"note: {node['host']} is not up ({node['phase']}{reason})"))


def up_by_ssh(options: UpOptions, asked: SshOptions, *, as_json: bool) -> None:
    """Start a cluster on the hosts of a file."""
    from raydebug.cluster import hosts

    with render.phases(f"starting cluster '{options.name}' by ssh") as on_phase:
        cluster, started = hosts.bring_up(options, asked, on_phase=on_phase)
        cluster = _reach_gateway(cluster, options, on_phase, lambda: _log_of_way(cluster))
    _show_launched(cluster, started, as_json=as_json)


def show_manifest(wanted: Wanted, *, dry_run: bool, as_json: bool) -> None:
    """Print the manifest of a cluster, and what to do with it.

    Raises:
        RaydebugError: something is missing, or cannot be.
    """
    from raydebug.cluster.kubernetes import manifest, next_steps

    text, steps = manifest(wanted), next_steps(wanted)
    if not dry_run:
        raise UsageError(
            "raydebug starts nothing on Kubernetes itself",
            cause="it has no access there: kubectl has, with your account; raydebug writes the manifest",
            fix="the same command with `--dry-run | kubectl apply -f -`, then the `raydebug up --join` that it prints",
            code="kubernetes.dry-run",
        )
    if as_json:
        render.out_json({"version": 1, "manifest": text, "next": steps})
        return
    render.out(text.rstrip())
    if "@" not in wanted.image:  # no refusal: an image that was loaded into kind or minikube has no digest
        render.say(f"warning: {wanted.image} has no digest: two pods may get different images; use NAME@sha256:...")
    for line in ("next: pipe this into `kubectl apply -f -`; when its pods run:", *(f"  {step}" for step in steps)):
        render.say(line)


def _way_to_head(cluster: Cluster) -> str:
    from raydebug.cluster import tunnel
    from raydebug.cluster.state import name_option

    head, port, name = cluster.there.head, cluster.there.client_port, name_option(cluster.name)
    again = f"`raydebug up --join {cluster.there.join_url}{name}"
    fix = f"{again} --through 'ssh {head}'`, or keep `ssh -N -L {port}:127.0.0.1:{port} {head}` open and join again"
    if cluster.there.through:
        fix = f"{again} --through COMMAND` with one that works; all that it says: {cluster.folder / tunnel.LOG}"
    return f"{fix}; `raydebug down{name}` leaves the cluster"


def _log_of_way(cluster: Cluster) -> str:
    from raydebug.cluster import tunnel

    return f"all that it says: {cluster.folder / tunnel.LOG}; `raydebug up` tries again, `raydebug down` ends it"


def _reach_gateway(
    cluster: Cluster, options: UpOptions, on_phase: Callable[[str], None], fix: Callable[[], str]
) -> Cluster:
    """Wait for an answer of a cluster's gateway; a tunnel that does not lead there is opened anew, once.

    Such a tunnel has, for example, the ssh-agent of a terminal that is closed.

    Args:
        cluster: that was joined or launched.
        options: the ports that the user named.
        on_phase: called with what it does.
        fix: returns what to do where there is no answer.

    Returns:
        The cluster, as it is recorded.
    """
    from raydebug.cluster import tunnel

    on_phase("asking its gateway")
    problem = _ask_gateway(cluster)
    if problem and cluster.there.through:
        on_phase("opening another way to its gateway")
        tunnel.close_way(cluster)
        cluster = tunnel.open_way(cluster, options.ports)
        problem = _ask_gateway(cluster)
    if problem:
        said, way, port = tunnel.last_said(cluster), cluster.there.through, cluster.there.client_port
        raise RaydebugError(
            f"the gateway runs on the head, {cluster.there.head}, and cannot be reached from here",
            cause=f"{f'{way} said: {said}; ' if said else ''}{problem}; there it is 127.0.0.1:{port}",
            fix=fix(), code="joined.no-way",
        )  # fmt: skip
    return cluster


def _ask_gateway(cluster: Cluster) -> str | None:
    from raydebug.cluster.tunnel import STARTS_S
    from raydebug.gateway.gateway_client import fetch_status

    deadline = time.monotonic() + (STARTS_S if cluster.there.through else 0.0)
    while (problem := fetch_status(cluster)["problem"]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return problem


def _show_launched(cluster: Cluster, started: bool, *, as_json: bool) -> None:
    if as_json:
        render.out_json(describe(cluster))
        return
    if not started:
        render.say(f"cluster '{cluster.name}' runs already:")
    show_cluster(cluster)
