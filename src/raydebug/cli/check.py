"""`raydebug check`: find what would stop a training before it starts; `--prefetch`: read ahead what it will read."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json, NameToRunOn, TrainerName, command_of
from raydebug.errors import Exit, UsageError
from raydebug.settings.files import write_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from raydebug.check.stages import Outcome, Stage
    from raydebug.check.target import Target

ELSEWHERE = ["env", "data"]  # the stages that need neither the model nor the GPUs of the training
PREFETCH_BUDGET_S = 1200.0  # 1 TB at 300 MB/s within the limit of three budgets

_Stages = Annotated[
    list[str] | None,
    typer.Argument(
        help="env, data, model, engine, train: these only; or cluster. Put the training command after `--`.",
        metavar="[STAGE]... -- COMMAND...",
    ),
]
_Fix = Annotated[
    bool,
    typer.Option("--fix", help="Apply fixes that are settings or variables, check again, print the fixed command."),
]
_Profile = Annotated[
    str | None, typer.Option(help="Check the command as this profile would run it: debug.", metavar="PROFILE")
]
_JUnit = Annotated[Path | None, typer.Option("--junit", help="Write the outcome as JUnit's XML too.", metavar="FILE")]
_Elsewhere = Annotated[
    bool,
    typer.Option(
        "--elsewhere",
        help="The training runs on another machine: check env and data, without this one's GPUs, limits and missing"
        " data. For CI.",
    ),
]
_Prefetch = Annotated[
    bool,
    typer.Option(
        "--prefetch",
        help="Run no stage: read the model and the data into memory (the page cache), so that the start waits for"
        " no disk. At most half of the free memory is used.",
    ),
]


def check(
    ctx: typer.Context,
    stages: _Stages = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Run the next stages too when one fails.")] = False,
    fix: _Fix = False,
    profile: _Profile = None,
    junit: _JUnit = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Check stages anew that passed before, unchanged.")] = False,
    elsewhere: _Elsewhere = False,
    prefetch: _Prefetch = False,
    as_json: Json = False,
    trainer: TrainerName = None,
    name: NameToRunOn = "default",
) -> None:
    """Check a training command step by step, from fast to slow; stop at the first that fails.

    Example: raydebug check -- python -m verl.trainer.main_ppo data.train_files=train.parquet
    """
    from raydebug.check import output
    from raydebug.check.cache import Cache
    from raydebug.check.output import record
    from raydebug.check.stages import FAILED, Fixed, choose_stages, fix_until_done, run_stages

    if prefetch:
        _read_ahead(_subject(ctx, name, profile, purpose="to read ahead for"), as_json=as_json)
        return
    chosen = choose_stages(stages or (ELSEWHERE if elsewhere else []))
    if elsewhere and (here := [stage.name for stage in chosen if stage.name not in ELSEWHERE]):
        raise UsageError(
            f"--elsewhere does not go with the stage {here[0]}",
            cause="it needs the machine that the training runs on",
            fix=f"raydebug check --elsewhere {' '.join(ELSEWHERE)} -- COMMAND",
            code="check.elsewhere",
        )
    purpose = "to check" if any(stage.needs_command for stage in chosen) else ""
    target = replace(_subject(ctx, name, profile, purpose), elsewhere=elsewhere)

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
                render.out(render.visible(render.suggested(line)))

    return begin, end


def _subject(ctx: typer.Context, name: str, profile: str | None, purpose: str) -> Target:
    from raydebug.check.target import find_target

    command = command_of(ctx, purpose, or_else="; `raydebug check env` needs none")
    if profile is not None:
        from raydebug.profile.load import load_profile

        load_profile(profile)
    return find_target(command, Path.cwd(), name, profile)


def _write(path: Path, text: str) -> None:
    try:
        write_named(path, text, mode=None)
    except OSError as failure:
        raise UsageError(
            f"cannot write {path}", cause=str(failure), fix="name another file with --junit", code="check.junit"
        ) from failure


def _read_ahead(target: Target, *, as_json: bool) -> None:
    """Read what the command will read into the page cache of its machine, and say what was read."""
    from raydebug.check.config import refused
    from raydebug.check.target import NoAnswer, run_probe

    try:
        with render.waiting("reading what the command will read"):
            facts = run_probe(target, "prefetch", budget_s=PREFETCH_BUDGET_S, **target.as_request())
        for finding in refused(target, facts):
            raise NoAnswer(finding)
    except NoAnswer as failure:
        finding = failure.finding
        raise UsageError(finding.what, cause=finding.why, fix=finding.fix, code=finding.code) from failure
    files, seconds = facts["files"], facts["seconds"]
    if as_json:
        render.out_json({"version": 1, "files": files, "seconds": seconds})
        return
    rows = [
        [render.visible(file["path"], keep=""), _size(file["size_bytes"]), "read" if file["read_bytes"] else "no room"]
        for file in files
    ]
    if not rows:
        render.say("the command names no file that is here")
        return
    render.table(["file", "size", "state"], rows)
    total = sum(file["read_bytes"] for file in files)
    render.out(f"read {_size(total)} in {seconds:.1f} s, {total / max(seconds, 1e-3) / 1e6:.0f} MB/s")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
