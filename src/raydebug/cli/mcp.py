"""`raydebug mcp`: tools for agents."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from raydebug.cli.options import Name
from raydebug.errors import UsageError


def mcp(
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Without the tools that run code in a job, resume it or stop it.")
    ] = False,
    allow_jobs: Annotated[
        bool, typer.Option("--allow-jobs", help="With tools that start and stop jobs on the cluster.")
    ] = False,
    name: Name = "default",
) -> None:
    """Give an agent tools on stdin and stdout (MCP): pauses, values, breakpoints, stacks, diagnoses, snapshots.

    Example: raydebug mcp --read-only
    """
    refused = None
    if read_only and allow_jobs:
        refused = "--read-only and --allow-jobs exclude each other", "a job that starts is a change", "leave one out"
    elif sys.stdin.isatty():
        fix = "name it in the agent's configuration: docs/11-agents.md"
        refused = "`raydebug mcp` is for agents", "stdin is a terminal, and an agent speaks MCP there", fix
    if refused is not None:
        what, cause, fix = refused
        raise UsageError(what, cause=cause, fix=fix)
    try:
        from mcp.server import MCPServer  # noqa: F401 - 1 s, and only here
    except ImportError as error:
        from raydebug.settings.flavours import install_raydebug

        raise UsageError(
            "`raydebug mcp` needs the SDK of the Model Context Protocol",
            cause=str(error),
            fix=f"in raydebug's checkout: {install_raydebug('mcp')}",
            code="mcp.not-installed",
        ) from error
    from raydebug.mcp.tools import serve

    serve(name, read_only=read_only, allow_jobs=allow_jobs)
