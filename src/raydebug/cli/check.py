"""`raydebug check`: find what would stop a training, before it starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json, Name, command_of, needed_command_of
from raydebug.errors import Exit, RaydebugError

if TYPE_CHECKING:
    from collections.abc import Callable

    from raydebug.check.stages import Outcome, Stage
    from raydebug.check.target import Target


def check(
    ctx: typer.Context,
    stages: Annotated[
        list[str] | None,
        typer.Argument(
            help="env, data, model, engine, train: these only; or cluster. Put the training command after `--`.",
            metavar="[STAGE]... -- COMMAND...",
        ),
    ] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Run the next stages too when one fails.")] = False,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Apply fixes that are settings or variables, check again, print the fixed command."),
    ] = False,
    profile: Annotated[
        str | None, typer.Option(help="Check the command as this profile would run it: debug.", metavar="PROFILE")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Write the outcome as JUnit's XML too.", metavar="FILE")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Check stages anew that passed before, unchanged.")] = False,
    as_json: Json = False,
    name: Name = "default",
) -> None:
    """Check a training command step by step, each step cheaper than the next; stop at the first that fails.

    Example: raydebug check -- python -m verl.trainer.main_ppo data.train_files=train.parquet
    """
    from raydebug.check import output
    from raydebug.check.cache import Cache
    from raydebug.check.output import record
    from raydebug.check.stages import FAILED, Fixed, choose_stages, fix_until_done, run_stages

    chosen = choose_stages(stages or [])
    target = _subject(ctx, name, profile, needs_command=any(stage.needs_command for stage in chosen))

    on_stage, on_outcome = _narration(as_json=as_json)

    def attempt(target: Target) -> list[Outcome]:
        cache = Cache(fresh=fresh)
        return run_stages(target, chosen, cache=cache, keep_going=keep_going, on_stage=on_stage, on_outcome=on_outcome)

    started = time.time()
    if fix:
        fixed, outcomes = fix_until_done(target, attempt, lambda it: render.say(f"fix: {render.visible(it)}"))
    else:
        fixed, outcomes = Fixed(target), attempt(target)
    if fixed.changes:
        (render.say if as_json else render.out)(fixed.as_command())
    record(fixed.target, outcomes, started)
    if junit is not None:
        _write(junit, output.as_junit(outcomes))
    if as_json:
        render.out_json(output.as_json(outcomes))
    raise typer.Exit(Exit.FAILED if any(outcome.status == FAILED for outcome in outcomes) else Exit.OK)


def _narration(*, as_json: bool) -> tuple[Callable[[Stage], None], Callable[[Outcome], None]]:
    """Return the callbacks that print a stage's begin and outcome; with --json they print nothing."""
    from raydebug.check import output

    def begin(stage: Stage) -> None:
        if stage.budget_s > 2 and not as_json:
            render.say(f"{stage.name} ... (up to {stage.budget_s:.0f} s)")

    def end(outcome: Outcome) -> None:
        if not as_json:
            for line in output.as_lines(outcome):
                render.out(render.visible(line))

    return begin, end


def _subject(ctx: typer.Context, name: str, profile: str | None, *, needs_command: bool) -> Target:
    from raydebug.check.target import find_target
    from raydebug.profile.load import load_profile

    if needs_command:
        needed_command_of(ctx, "to check", or_else="; `raydebug check env` needs none")
    if profile is not None:
        load_profile(profile)
    return find_target(command_of(ctx), Path.cwd(), name, profile)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as failure:
        raise RaydebugError(
            f"cannot write {path}",
            cause=str(failure),
            fix="name another file with --junit",
            code="check.junit",
            exit_code=Exit.USAGE,
        ) from failure
