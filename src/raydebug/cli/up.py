"""`raydebug up` and `raydebug down`."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.env_file import write_env as write_env_file
from raydebug.cli.options import Debugger, Json, NameAsGiven, given_options
from raydebug.cli.status import describe, show_cluster, warn_without_token
from raydebug.cli.up_kinds import choose, refuse_for_join
from raydebug.errors import RaydebugError, UsageError
from raydebug.settings.debugger import choose_mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raydebug.cluster.state import Cluster
    from raydebug.cluster.up import UpOptions

_Kind = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="KIND",
        help="compose (containers) or local. Default: compose where a Docker engine answers.",
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
    str | None,
    typer.Option(
        help="local: interpreter that Ray runs in. Default: the shell's `python` if it has Ray and raydebug, else"
        " raydebug's own.",
        metavar="PATH",
    ),
]
_Yes = Annotated[
    bool, typer.Option("--yes", help="compose: merge the project's own compose file, whatever it asks for.")
]
_Flavour = Annotated[
    str | None, typer.Option(help="compose: core, cpu, cuda ... (default: cuda with a GPU).", metavar="FLAVOUR")
]
_Workers = Annotated[
    int, typer.Option(help="compose: how many workers. Default: 1.", min=0, metavar="N", show_default=False)
]
_Prefork = Annotated[
    bool,
    typer.Option("--prefork", help="local: keep processes with torch, vLLM and verl imported; runs start in seconds."),
]
_DashboardPort = Annotated[
    int | None, typer.Option(help="Default: 8265 if free. 0 takes a free one.", min=0, max=65535, metavar="PORT")
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
    bool, typer.Option("--dry-run", help="compose: start nothing, show the sizes that would be chosen.")
]
_WriteEnv = Annotated[
    Path | None,
    typer.Option(
        help="compose: start nothing; write the sizes chosen to a new .env for `docker compose`.", metavar="FILE"
    ),
]
_GatewayPort = Annotated[
    int | None, typer.Option(help="Default: 5678 if free. 0 takes a free one.", min=0, max=65535, metavar="PORT")
]
_Join = Annotated[
    str | None,
    typer.Option(
        "--join",
        metavar="URL|FOLDER",
        help="A Ray cluster that runs already: its dashboard, http://HEAD:8265; the folder of its `raydebug node`; or"
        " auto: the one whose head is here.",
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
    name: NameAsGiven = "default",
    gpus: _Gpus = None,
    cpus: _Cpus = None,
    python: _Python = None,
    flavour: _Flavour = None,
    workers: _Workers = 1,
    debugger: Debugger = None,
    dashboard_port: _DashboardPort = None,
    gateway_port: _GatewayPort = None,
    prefork: _Prefork = False,
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
      raydebug up --join ~/raydebug-1234        one of `raydebug node`, such as the job of deploy/slurm.sbatch
    """
    from raydebug.cli.up_elsewhere import join_cluster
    from raydebug.cluster.locks import Use
    from raydebug.cluster.state import save_cluster
    from raydebug.cluster.up import UpOptions, ignore_interrupts, notice_interrupts

    cluster, join = _kind_or_join(name, cluster, join, through, given_options(ctx))
    if write_env is not None:
        write_env_file(write_env, flavour, workers, as_json=as_json)
        return
    options = UpOptions(
        name=name, cpus=cpus, gpus=gpus, debugger=choose_mode(debugger, os.environ)[0], dashboard_port=dashboard_port,
        gateway_port=gateway_port, python=python, prefork=prefork, flavour=flavour, workers=workers,
        project=Path.cwd(), mounts=mount or [], hf_cache=hf_cache, env_file=env_file, yes=yes,
    )  # fmt: skip
    with notice_interrupts():  # from here on: an import can lose a Ctrl-C too
        if join is not None:
            join_cluster(options, join, through, as_json=as_json)
            return
        if dry_run:
            _preview(options, as_json=as_json)
            return
        with Use(name):  # what is there, and belongs to a `run`, is not ended meanwhile
            running, started = _bring_up(options, cluster)
            if owner := running.owner:  # a `run` has started it: it stays from now on
                running = replace(running, owner=0)
                save_cluster(running)
    with ignore_interrupts():  # the cluster runs: an exit code 130 would say that nothing is left of it
        _show_started(running, options, owner=owner, started=started, as_json=as_json)


def _kind_or_join(
    name: str, kind: str | None, join: str | None, through: str | None, given: Sequence[str]
) -> tuple[str | None, str | None]:
    """Return the kind of cluster that is asked for, or the address of the one to join, again if it was joined."""
    from raydebug.cluster.find import find_cluster

    cluster = find_cluster(name) if join is None and "--write-env" not in given else None
    if cluster is not None and cluster.is_joined:
        join = cluster.remote.join_url
    if join is not None:
        refuse_for_join(join, given)
        return kind, join
    if through is not None:
        raise UsageError(
            "--through needs --join", cause="it is the way to the head of a cluster that runs already",
            fix="raydebug up --join http://127.0.0.1:8265 --through 'ssh HEAD'", code="joined.options",
        )  # fmt: skip
    return choose(kind, given), None


def _show_started(cluster: Cluster, options: UpOptions, *, owner: int, started: bool, as_json: bool) -> None:
    if as_json:
        render.out_json(describe(cluster))
        return
    if not started:
        render.say(f"cluster '{options.name}' runs already:")
    if owner:
        render.say(f"`raydebug run` (pid {owner}) has started it; it stays now until `raydebug down`")
    if options.prefork and not cluster.prefork:
        render.say("note: it has no pre-forked processes (--prefork is for a local cluster that is started anew)")
    show_cluster(cluster)
    warn_without_token(cluster)
    if cluster.prefork:
        render.say("its pool needs about 30 s to load; `raydebug ps` shows what it holds")


def _bring_up(options: UpOptions, asked: str | None) -> tuple[Cluster, bool]:
    """Start a cluster of the requested kind, or of the recorded one; return it, and whether this call started it.

    One of another kind that runs is returned as it is; the remains of a local one are removed.
    """
    from raydebug.cluster.find import find_cluster
    from raydebug.cluster.kinds import kind_of
    from raydebug.cluster.up import refuse_other_ports

    existing = find_cluster(options.name)
    if existing is not None and (existing.is_remote or asked not in (None, existing.kind)):
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
    import shlex

    from raydebug.cluster.compose.lifecycle import preview

    sizes, argv = preview(options)
    if as_json:
        render.out_json({"version": 1, "settings": {size.name: size.value for size in sizes}, "command": argv})
        return
    for size in sizes:
        render.out(f"{f'{size.name}={size.value}':<36} # {size.why}")
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


def down(name: NameAsGiven = "default") -> None:
    """End a cluster: all that `up` started, and nothing else. One that was joined runs on, without the gateway.

    Example: raydebug down --name mine
    """
    from raydebug.cluster.find import load_cluster
    from raydebug.cluster.kinds import kind_of

    try:
        cluster = load_cluster(name)
    except RaydebugError as failure:
        if failure.code == "cluster.not-found":
            failure.fix = "nothing is to be ended; --name NAME names another one"
        raise
    if cluster.remote.job:
        _name_pauses(cluster)
    with render.waiting(f"ending cluster '{name}'"):
        left = kind_of(cluster).take_down()
    if left:
        raise RaydebugError(
            f"cluster '{name}' is not wholly down",
            cause=f"still there: {', '.join(left)}",
            fix="run `raydebug down` again; look at what is left, by these ids"
            + (f"; where it stays, remove it on the nodes, and then {cluster.folder}" if cluster.is_remote else ""),
            code="cluster.not-down",
        )
    what = "is left: it runs on without raydebug" if cluster.is_joined else "is down"
    if cluster.remote.node_folder:
        what = "is left: its nodes run on, with raydebug, until whoever has started them ends them"
    render.say(f"cluster '{name}' {what}")


def _name_pauses(cluster: Cluster) -> None:
    from raydebug.client.gateway_client import fetch_pauses

    with contextlib.suppress(RaydebugError):
        if pauses := fetch_pauses(cluster):
            wait = "1 pause waits; it resumes" if len(pauses) == 1 else f"{len(pauses)} pauses wait; they resume"
            render.say(f"note: {wait} after RAYDEBUG_PATIENCE_S (3600 s) without a gateway")
