"""Options that several verbs share, worded once."""

from __future__ import annotations

from typing import Annotated

import typer

Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Which cluster, where several run side by side.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="URL",
        help="A Ray cluster that raydebug did not start, by its dashboard: http://HEAD:8265. Its token is looked for"
        " where Ray looks.",
    ),
]
Debugger = Annotated[
    str | None,
    typer.Option(help="off, breakpoint (default), post-mortem, legacy or legacy-post-mortem.", metavar="MODE"),
]
