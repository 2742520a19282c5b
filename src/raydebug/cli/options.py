"""Options that several verbs share, worded once."""

from __future__ import annotations

from typing import Annotated

import typer

Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Which cluster, where several run side by side.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Debugger = Annotated[
    str | None,
    typer.Option(help="off, breakpoint (default), post-mortem, legacy or legacy-post-mortem.", metavar="MODE"),
]
