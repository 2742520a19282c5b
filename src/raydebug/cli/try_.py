"""`raydebug try`: check a training, run it small, and name the next step."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import GPUS_HELP, Debugger, Name, TinyData, TinyModel, needed_command_of, tiny_kinds
from raydebug.errors import Exit, RaydebugError

if TYPE_CHECKING:
    from raydebug.check.stages import Outcome
    from raydebug.check.target import Target

PROFILE = "debug"


def try_(
    ctx: typer.Context,
    model: TinyModel = None,
    data: TinyData = None,
    debugger: Debugger = None,
    gpus: Annotated[
        int | None,
        typer.Option(help=GPUS_HELP, min=0, metavar="N"),
    ] = None,
    name: Name = "default",
) -> None:
    """Try a training command: check it, run it small, say the next step. At a terminal, a crash stops at its frame.

    Example: raydebug try -- bash train.sh
    """
    from raydebug.check.output import Tried, next_steps

    command = needed_command_of(ctx, "to try")
    tiny = tiny_kinds(model, data)
    if debugger is None and sys.stdin.isatty():
        debugger = "post-mortem"
    target = _find_subject(command, name)
    outcomes = _check(target, tiny)
    seconds = 0.0
    code = None
    if all(outcome.status != "failed" for outcome in outcomes):
        started = time.monotonic()
        code = _run(command, name, tiny, debugger, gpus)
        seconds = time.monotonic() - started
    tried = Tried(
        command=shlex.join(command),
        outcomes=outcomes,
        code=code,
        seconds=seconds,
        debugger=debugger,
        cluster=target.cluster is not None,
        name=name,
    )
    for line in next_steps(tried):
        render.say(render.visible(line))
    raise typer.Exit(Exit.FAILED if code is None else code)


def _find_subject(command: list[str], name: str) -> Target:
    """Return the target of the check: the command, or only the environment if the training is unknown."""
    from raydebug.check.target import find_target

    try:
        return find_target(command, Path.cwd(), name, PROFILE)
    except RaydebugError as unknown:
        if unknown.code not in ("check.no-training", "check.several"):
            raise
        render.say(f"note: only the environment is checked before the run: {render.visible(unknown.what)}")
        return find_target([], Path.cwd(), name, None)


def _check(target: Target, tiny: list[str]) -> list[Outcome]:
    """Run the stages before the run; the run itself covers `engine` and `train`."""
    from raydebug.check import output
    from raydebug.check.cache import Cache
    from raydebug.check.output import record
    from raydebug.check.stages import choose_stages, run_stages

    words = ["env"] if target.program is None else [w for w in ("env", "data", "model") if w not in tiny]

    def show(outcome: Outcome) -> None:
        for line in output.as_lines(outcome):
            render.say(render.visible(line))

    started = time.time()
    outcomes = run_stages(target, choose_stages(words), cache=Cache(), on_outcome=show)
    record(target, outcomes, started)
    return outcomes


def _run(command: list[str], name: str, tiny: list[str], debugger: str | None, gpus: int | None) -> int:
    from raydebug.cli.run import launch

    return launch(command, name, profile=PROFILE, tiny=tiny, debugger=debugger, gpus=gpus)
