"""`raydebug up`, `ps`, `down`: clusters."""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import Annotated, Any

import typer

from raydebug import render
from raydebug.cli.options import Debugger, Json, Name
from raydebug.errors import Exit, RaydebugError

_Kind = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="KIND",
        help="compose (containers) or local. Default: compose where a Docker engine answers.",
    ),
]
_Gpus = Annotated[int, typer.Option(help="Logical GPUs of a node (compose: of each worker).", min=0, metavar="N")]
_Cpus = Annotated[
    int | None, typer.Option(help="Logical CPUs of a node (default: 16, or the machine's).", min=1, metavar="N")
]
_Python = Annotated[str | None, typer.Option(help="local: interpreter whose environment Ray runs in.", metavar="PATH")]
_Flavour = Annotated[
    str | None, typer.Option(help="compose: core, cpu or cuda (default: cuda with a GPU).", metavar="FLAVOUR")
]
_Workers = Annotated[int, typer.Option(help="compose: how many worker nodes.", min=0, metavar="N")]
_Warm = Annotated[
    bool,
    typer.Option("--warm", help="local: keep processes with torch, vLLM and verl imported; runs start in seconds."),
]
_DashboardPort = Annotated[int | None, typer.Option(help="Default: 8265 if free. 0 takes a free one.", metavar="PORT")]
_GatewayPort = Annotated[int | None, typer.Option(help="Default: 5678 if free. 0 takes a free one.", metavar="PORT")]


def up(
    cluster: _Kind = None,
    name: Name = "default",
    gpus: _Gpus = 0,
    cpus: _Cpus = None,
    python: _Python = None,
    flavour: _Flavour = None,
    workers: _Workers = 1,
    debugger: Debugger = None,
    dashboard_port: _DashboardPort = None,
    gateway_port: _GatewayPort = None,
    warm: _Warm = False,
    as_json: Json = False,
) -> None:
    """Start a cluster: Ray's head, its dashboard, and the gateway that every breakpoint dials.

    Example: raydebug up --cluster local --gpus 1
    """
    from raydebug.cluster import interrupts
    from raydebug.settings.debugger import choose_mode

    mode, _ = choose_mode(debugger, os.environ)
    with interrupts.noticed():  # from here on: an import can lose a Ctrl-C too
        existing = _other_kind(name, cluster)
        kind = existing.kind if existing is not None else _kind(cluster or _remembered_kind(name))
        if existing is not None:
            found, started = existing, False
        elif kind == "compose":
            from raydebug.cluster import compose_life as life

            boxes = life.Wish(name, flavour, workers, cpus, gpus, mode, Path.cwd(), dashboard_port, gateway_port)
            with render.phases(f"starting cluster '{name}' in containers") as on_phase:
                found, started = life.bring_up(boxes, on_phase=on_phase)
        else:
            from raydebug.cluster import local

            wish = local.Wish(name, python, cpus, gpus, mode, dashboard_port, gateway_port, warm=warm)
            with render.phases(f"starting cluster '{name}' on this machine") as on_phase:
                found, started = local.bring_up(wish, on_phase=on_phase)
    with interrupts.ignored():  # it stands: an exit code 130 would say that nothing is left of it
        if as_json:
            render.out_json(describe(found))
            return
        if not started:
            render.say(f"cluster '{name}' runs already:")
        if warm and not found.warm:
            render.say("note: it has no pool (--warm is for a local cluster that is started anew)")
        _show(found)
        if found.warm:
            render.say("its pool loads for half a minute; `raydebug ps` shows what it holds")


def _other_kind(name: str, asked: str | None) -> Any:
    """Return the cluster of this name if it runs and is of another kind; what is left of a dead one is cleared away."""
    from raydebug.cluster import lifecycle, state

    existing = state.find_cluster(name)
    if existing is None or (existing.kind != "joined" and asked in (None, existing.kind)):
        return None
    if lifecycle.is_alive(existing):
        return existing
    lifecycle.take_down(existing)
    return None


def _remembered_kind(name: str) -> str | None:
    """Return the kind of the cluster of this name that is there, alive or dead: `up` speaks of that one."""
    from raydebug.cluster import state

    existing = state.find_cluster(name)
    return None if existing is None else existing.kind


def _kind(asked: str | None) -> str:
    if asked in ("local", "compose"):
        return asked
    if asked is not None:
        raise RaydebugError(
            f"there is no kind of cluster '{asked}'",
            cause="--cluster takes: local, compose",
            fix="raydebug up --cluster local",
            code="cluster.unknown-kind",
            exit_code=Exit.USAGE,
        )
    from raydebug.cluster.engine import engine_answers

    reason = engine_answers()
    if reason is None:
        render.say("a Docker engine answers: containers (--cluster local for none)")
        return "compose"
    render.say(f"{reason}: Ray on this machine itself (--cluster local)")
    return "local"


def _show(cluster: Any) -> None:
    from raydebug.cluster.state import name_option

    render.out(f"cluster    {cluster.name} ({cluster.kind}, {cluster.flavour}, debugger: {cluster.debugger})")
    render.out(f"dashboard  {cluster.dashboard}")
    render.out(f"gateway    {cluster.gateway_host}:{cluster.gateway_port}")
    render.out(f"token      {cluster.token_file}")
    render.say(f"next: raydebug run{name_option(cluster.name)} -- python your_program.py")


def describe(cluster: Any) -> dict[str, Any]:
    """Return the JSON document of `raydebug ps --json`."""
    from raydebug.cluster import lifecycle
    from raydebug.cluster.pool import pool_of

    return {
        "version": 1,
        "name": cluster.name,
        "kind": cluster.kind,
        "address": cluster.address,
        "dashboard": cluster.dashboard,
        "gateway": {"host": cluster.gateway_host, "port": cluster.gateway_port},
        "token_file": str(cluster.token_file),
        "nodes": lifecycle.nodes_of(cluster),
        "pool": pool_of(cluster),
    }


def ps(
    name: Name = "default",
    as_json: Json = False,
    processes: Annotated[
        bool, typer.Option("--processes", help="Show instead the processes that `attach --pid` can stop.")
    ] = False,
) -> None:
    """Show a cluster and its nodes, and why a node is dead.

    Example: raydebug ps --json
    """
    from raydebug.cluster import state

    cluster = state.load_cluster(name)
    if processes:
        _show_processes(cluster, as_json=as_json)
        return
    document = describe(cluster)
    if as_json:
        render.out_json(document)
    else:
        _show(cluster)
        rows = [[str(n[k] or "") for k in ("role", "ip", "state", "node_id", "reason")] for n in document["nodes"]]
        render.table(None, ["role", "ip", "state", "node", "reason"], rows)
        if document["pool"] is not None:
            _show_pool(document["pool"])
        others = sorted(set(state.known_names()) - {name})
        if others:
            render.say(f"other clusters: {', '.join(others)} (--name)")
    if any(node["state"] in ("dead", "exited") and node["role"] == "head" for node in document["nodes"]):
        raise typer.Exit(Exit.FAILED)


def _show_processes(cluster: Any, *, as_json: bool) -> None:
    from raydebug.cluster.state import name_option
    from raydebug.pause.listing import fetch_processes, name_process

    found = fetch_processes(cluster)
    if as_json:
        render.out_json({"version": 1, "processes": found})
        return
    if not found:
        render.say("no process of a job is there that could be stopped")
        return
    rows = []
    for one in found:
        doing = one["doing"] or {}
        at = f"{PurePath(doing['file']).name}:{doing['line']} {doing['function']}" if doing.get("file") else ""
        state = f"paused: {', '.join(one['pauses'])}" if one["pauses"] else at if one["answers"] else "does not answer"
        rows.append([str(one["pid"]), one["ip"], (one["worker_id"] or "")[:12], one["job"], name_process(one), state])
    render.table(None, ["pid", "ip", "worker", "job", "who", "at"], rows)
    render.say(f"next: raydebug attach --pid {found[0]['pid']}{name_option(cluster.name)}")


def _show_pool(pool: dict[str, Any]) -> None:
    """Show what a warm cluster's pool holds, and what did not start from it."""
    columns = ["zygote", "pid", "state", "modules", "MiB own", "MiB shared", "served", "running"]
    keys = ("number", "pid", "state", "modules", "own_mib", "shared_mib", "served", "running")
    render.table("pool", columns, [[str(z[key]) for key in keys] for z in pool["zygotes"]])
    for zygote in pool["zygotes"]:
        for left_out in [*zygote["left_out"], *([zygote["reason"]] if zygote["reason"] else [])]:
            render.say(f"zygote {zygote['number']}: {left_out}")
    if pool["cold"]:
        last = pool["last_cold"][-1]
        render.say(f"{pool['cold']} cold starts; the last one: {last['reason']}")


def down(name: Name = "default") -> None:
    """End a cluster: all that `up` started, and nothing else.

    Example: raydebug down --name mine
    """
    from raydebug.cluster import lifecycle, state

    cluster = state.load_cluster(name)
    with render.waiting(f"ending cluster '{name}'"):
        left = lifecycle.take_down(cluster)
    if left:
        raise RaydebugError(
            f"cluster '{name}' is not wholly down",
            cause=f"still there: {', '.join(left)}",
            fix="run `raydebug down` again; look at what is left by these ids",
            code="cluster.not-down",
        )
    render.say(f"cluster '{name}' is down")
