"""Options that several verbs share, worded once."""

from __future__ import annotations

from typing import Annotated

import typer

from raydebug.errors import Exit, RaydebugError

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
TinyModel = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="tiny", help="tiny: train a random model of the same architecture, made on the spot."
    ),
]
TinyData = Annotated[
    str | None, typer.Option("--data", metavar="tiny", help="tiny: train on the first rows of the same data.")
]
Debugger = Annotated[
    str | None,
    typer.Option(help="off, breakpoint (default), post-mortem, legacy or legacy-post-mortem.", metavar="MODE"),
]


def tiny_kinds(model: str | None, data: str | None) -> list[str]:
    """Return what --model and --data ask to be swapped in.

    Raises:
        RaydebugError: one of them says another word than `tiny`.
    """
    kinds = []
    for kind, said in (("model", model), ("data", data)):
        if said is None:
            continue
        if said != "tiny":
            raise RaydebugError(
                f"there is no {kind} '{said}' to swap in",
                cause=f"--{kind} knows one word: tiny",
                fix=f"--{kind} tiny, or name your own in the command itself",
                code="profile.unknown-swap",
                exit_code=Exit.USAGE,
            )
        kinds.append(kind)
    return kinds
