"""All verbs, in the order of a day's work."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command_name

import raydebug
from raydebug import render
from raydebug.cli import (
    attach,
    breaks,
    check,
    cluster,
    first_run,
    image,
    job,
    mode,
    pauses,
    profile,
    report,
    run,
    tiny,
    vscode,
    warm,
)
from raydebug.cli.two_parts import TwoParts

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Stop any worker of a Ray + vLLM + verl run at a breakpoint or a crash, and look at it.",
)
app.command()(cluster.up)
app.command()(cluster.ps)
app.command("try", cls=TwoParts)(first_run.try_)
app.command(cls=TwoParts)(check.check)
app.command(cls=TwoParts)(warm.warm)
app.command()(run.run)
app.command()(pauses.paused)
app.command()(attach.attach)
app.add_typer(breaks.app, name="break")
app.add_typer(job.app, name="job")
app.command()(report.report)
app.command()(vscode.vscode)
app.command()(vscode.listen)
app.command()(vscode.adapter)
app.command()(mode.mode)
app.command()(image.logs)
app.command()(cluster.down)
app.command()(image.image)
app.add_typer(profile.app, name="profile")
app.add_typer(tiny.app, name="tiny")


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the app with the asked verb alone, or whole where the first word is none of them.

    Typer makes the parsers of all verbs before it looks which one is asked for: 20 ms of each command.
    """
    word = next((one for one in arguments if one != "--debug"), None)
    commands = [one for one in app.registered_commands if word == _name_of(one)]
    groups = [one for one in app.registered_groups if word == one.name]
    if not commands and not groups:
        return app
    narrowed = copy.copy(app)
    narrowed.registered_commands, narrowed.registered_groups = commands, groups
    return narrowed


def _name_of(command: typer.models.CommandInfo) -> str:
    assert command.callback is not None
    return command.name or get_command_name(command.callback.__name__)


def _version(wanted: bool) -> None:
    if wanted:
        render.out(f"raydebug {raydebug.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show commands as they run, and tracebacks.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    pass
