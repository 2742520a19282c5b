"""`run --dry-run` and `try --dry-run`: the command that would run, and why the profile changes each setting."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from raydebug import render
from raydebug.cli.run_plan import RunOptions
from raydebug.cluster.interpreter import probe_environment
from raydebug.cluster.kinds import find_running, kind_of
from raydebug.cluster.runner import LocalRunner, Runner
from raydebug.errors import Exit, RaydebugError
from raydebug.profile.apply_profile import explain
from raydebug.settings.flavours import flavour_variables
from raydebug.trainers.registry import TRAINERS


def show_command(options: RunOptions, *, version: str | None = None, as_json: bool = False) -> int:
    """Print the command of a run as its profile changes it; nothing is run, scripts are only read.

    Args:
        options: of the run.
        version: of the trainer, to assume whatever is installed.
        as_json: print one JSON document.

    Raises:
        RaydebugError: it runs no known training, or the profile can be applied to none of them.
    """
    profile = options.profile_in_force
    if profile is None:
        if as_json:
            nothing: dict[str, Any] = {name: [] for name in ("changes", "missing", "made", "notes", "trainings")}
            render.out_json({"version": 1, **nothing, "argv": options.command})
        else:
            render.say("no profile: the command runs as it is")
            render.out(render.visible(shlex.join(options.command)))
        return Exit.OK
    environ, elsewhere = _surroundings(options.name)
    documents = explain(
        options.command,
        profile=profile,
        environ=environ,
        folder=options.folder or Path.cwd(),
        tiny=options.tiny,
        rollouts=options.rollouts.as_variable() if options.rollouts else "",
        version=version,
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
    return Exit.USAGE if any("refused" in document for document in documents) else Exit.OK


def _surroundings(name: str) -> tuple[dict[str, str], Runner | None]:
    """Return the environment of a job, and the runner to ask where that is not this Python on this machine."""
    cluster = find_running(name)
    if cluster is not None:
        runner, flavour = kind_of(cluster).runner(), cluster.flavour
    else:
        runner = LocalRunner(sys.executable)
        try:
            flavour = probe_environment(sys.executable).flavour
        except RaydebugError:  # no cluster can start here; a command can be looked at all the same
            flavour = "core"
    is_here = isinstance(runner, LocalRunner) and runner.python == sys.executable
    return {**flavour_variables(flavour), **os.environ}, None if is_here else runner


def _print(profile: str, document: dict[str, Any]) -> None:
    name = next(trainer.name for trainer in TRAINERS if trainer.name in document)
    of = f"{name} {document[name]}" if document[name] else f"a release of {name} that states no version"
    render.say(f"{profile} over {document['trainer']} of {of}: {len(document['changes'])} changes")
    rows = [
        [c["key"], f"{c['old']} -> {'(taken out)' if c['new'] is None else c['new']}", c["why"], c["saving"]]
        for c in document["changes"]
    ]
    render.table(["key", "change", "why", "saves"], rows)
    for made in document["made"]:
        render.say(f"made when it runs: {made['target']}")
    if document["missing"]:
        words = [f"{row['setting']} ({row['key']})" if row["key"] else row["setting"] for row in document["missing"]]
        render.say(f"left alone, it has no key for: {', '.join(words)}")
    for note in document["notes"]:
        render.say(f"note: {render.visible(note, keep='')}")
    argv = document["argv"]
    words = [shlex.quote(word) for word in argv]
    first = next((at for at, word in enumerate(argv) if "=" in word and not word.startswith("-")), len(argv))
    # An argument of the trainer in each line.
    render.out(render.visible(" \\\n    ".join([" ".join(words[:first]), *words[first:]])))
