"""`raydebug up` and `raydebug down`."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Debugger, Json, Name, command_of, given_options, say_renamed
from raydebug.cli.status import describe, show_cluster, warn_without_token
from raydebug.errors import RaydebugError, UsageError

if TYPE_CHECKING:
    from raydebug.cluster.state import Cluster
    from raydebug.cluster.up import UpOptions

_Kind = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="KIND",
        help="compose (containers), local, slurm, ssh, or kubernetes (prints a manifest). Default: compose where a"
        " Docker engine answers.",
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
    typer.Option(help="compose, kubernetes: core, cpu, cuda ... (default: cuda with a GPU).", metavar="FLAVOUR"),
]
_Workers = Annotated[
    int | None,
    typer.Option(help="compose, kubernetes: how many workers. Default: 1.", min=0, metavar="N", show_default=False),
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
        "--dry-run", help="Start nothing. compose: show the sizes chosen; slurm: the script; kubernetes: the manifest."
    ),
]
_WriteEnv = Annotated[
    Path | None,
    typer.Option(
        help="compose: start nothing; write the sizes chosen to a new .env for `docker compose`.", metavar="FILE"
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
_Image = Annotated[
    str | None,
    typer.Option("--image", help="kubernetes: what the pods run, REGISTRY/NAME@sha256:DIGEST.", metavar="IMAGE"),
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
    image: _Image = None,
    mount: _Mount = None,
    hf_cache: _HfCache = False,
    env_file: _EnvFile = None,
    dry_run: _DryRun = False,
    write_env: _WriteEnv = None,
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
      raydebug up --cluster kubernetes --image IMAGE --gpus 8 --dry-run -- python train.py | kubectl apply -f -
    """
    from raydebug.cli.env_file import write_env as write_env_file
    from raydebug.cli.up_elsewhere import join_cluster, launch_cluster, show_manifest
    from raydebug.cli.up_kinds import COMMAND, LAUNCHED, choose, refuse_for_join
    from raydebug.cluster.find import find_cluster
    from raydebug.cluster.locks import Use
    from raydebug.cluster.state import save_cluster
    from raydebug.cluster.up import UpOptions, ignore_interrupts, notice_interrupts
    from raydebug.settings.debugger import choose_mode

    if warm:
        say_renamed("up --warm", "up --prefork")
    after = command_of(ctx)
    given = ["--prefork" if one == "--warm" else one for one in given_options(ctx)] + ([COMMAND] if after else [])
    if write_env is not None:
        choose(cluster, given)  # refuses what is not for containers
        write_env_file(write_env, flavour, 1 if workers is None else workers, as_json=as_json)
        return
    known = find_cluster(name) if join is None and cluster != "kubernetes" and image is None else None
    if known is not None and known.is_joined:
        join = known.there.join_url  # the join again
    if join is not None:
        refuse_for_join(join, given)
    elif through is not None:
        raise UsageError(
            "--through needs --join", cause="it is the way to the head of a cluster that runs already",
            fix="raydebug up --join http://127.0.0.1:8265 --through 'ssh HEAD'", code="joined.options",
        )  # fmt: skip
    else:
        launched = known.kind if known is not None and known.kind in LAUNCHED else None
        cluster = choose(cluster or launched, given)
    options = UpOptions(
        name=name, cpus=cpus, gpus=gpus, debugger=choose_mode(debugger, os.environ)[0], dashboard_port=dashboard_port,
        gateway_port=gateway_port, python=python, prefork=prefork or warm, end_when_hung=end_when_hung,
        flavour=flavour, workers=1 if workers is None else workers, project=Path.cwd(), mounts=mount or [],
        hf_cache=hf_cache, env_file=env_file, yes=yes, nodes=nodes or (None if folder else 1), folder=folder,
        container=container, node_options=node_options, hosts=hosts, ssh=ssh or "ssh", image=image or "",
        after=tuple(after),
    )  # fmt: skip
    with notice_interrupts():  # from here on: an import can lose a Ctrl-C too
        if join is not None:
            join_cluster(options, join, through, as_json=as_json)
            return
        if cluster in LAUNCHED:
            launch_cluster(cluster, options, dry_run=dry_run, as_json=as_json)
            return
        if cluster == "kubernetes":
            show_manifest(options, dry_run=dry_run, as_json=as_json)
            return
        if dry_run:
            _preview(options, as_json=as_json)
            return
        with Use(name):  # what is there, and belongs to a `run`, is not ended meanwhile
            found, started = _bring_up(options, cluster)
            if owner := found.owner:  # a `run` has started it: it stays from now on
                found = replace(found, owner=0)
                save_cluster(found)
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
    what = "is left: it runs on without raydebug" if cluster.is_joined else "is down"
    if cluster.remote is not None and "own" in cluster.remote.launched:
        what = f"is left: job {cluster.remote.launched['job']} runs on, with raydebug (`scancel` ends it)"
    render.say(f"cluster '{name}' {what}")


def _name_pauses(cluster: Cluster) -> None:
    """Say what waits in a cluster that runs on."""
    from raydebug.client.gateway_client import fetch_pauses

    with contextlib.suppress(RaydebugError):
        if pauses := fetch_pauses(cluster):
            wait = "1 pause waits; it resumes" if len(pauses) == 1 else f"{len(pauses)} pauses wait; they resume"
            render.say(f"note: {wait} after RAYDEBUG_PATIENCE_S (3600 s) without a gateway")
