"""`raydebug up` and `raydebug down`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Debugger, Json, Name, command_of, say_renamed
from raydebug.cli.status import describe, show_cluster, show_variables, warn_without_token
from raydebug.errors import RaydebugError, UsageError

if TYPE_CHECKING:
    from raydebug.cluster.hosts import SshOptions
    from raydebug.cluster.slurm import SlurmOptions
    from raydebug.cluster.state import Cluster
    from raydebug.cluster.up import UpOptions

LAUNCHED = ("slurm", "ssh")  # kinds of clusters whose nodes are on other machines
_Kind = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="KIND",
        help="compose (containers), local, slurm or ssh. Default: compose where a Docker engine answers.",
    ),
]
_Gpus = Annotated[
    int | None,
    typer.Option(
        help="Logical GPUs of a node (compose: of each worker). Default: the GPUs that the driver lists.",
        min=0,
        metavar="N",
    ),
]
_Cpus = Annotated[
    int | None,
    typer.Option(help="Logical CPUs of a node (default: 16, the machine's, or more for GPUs).", min=1, metavar="N"),
]
_Python = Annotated[
    str | None, typer.Option(help="local, slurm, ssh: interpreter whose environment Ray runs in.", metavar="PATH")
]
_Yes = Annotated[
    bool, typer.Option("--yes", help="compose: merge the project's own compose file, whatever it asks for.")
]
_Flavour = Annotated[
    str | None,
    typer.Option(help="compose: core, cpu, cuda or cuda-verl04 (default: cuda with a GPU).", metavar="FLAVOUR"),
]
_Workers = Annotated[
    int | None, typer.Option(help="compose: how many worker nodes. Default: 1.", min=0, metavar="N", show_default=False)
]
_Prefork = Annotated[
    bool,
    typer.Option("--prefork", help="local: keep processes with torch, vLLM and verl imported; runs start in seconds."),
]
_Warm = Annotated[bool, typer.Option("--warm", hidden=True)]  # the old name of --prefork
_EndWhenHung = Annotated[
    bool,
    typer.Option("--end-when-hung", help="local: end the cluster when Ray has not answered for 300 s."),
]
_DashboardPort = Annotated[
    int | None,
    typer.Option(help="Default: 8265 if free. 0 takes a free one.", min=0, max=65535, metavar="PORT"),
]
_Mount = Annotated[
    list[str] | None,
    typer.Option("--mount", help="compose: a folder for the nodes, SOURCE:TARGET[:ro]; repeatable.", metavar="MOUNT"),
]
_HfCache = Annotated[bool, typer.Option("--hf-cache", help="compose: use this user's Hugging Face cache in the nodes.")]
_EnvFile = Annotated[
    Path | None,
    typer.Option("--env-file", help="compose: KEY=VALUE lines for the nodes (HF_TOKEN ...), mode 600.", metavar="FILE"),
]
_DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="compose: show the sizes chosen for this machine; slurm: the script. Start nothing."
    ),
]
_GatewayPort = Annotated[
    int | None,
    typer.Option(help="Default: 5678 if free. 0 takes a free one.", min=0, max=65535, metavar="PORT"),
]
_Nodes = Annotated[int | None, typer.Option(help="slurm: how many nodes to ask for.", min=1, metavar="N")]
_Folder = Annotated[
    Path | None,
    typer.Option(
        help="slurm: folder that the nodes share. Without --nodes: of `srun raydebug node` in your own allocation.",
        metavar="FOLDER",
    ),
]
_Container = Annotated[
    str,
    typer.Option(
        help="slurm: what precedes the node's program: '--container-image=IMAGE' (pyxis), 'apptainer exec --nv IMG'.",
        metavar="WORDS",
    ),
]
_NodeOptions = Annotated[
    str,
    typer.Option("--node-options", help="slurm, ssh: options of `raydebug node`: '--interface ib0'.", metavar="WORDS"),
]
_Hosts = Annotated[
    Path | None, typer.Option(help="ssh: a file with the name of a host on each line, the head first.", metavar="FILE")
]
_Ssh = Annotated[
    str | None, typer.Option(help="ssh: the command that leads to a host: 'ssh -F CONFIG'.", metavar="COMMAND")
]
_Join = Annotated[
    str | None,
    typer.Option(
        "--join",
        metavar="URL",
        help="A Ray cluster that runs already, by its dashboard: http://HEAD:8265; auto: the one whose head is here.",
    ),
]
_Through = Annotated[
    str | None,
    typer.Option("--through", help="join: a command that runs a program on the head: 'ssh HEAD'.", metavar="COMMAND"),
]


def up(
    ctx: typer.Context,
    cluster: _Kind = None,
    join: _Join = None,
    through: _Through = None,
    name: Name = "default",
    gpus: _Gpus = None,
    cpus: _Cpus = None,
    python: _Python = None,
    flavour: _Flavour = None,
    workers: _Workers = None,
    debugger: Debugger = None,
    dashboard_port: _DashboardPort = None,
    gateway_port: _GatewayPort = None,
    prefork: _Prefork = False,
    warm: _Warm = False,
    end_when_hung: _EndWhenHung = False,
    nodes: _Nodes = None,
    folder: _Folder = None,
    container: _Container = "",
    node_options: _NodeOptions = "",
    hosts: _Hosts = None,
    ssh: _Ssh = None,
    mount: _Mount = None,
    hf_cache: _HfCache = False,
    env_file: _EnvFile = None,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    as_json: Json = False,
) -> None:
    """Start a cluster: Ray, its dashboard and the gateway; or join one that runs.

    \b
    Examples:
      raydebug up --cluster local --gpus 1
      raydebug up --join http://HEAD:8265       a Ray cluster that runs already: nothing of it is restarted
      raydebug up --cluster slurm --nodes 2 --gpus 8 -- --time=01:00:00      after --: options of sbatch
      raydebug up --cluster ssh --hosts FILE
    """
    from raydebug.cluster.find import find_cluster
    from raydebug.cluster.locks import Use
    from raydebug.cluster.up import UpOptions, ignore_interrupts, notice_interrupts
    from raydebug.settings.debugger import choose_mode

    if warm:
        say_renamed("up --warm", "up --prefork")
    sbatch = command_of(ctx)
    by_ssh = {"--hosts": hosts, "--ssh": ssh}
    of_slurm = {"--nodes": nodes is not None, "--folder": folder, "--container": container,
                "what follows `--`": sbatch}  # fmt: skip
    known = find_cluster(name) if join is None else None
    cluster = _only("ssh", by_ssh, cluster or (known.kind if known is not None and known.kind in LAUNCHED else None))
    cluster = _only("slurm", of_slurm if cluster == "ssh" else {**of_slurm, "--node-options": node_options}, cluster)
    given = {"--mount": mount, "--hf-cache": hf_cache, "--env-file": env_file, "--dry-run": dry_run, "--yes": yes,
             "--flavour": flavour, "--workers": workers is not None}  # fmt: skip
    local = {"--python": python, "--end-when-hung": end_when_hung}
    others = {"--cluster": cluster, "--gpus": gpus is not None, "--cpus": cpus, "--prefork": prefork or warm,
              "--dashboard-port": dashboard_port is not None, "--node-options": node_options,
              **of_slurm, **by_ssh, **given, **local}  # fmt: skip
    if known is not None and known.is_joined:
        join = known.there.join_url  # the join again
    _check_join(join, through, [option for option, value in others.items() if value])
    if cluster in LAUNCHED:
        given = {**given, "--dry-run": dry_run and cluster == "ssh"}
        local = {**local, "--python": False, "--prefork": prefork or warm}
    cluster = _only("compose", given, cluster)
    cluster = _only("local", local, cluster)
    options = UpOptions(
        name=name, cpus=cpus, gpus=gpus, debugger=choose_mode(debugger, os.environ)[0], dashboard_port=dashboard_port,
        gateway_port=gateway_port, python=python, prefork=prefork or warm, end_when_hung=end_when_hung,
        flavour=flavour, workers=1 if workers is None else workers, project=Path.cwd(), mounts=mount or [],
        hf_cache=hf_cache, env_file=env_file, yes=yes,
    )  # fmt: skip
    with notice_interrupts():  # from here on: an import can lose a Ctrl-C too
        if cluster == "slurm":
            from raydebug.cluster.slurm import SlurmOptions

            asked = SlurmOptions(nodes or (None if folder else 1), tuple(sbatch), folder, container, node_options)
            _slurm(options, asked, dry_run=dry_run, as_json=as_json)
            return
        if cluster == "ssh":
            from raydebug.cluster.hosts import SshOptions

            _by_ssh(options, SshOptions(hosts, ssh or "ssh", node_options), as_json=as_json)
            return
        if dry_run:
            _preview(options, as_json=as_json)
            return
        if join is not None:
            _join(options, join, through, as_json=as_json)
            return
        with Use(name):  # what is there, and belongs to a `run`, is not ended meanwhile
            found, started = _bring_up(options, cluster)
            found, owner = _take_over(found), found.owner
    with ignore_interrupts():  # the cluster runs: an exit code 130 would say that nothing is left of it
        if as_json:
            render.out_json(describe(found))
            return
        if not started:
            render.say(f"cluster '{name}' runs already:")
        if owner:
            render.say(f"`raydebug run` (pid {owner}) has started it; it stays now until `raydebug down`")
        if options.prefork and not found.prefork:
            render.say("note: it has no pre-forked processes (--prefork is for a local cluster that is started anew)")
        show_cluster(found)
        warn_without_token(found)
        if found.prefork:
            render.say("its pool needs about 30 s to load; `raydebug ps` shows what it holds")


def _check_join(join: str | None, through: str | None, others: list[str]) -> None:
    if through is not None and join is None:
        raise UsageError(
            "--through needs --join", cause="it is the way to the head of a cluster that runs already",
            fix="raydebug up --join http://HEAD:8265 --through 'ssh HEAD'", code="joined.options",
        )  # fmt: skip
    if join is not None and others:
        raise UsageError(
            f"{' and '.join(others)} {'is' if len(others) == 1 else 'are'} not for --join",
            cause="the cluster runs already: it has its sizes, and its Python",
            fix=f"raydebug up --join {join}",
            code="joined.options",
        )


def _join(options: UpOptions, address: str, through: str | None, *, as_json: bool) -> None:
    """Join a cluster, check that its gateway can be reached from here, and show what a job of the user's own needs."""
    from raydebug.cluster import joined, node_jobs, tunnel
    from raydebug.cluster.state import name_option
    from raydebug.jobs.submit import node_variables

    asked = joined.asked_at(address, options.name)
    with render.phases(f"joining {asked.dashboard} as cluster '{options.name}'") as on_phase:
        cluster, nodes, was_joined = joined.join(options, asked, through, on_phase=on_phase)
        on_phase("asking its gateway")
        problem = _wait_for_gateway(cluster)
    if problem:
        port, head, way = cluster.there.client_port, cluster.there.head, cluster.there.through
        said, again = (
            tunnel.last_said(cluster),
            f"`raydebug up --join {cluster.there.join_url}{name_option(cluster.name)}",
        )
        fix = f"{again} --through 'ssh {head}'`, or keep `ssh -N -L {port}:127.0.0.1:{port} {head}` open and join again"
        if way:
            fix = f"{again} --through COMMAND` with one that works; all that it says: {cluster.folder / tunnel.LOG}"
        raise RaydebugError(
            f"the gateway runs on the head, {head}, and cannot be reached from here",
            cause=f"{f'{way} said: {said}; ' if said else ''}{problem}; there it is 127.0.0.1:{port}",
            fix=f"{fix}; `raydebug down{name_option(cluster.name)}` leaves the cluster",
            code="joined.no-way",
        )
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


def _wait_for_gateway(cluster: Cluster) -> str | None:
    """Return why the gateway of a cluster that was joined or launched does not answer; None if it does."""
    from raydebug.cluster.tunnel import STARTS_S
    from raydebug.gateway.gateway_client import fetch_status

    deadline = time.monotonic() + (STARTS_S if cluster.there.through else 0.0)
    while (problem := fetch_status(cluster)["problem"]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return problem


def _slurm(options: UpOptions, asked: SlurmOptions, *, dry_run: bool, as_json: bool) -> None:
    """Submit a cluster to Slurm and wait for it, or show the script."""
    from raydebug.cluster import slurm

    if dry_run:
        folder = asked.folder.absolute() if asked.folder else slurm.fresh_folder(options.name)
        render.out(slurm.script_of(options, asked, folder).rstrip())
        return
    with render.phases(f"starting cluster '{options.name}' with Slurm") as on_phase:
        cluster, nodes, submitted = slurm.bring_up(options, asked, on_phase=on_phase)
        _reach_gateway(cluster, on_phase)
    _show_launched(cluster, submitted, as_json=as_json)
    if as_json:
        return
    for node in nodes:
        if node["phase"] != "up":
            reason = f": {node['reason']}" if node["reason"] else ""
            render.say(render.visible(f"note: {node['host']} is not up ({node['phase']}{reason})"))


def _by_ssh(options: UpOptions, asked: SshOptions, *, as_json: bool) -> None:
    from raydebug.cluster import hosts

    with render.phases(f"starting cluster '{options.name}' by ssh") as on_phase:
        cluster, started = hosts.bring_up(options, asked, on_phase=on_phase)
        _reach_gateway(cluster, on_phase)
    _show_launched(cluster, started, as_json=as_json)


def _reach_gateway(cluster: Cluster, on_phase: Callable[[str], None]) -> None:
    """Wait for an answer of the gateway of a cluster that was launched."""
    from raydebug.cluster import tunnel

    on_phase("asking its gateway")
    if problem := _wait_for_gateway(cluster):
        raise RaydebugError(
            f"the gateway runs on the head, {cluster.there.head}, and cannot be reached from here",
            cause=f"{cluster.there.through} said: {tunnel.last_said(cluster)}; {problem}",
            fix=f"all that it says: {cluster.folder / tunnel.LOG}; `raydebug up` tries again, `raydebug down` ends it",
            code="joined.no-way",
        )


def _show_launched(cluster: Cluster, started: bool, *, as_json: bool) -> None:
    if as_json:
        render.out_json(describe(cluster))
        return
    if not started:
        render.say(f"cluster '{cluster.name}' runs already:")
    show_cluster(cluster)


def _bring_up(options: UpOptions, asked: str | None) -> tuple[Cluster, bool]:
    """Start a cluster of the requested kind, or of the recorded one; return it, and whether this call started it.

    One of another kind that runs is returned as it is; the remains of a local one are removed.
    """
    from raydebug.cluster.find import find_cluster
    from raydebug.cluster.kinds import kind_of
    from raydebug.cluster.up import refuse_other_ports

    existing = find_cluster(options.name)
    if existing is not None and (existing.remote or asked not in (None, existing.kind)):
        if kind_of(existing).is_alive():
            refuse_other_ports(options, existing)
            return existing, False
        if existing.is_local:  # containers stay until `down`: a stopped head can be started again
            kind_of(existing).take_down()
            existing = None
    if _choose_kind(asked or (existing.kind if existing is not None else None)) == "compose":
        from raydebug.cluster.compose.lifecycle import bring_up

        title = f"starting cluster '{options.name}' in containers"
    else:
        from raydebug.cluster.local import bring_up

        title = f"starting cluster '{options.name}' on this machine"
    with render.phases(title) as on_phase:
        return bring_up(options, on_phase=on_phase)


def _take_over(cluster: Cluster) -> Cluster:
    """Return a cluster that stays from now on, also if a `run` has started it."""
    from dataclasses import replace

    from raydebug.cluster.state import save_cluster

    if cluster.owner:
        cluster = replace(cluster, owner=0)
        save_cluster(cluster)
    return cluster


_WHY_ONLY = {
    "compose": "its processes have this machine's folders, its Python and your environment as they are",
    "local": "in containers the image and the engine decide about that",
    "slurm": "no job of Slurm is submitted for it",
    "ssh": "it is not started on other hosts",
}


def _only(kind: str, given: Mapping[str, object], asked: str | None) -> str | None:
    """Return the kind of cluster that the user asks for, by --cluster or by options that one kind has.

    Args:
        kind: of cluster that has these options.
        given: what the user gave for each, by its name.
        asked: the kind so far; None without one.

    Raises:
        RaydebugError: one is given, and another kind is asked for.
    """
    named = [option for option, value in given.items() if value]
    if not named:
        return asked
    if asked in (None, kind):
        return kind
    raise UsageError(
        f"{' and '.join(named)} {'is' if len(named) == 1 else 'are'} for --cluster {kind}",
        cause=f"this is a cluster of the kind {asked}: {_WHY_ONLY[kind]}",
        fix=f"leave {'it' if len(named) == 1 else 'them'} out, or use --cluster {kind}",
        code="cluster.not-containers" if kind == "compose" else f"cluster.not-{kind}",
    )


def _preview(options: UpOptions, *, as_json: bool) -> None:
    """Show the sizes and the command that `up` would choose."""
    import shlex

    from raydebug.cluster.compose.lifecycle import preview

    sizes, argv = preview(options)
    if as_json:
        render.out_json({"version": 1, "settings": {one.name: one.value for one in sizes}, "command": argv})
        return
    for one in sizes:
        render.out(f"{f'{one.name}={one.value}':<36} # {one.why}")
    render.out(shlex.join(argv))


def _choose_kind(asked: str | None) -> str:
    if asked in ("local", "compose"):
        return asked
    if asked is not None:
        raise UsageError(
            f"there is no kind of cluster '{asked}'",
            cause="--cluster takes: local, compose, slurm, ssh",
            fix="raydebug up --cluster local",
            code="cluster.unknown-kind",
        )
    from raydebug.cluster.compose.engine import engine_answers

    reason = engine_answers()
    if reason is None:
        render.say("a Docker engine answers: containers (--cluster local for none)")
        return "compose"
    render.say(f"{reason}: Ray on this machine itself (--cluster local)")
    return "local"


def down(name: Name = "default") -> None:
    """End a cluster: all that `up` started, and nothing else. One that was joined runs on, without the gateway.

    Example: raydebug down --name mine
    """
    from raydebug.cluster.find import load_cluster
    from raydebug.cluster.kinds import kind_of

    cluster = load_cluster(name)
    if cluster.is_joined:
        _name_pauses(cluster)
    with render.waiting(f"ending cluster '{name}'"):
        left = kind_of(cluster).take_down()
    if left:
        raise RaydebugError(
            f"cluster '{name}' is not wholly down",
            cause=f"still there: {', '.join(left)}",
            fix="run `raydebug down` again; look at what is left, by these ids"
            + (f"; where it stays, remove it on the nodes, and then {cluster.folder}" if cluster.remote else ""),
            code="cluster.not-down",
        )
    render.say(
        f"cluster '{name}' is left: it runs on without raydebug" if cluster.is_joined else f"cluster '{name}' is down"
    )


def _name_pauses(cluster: Cluster) -> None:
    """Say what waits in a cluster that runs on."""
    from raydebug.gateway.gateway_client import fetch_pauses

    with contextlib.suppress(RaydebugError):
        if pauses := fetch_pauses(cluster):
            render.say(
                f"note: {len(pauses)} pauses wait; without a gateway they resume after RAYDEBUG_PATIENCE_S (3600 s)"
            )
