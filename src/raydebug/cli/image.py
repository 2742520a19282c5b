"""`raydebug image` and `raydebug logs`: containers' images, and what a cluster's own programs said."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raydebug import render
from raydebug.cli.options import Name


def image(
    flavour: Annotated[str, typer.Option(help="core (Ray), cpu (Ray, vLLM, verl) or cuda.")] = "cuda",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every layer anew.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and do nothing.")] = False,
) -> None:
    """Build the image of a flavour with docker buildx, in a checkout of raydebug.

    Example: raydebug image --flavour cpu
    """
    from raydebug.cluster.image import build_image

    code = build_image(flavour, Path.cwd(), ["--no-cache"] if no_cache else [], dry_run=dry_run)
    raise typer.Exit(code)


def logs(
    service: Annotated[str | None, typer.Argument(help="head, worker or gateway; all of them without.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    name: Name = "default",
) -> None:
    """Show what the cluster's own programs said (a job's log is `run`'s).

    Example: raydebug logs gateway
    """
    from raydebug.cluster.state import load_cluster

    cluster = load_cluster(name)
    if cluster.kind == "compose":
        from raydebug.cluster.compose import show_logs

        raise typer.Exit(show_logs(cluster, service, follow=follow))
    wanted = {"head": "ray.log", "gateway": "gateway.log"}
    for part, file in wanted.items():
        if service in (None, part) and (cluster.folder / file).is_file():
            text = (cluster.folder / file).read_text(encoding="utf-8", errors="replace")
            for line in text.splitlines():
                render.out(f"{part} | {render.visible(line)}")
