"""`raydebug profile`: which profiles there are, and what one would change in a command."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from raydebug import render
from raydebug.cli.options import Json, Name, PassThrough, TinyData, TinyModel, TrainerName, command_of, tiny_kinds
from raydebug.errors import Exit

app = typer.Typer(help="Profiles: how big a run is, and what one would change in your command.")


DEFAULT_PROFILE = "debug"


@app.command("list")
def list_profiles(as_json: Json = False) -> None:
    """List the profiles.

    Example: raydebug profile list
    """
    from raydebug.profile.load import load_profile, profile_names

    profiles = [load_profile(name) for name in profile_names()]
    if as_json:
        rows = [{"name": p.name, "summary": p.summary, "trainers": list(p.trainers)} for p in profiles]
        render.out_json({"version": 1, "profiles": rows})
        return
    render.table(None, ["profile", "what it makes of a run"], [[p.name, p.summary] for p in profiles])


@app.command(cls=PassThrough)
def show(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROFILE] -- COMMAND...", help="Default: debug. The command may be a shell script."),
    ] = None,
    model: TinyModel = None,
    data: TinyData = None,
    verl: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Take verl for this version, such as 0.7.1.")
    ] = None,
    trainer: TrainerName = None,
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Show what a profile would change in a command, and why; nothing is run, scripts are only read.

    Example: raydebug profile show debug -- bash train.sh
    """
    from raydebug.profile.apply_profile import explain

    profile, *before = words or [DEFAULT_PROFILE]
    command = before + command_of(ctx, "" if before else "to show")
    environ, elsewhere = _surroundings(name)
    documents = explain(
        command,
        profile=profile,
        environ=environ,
        folder=Path.cwd(),
        tiny=tiny_kinds(model, data),
        version=verl,
        elsewhere=elsewhere,
    )
    if as_json:
        last = [document for document in documents if "refused" not in document][-1]
        render.out_json({"version": 1, **last, "trainings": documents})
    for document in documents if not as_json else []:
        if "refused" in document:
            refused = document["refused"]
            render.say(f"refused: {refused['message']}\ncause: {refused['cause']}\nfix: {refused['fix']}")
        else:
            _print(profile, document)
    if any("refused" in document for document in documents):
        raise typer.Exit(Exit.USAGE)


def _surroundings(name: str) -> tuple[dict[str, str], Any]:
    """Return the environment of a job, and the runner to ask where that is not this Python on this machine."""
    from raydebug.cluster.interpreter import probe_environment
    from raydebug.cluster.kinds import find_running, kind_of
    from raydebug.cluster.runner import LocalRunner
    from raydebug.errors import RaydebugError
    from raydebug.settings.flavours import flavour_variables

    cluster = find_running(name)
    if cluster is not None:
        runner, flavour = kind_of(cluster).runner(), cluster.flavour
    else:
        runner = LocalRunner(sys.executable)
        try:
            flavour = probe_environment(sys.executable).flavour
        except RaydebugError:  # no cluster can start here; a command can be looked at all the same
            flavour = "core"
    environ = {**flavour_variables(flavour), **os.environ}
    is_here = isinstance(runner, LocalRunner) and runner.python == sys.executable
    return environ, None if is_here else runner


def _print(profile: str, document: dict[str, Any]) -> None:
    from raydebug.trainers.registry import TRAINERS

    name = next(trainer.name for trainer in TRAINERS if trainer.name in document)
    of = f"{name} {document[name]}" if document[name] else f"a release of {name} that states no version"
    render.say(f"{profile} over {document['trainer']} of {of}: {len(document['changes'])} changes")
    rows = [
        [c["key"], f"{c['old']} -> {'(taken out)' if c['new'] is None else c['new']}", c["why"], c["saving"]]
        for c in document["changes"]
    ]
    render.table(None, ["key", "change", "why", "saves"], rows)
    for made in document["made"]:
        render.say(f"made when it runs: {made['target']}")
    if document["missing"]:
        words = ", ".join(
            f"{one['setting']} ({one['key']})" if one["key"] else one["setting"] for one in document["missing"]
        )
        render.say(f"left alone, it has no key for: {words}")
    for note in document["notes"]:
        render.say(f"note: {render.visible(note, keep='')}")
    render.out(render.visible(" \\\n    ".join(_lines(document["argv"]))))


def _lines(argv: list[str]) -> list[str]:
    """Return the command, an argument of the trainer in each line."""
    words = [shlex.quote(word) for word in argv]
    first = next((at for at, word in enumerate(argv) if "=" in word and not word.startswith("-")), len(argv))
    return [" ".join(words[:first]), *words[first:]]
