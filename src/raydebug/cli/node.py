"""`raydebug node`: one host of a cluster of several, as a launcher starts it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from raydebug.cli.options import Debugger
from raydebug.errors import Exit, RaydebugError, UsageError

_Stdin = Annotated[
    str, typer.Argument(metavar="[-]", help="With --join, without a shared folder: read head and token from stdin.")
]
_Folder = Annotated[
    Path | None, typer.Option(help="Folder of the cluster, the same for all nodes, for you alone.", metavar="FOLDER")
]
_Head = Annotated[bool, typer.Option("--head", help="This is the head. Below Slurm task 0 is, without this.")]
_Join = Annotated[bool, typer.Option("--join", help="This is not the head.")]
_Nodes = Annotated[
    int | None, typer.Option(help="How many nodes the cluster is to have. Default: Slurm's.", min=1, metavar="N")
]
_Cpus = Annotated[int | None, typer.Option(help="Logical CPUs of this node.", min=1, metavar="N")]
_Gpus = Annotated[int | None, typer.Option(help="Logical GPUs of this node.", min=0, metavar="N")]
_Interface = Annotated[
    str | None,
    typer.Option(help="Network interface for the other nodes. Default: the one that leads there.", metavar="IF"),
]
_Ports = Annotated[
    str | None, typer.Option(help="Use no other ports, where a firewall is between the nodes.", metavar="A-B")
]
_Python = Annotated[
    str | None, typer.Option(help="Interpreter that Ray runs in. Default: as for `up`.", metavar="PATH")
]
_Patience = Annotated[float, typer.Option(help="Seconds to wait for the head.", min=0, metavar="S")]


def node(
    stdin: _Stdin = "",
    folder: _Folder = None,
    head: _Head = False,
    join: _Join = False,
    nodes: _Nodes = None,
    cpus: _Cpus = None,
    gpus: _Gpus = None,
    interface: _Interface = None,
    ports: _Ports = None,
    python: _Python = None,
    patience: _Patience = 300.0,
    debugger: Debugger = None,
) -> None:
    """Run one node of a cluster in the foreground: Ray, and on the head the gateway. A launcher starts it on each host.

    \b
    Examples:
      raydebug node --folder ~/cluster --head        on one host; --join on the others
      srun --ntasks-per-node=1 --cpu-bind=none raydebug node --folder ~/cluster    on all hosts of a job of Slurm
      cat cluster/cluster.json cluster/token | ssh HOST raydebug node --join -     without a folder that hosts share
    """
    from raydebug.cluster.node import NodeOptions, run
    from raydebug.cluster.private_folders import remove_private
    from raydebug.settings.debugger import choose_mode

    if head and join:
        raise UsageError("a node is either the head or not", cause="--head and --join are both given", fix="choose one")
    folder = _folder(stdin, folder, is_joining=join)
    options = NodeOptions(
        folder=folder, head=True if head else False if join else None, nodes=nodes, cpus=cpus, gpus=gpus,
        interface=interface, ports=ports, patience_s=patience, debugger=choose_mode(debugger, os.environ)[0],
        python=python,
    )  # fmt: skip
    try:
        failure, was_head = run(options)
    finally:
        if stdin:
            remove_private(folder)
    _end(failure, folder, is_head=was_head)


def _folder(stdin: str, folder: Path | None, *, is_joining: bool) -> Path:
    """Return the folder of the cluster; of one that comes on standard input a copy, held by this process."""
    if (stdin, is_joining, folder is None) == ("-", True, True):
        from raydebug.cluster.node import hold
        from raydebug.cluster.rendezvous import take_copy

        folder = take_copy(sys.stdin.read())
        hold(folder)
    elif stdin or folder is None:
        raise UsageError(
            "nothing says where the other nodes are", cause="a node takes --folder FOLDER, or --join -",
            fix="raydebug node --folder FOLDER --head on one host, and --join on each of the others",
            code="node.role",
        )  # fmt: skip
    return folder


def _end(failure: str | None, folder: Path, *, is_head: bool) -> NoReturn:
    """End the program as launchers take it: they end all nodes with one that fails (srun --kill-on-bad-exit)."""
    if failure:
        error = RaydebugError(
            "this node has ended", cause=failure, fix=f"read the logs in {folder}, and start the cluster again",
            code="node.ended",
        )  # fmt: skip
        if is_head:
            raise error
        typer.echo(str(error), err=True)
    raise typer.Exit(Exit.FAILED if is_head else Exit.OK)
