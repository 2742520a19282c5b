"""`raydebug up` and `raydebug down`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Debugger, Json, Name, say_renamed
from raydebug.cli.status import describe, show_cluster, warn_without_token
from raydebug.errors import Exit, RaydebugError

if TYPE_CHECKING:
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
_Python = Annotated[str | None, typer.Option(help="local: interpreter whose environment Ray runs in.", metavar="PATH")]
_Flavour = Annotated[
    str | None,
    typer.Option(help="compose: core, cpu, cuda or cuda-verl04 (default: cuda with a GPU).", metavar="FLAVOUR"),
]
_Workers = Annotated[int, typer.Option(help="compose: how many worker nodes.", min=0, metavar="N")]
_Prefork = Annotated[
    bool,
    typer.Option("--prefork", help="local: keep processes with torch, vLLM and verl imported; runs start in seconds."),
]
_Warm = Annotated[bool, typer.Option("--warm", hidden=True)]  # the old name of --prefork
_EndWhenHung = Annotated[
    bool,
    typer.Option("--end-when-hung", help="local: end the cluster when Ray has not answered for 300 s."),
]
_DashboardPort = Annotated[int | None, typer.Option(help="Default: 8265 if free. 0 takes a free one.", metavar="PORT")]
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
    bool, typer.Option("--dry-run", help="compose: show the sizes chosen for this machine, start nothing.")
]
_GatewayPort = Annotated[int | None, typer.Option(help="Default: 5678 if free. 0 takes a free one.", metavar="PORT")]


def up(
    cluster: _Kind = None,
    name: Name = "default",
    gpus: _Gpus = None,
    cpus: _Cpus = None,
    python: _Python = None,
    flavour: _Flavour = None,
    workers: _Workers = 1,
    debugger: Debugger = None,
    dashboard_port: _DashboardPort = None,
    gateway_port: _GatewayPort = None,
    prefork: _Prefork = False,
    warm: _Warm = False,
    end_when_hung: _EndWhenHung = False,
    mount: _Mount = None,
    hf_cache: _HfCache = False,
    env_file: _EnvFile = None,
    dry_run: _DryRun = False,
    as_json: Json = False,
) -> None:
    """Start a cluster: Ray, its dashboard and the gateway.

    Example: raydebug up --cluster local --gpus 1
    """
    from raydebug.cluster.up import UpOptions, ignore_interrupts, notice_interrupts
    from raydebug.settings.debugger import choose_mode

    if warm:
        say_renamed("up --warm", "up --prefork")
    if mount or hf_cache or env_file or dry_run:
        cluster = _containers_only(cluster)
    options = UpOptions(
        name=name, cpus=cpus, gpus=gpus, debugger=choose_mode(debugger, os.environ)[0], dashboard_port=dashboard_port,
        gateway_port=gateway_port, python=python, prefork=prefork or warm, end_when_hung=end_when_hung,
        flavour=flavour, workers=workers, project=Path.cwd(), mounts=mount or [], hf_cache=hf_cache, env_file=env_file,
    )  # fmt: skip
    with notice_interrupts():  # from here on: an import can lose a Ctrl-C too
        if dry_run:
            _preview(options, as_json=as_json)
            return
        found, started = _bring_up(options, cluster)
    with ignore_interrupts():  # the cluster runs: an exit code 130 would say that nothing is left of it
        if as_json:
            render.out_json(describe(found))
            return
        if not started:
            render.say(f"cluster '{name}' runs already:")
        if options.prefork and not found.prefork:
            render.say("note: it has no pre-forked processes (--prefork is for a local cluster that is started anew)")
        show_cluster(found)
        warn_without_token(found)
        if found.prefork:
            render.say("its pool needs about 30 s to load; `raydebug ps` shows what it holds")


def _bring_up(options: UpOptions, asked: str | None) -> tuple[Cluster, bool]:
    """Start a cluster of the requested kind; return it, and whether this call started it."""
    existing = _of_other_kind(options.name, asked)
    if existing is not None:
        return existing, False
    kind = _kind(asked or _recorded_kind(options.name))
    if kind == "compose":
        from raydebug.cluster.compose.lifecycle import bring_up

        title = f"starting cluster '{options.name}' in containers"
    else:
        from raydebug.cluster.local import bring_up

        title = f"starting cluster '{options.name}' on this machine"
    with render.phases(title) as on_phase:
        return bring_up(options, on_phase=on_phase)


def _containers_only(kind: str | None) -> str:
    """Return the kind that takes mounts, keys and sizes."""
    if kind in (None, "compose"):
        return "compose"
    raise RaydebugError(
        "--mount, --hf-cache, --env-file and --dry-run are for containers",
        cause=f"--cluster {kind}: its processes have this machine's folders and your environment as they are",
        fix="leave them out, or use --cluster compose",
        code="cluster.not-containers",
        exit_code=Exit.USAGE,
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


def _of_other_kind(name: str, asked: str | None) -> Cluster | None:
    """Return the cluster of this name if it runs and is of another kind; the remains of a dead one are removed."""
    from raydebug.cluster.find import find_cluster
    from raydebug.cluster.kinds import kind_of

    existing = find_cluster(name)
    if existing is None or (not existing.joined and asked in (None, existing.kind)):
        return None
    if kind_of(existing).is_alive():
        return existing
    kind_of(existing).take_down()
    return None


def _recorded_kind(name: str) -> str | None:
    """Return the kind of the recorded cluster of this name, alive or dead: `up` is about that one."""
    from raydebug.cluster.find import find_cluster

    existing = find_cluster(name)
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
    from raydebug.cluster.compose.engine import engine_answers

    reason = engine_answers()
    if reason is None:
        render.say("a Docker engine answers: containers (--cluster local for none)")
        return "compose"
    render.say(f"{reason}: Ray on this machine itself (--cluster local)")
    return "local"


def down(name: Name = "default") -> None:
    """End a cluster: all that `up` started, and nothing else.

    Example: raydebug down --name mine
    """
    from raydebug.cluster.find import load_cluster
    from raydebug.cluster.kinds import kind_of

    cluster = load_cluster(name)
    with render.waiting(f"ending cluster '{name}'"):
        left = kind_of(cluster).take_down()
    if left:
        raise RaydebugError(
            f"cluster '{name}' is not wholly down",
            cause=f"still there: {', '.join(left)}",
            fix="run `raydebug down` again; look at what is left, by these ids",
            code="cluster.not-down",
        )
    render.say(f"cluster '{name}' is down")
