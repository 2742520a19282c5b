"""`raydebug try`: what a first run, a code change and a new error have in common."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Debugger, Name, TinyData, TinyModel, tiny_kinds
from raydebug.cli.two_parts import needed_command_of
from raydebug.errors import Exit, RaydebugError

if TYPE_CHECKING:
    from raydebug.check.ladder import Outcome
    from raydebug.check.subject import Subject

PROFILE = "debug"


def try_(
    ctx: typer.Context,
    model: TinyModel = None,
    data: TinyData = None,
    debugger: Debugger = None,
    gpus: Annotated[
        int | None,
        typer.Option(help="Logical GPUs, when this brings a cluster up (default: what it needs).", min=0, metavar="N"),
    ] = None,
    name: Name = "default",
) -> None:
    """Try a training command: check it, run it small, say the next step. At a terminal, a crash stops at its frame.

    Example: raydebug try -- bash train.sh
    """
    from raydebug.check.next_step import Tried, next_steps

    command = needed_command_of(ctx, "to try")
    tiny = tiny_kinds(model, data)
    if debugger is None and sys.stdin.isatty():
        debugger = "post-mortem"
    subject = _find_subject(command, name)
    outcomes = _check(subject, tiny)
    seconds = 0.0
    code = None
    if all(outcome.status != "failed" for outcome in outcomes):
        started = time.monotonic()
        code = _run(command, subject, name, tiny, debugger, gpus)
        seconds = time.monotonic() - started
    tried = Tried(
        command=shlex.join(command),
        outcomes=outcomes,
        code=code,
        seconds=seconds,
        debugger=debugger,
        cluster=subject.cluster is not None,
        name=name,
    )
    for line in next_steps(tried):
        render.say(render.visible(line))
    raise typer.Exit(Exit.FAILED if code is None else code)


def _find_subject(command: list[str], name: str) -> Subject:
    """Return what is checked: the command, or the environment alone where the ladder does not know the training."""
    from raydebug.check.subject import find_subject

    try:
        return find_subject(command, Path.cwd(), name, PROFILE)
    except RaydebugError as unknown:
        if unknown.code not in ("check.no-training", "check.several"):
            raise
        render.say(f"note: only the environment is checked before the run: {render.visible(unknown.what)}")
        return find_subject([], Path.cwd(), name, None)


def _check(subject: Subject, tiny: list[str]) -> list[Outcome]:
    """Climb the rungs below the run: `engine` and `train` are what the run itself does."""
    from raydebug.check import report
    from raydebug.check.ladder import choose_stages, climb
    from raydebug.check.record import record
    from raydebug.check.remembered import Memory

    words = ["env"] if subject.trainer is None else [w for w in ("env", "data", "model") if w not in tiny]

    def show(outcome: Outcome) -> None:
        for line in report.as_lines(outcome):
            render.say(render.visible(line))

    started = time.time()
    outcomes = climb(subject, choose_stages(words), memory=Memory(), on_outcome=show)
    record(subject, outcomes, started)
    return outcomes


def _run(
    command: list[str], subject: Subject, name: str, tiny: list[str], debugger: str | None, gpus: int | None
) -> int:
    from raydebug.check.train import gpus_of
    from raydebug.cli.run import launch

    if gpus is None:
        gpus = gpus_of(subject) if subject.cluster is None and subject.trainer is not None else 0
    return launch(command, name, profile=PROFILE, tiny=tiny, debugger=debugger, gpus=gpus)
