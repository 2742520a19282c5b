"""`raydebug run` and `try`: a training command as a job, with its log, its pauses and its exit code."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raydebug import render
from raydebug.cli.options import (
    GPUS_HELP,
    Debugger,
    NameToRunOn,
    TinyData,
    TinyModel,
    TrainerName,
    command_of,
    finite,
    tiny_kinds,
)
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.protocol.secrets import is_secret, without_secret_arguments

if TYPE_CHECKING:
    from raydebug.check.stages import Outcome
    from raydebug.check.target import Target
    from raydebug.cli.run_plan import RunOptions
    from raydebug.profile.rollouts import Rollouts

TRY_PROFILE = "debug"
_Gpus = Annotated[int | None, typer.Option(help=GPUS_HELP, min=0, metavar="N")]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Run nothing: show the command that would run, and why each setting changes.")
]
_Command = Annotated[list[str] | None, typer.Argument(help="The command, after `--`.", metavar="-- COMMAND...")]
_Profile = Annotated[
    str | None, typer.Option(help="Apply a profile to a training command, such as debug.", metavar="PROFILE")
]
_Breaks = Annotated[
    list[str] | None,
    typer.Option(
        "--break",
        help="Stop at file.py:LINE, file.py:function or package.module:function, in any worker. Conditions follow"
        " after commas: if=EXPR, rank=0, step>=3, every=100, once, max=5, timeout=60s; log=TEXT only writes.",
        metavar="WHERE",
    ),
]
_StopWhen = Annotated[
    list[str] | None,
    typer.Option(
        "--stop-when",
        help="Stop the trainer at the end of a step when this holds, such as 'actor/grad_norm > 100',"
        " 'nan(actor/pg_loss)', 'critic/rewards/mean == 0 for 5 steps', 'memory > 0.95'; repeatable.",
        metavar="CONDITION",
    ),
]
_StopOn = Annotated[
    str | None,
    typer.Option(
        "--stop-on",
        help="nonfinite: stop a rank at the first module whose output or gradient is NaN or infinite (slower).",
        metavar="WHAT",
    ),
]
_KeepWatchdogs = Annotated[
    bool, typer.Option("--keep-watchdogs", help="Do not raise the limits of torch and vLLM that end a long pause.")
]
_HangAfter = Annotated[
    float | None,
    typer.Option(
        "--hang-after",
        help="After so long without a step that ended, whatever moves, write the stacks of all processes and a"
        " verdict. 0: never. Default, for a training of a known trainer only: 600 or 5 median steps, the longer one.",
        min=0,
        callback=finite,
        metavar="SECONDS",
    ),
]
_OnHang = Annotated[
    Literal["report", "pause", "stop"],
    typer.Option(
        "--on-hang",
        help="Then also pause the process that the verdict names, or stop the job (exit code 124).",
        metavar="report|pause|stop",
    ),
]
_NoSpans = Annotated[
    bool, typer.Option("--no-spans", help="Record no phases, samples, requests and tasks for `raydebug trace`.")
]
_GpuHistory = Annotated[
    bool,
    typer.Option(
        "--gpu-history",
        help="Record who allocates GPU memory, for the snapshot of an out of memory. --profile debug does.",
    ),
]
_Record = Annotated[
    Path | None,
    typer.Option("--record", help="Keep the rollouts of the first two steps in a new folder.", metavar="DIR"),
]
_Replay = Annotated[
    Path | None,
    typer.Option("--replay", help="Train on the rollouts of a record; no rollout engine starts.", metavar="DIR"),
]
_Only = Annotated[
    Literal["rollout", "train"] | None,
    typer.Option(
        "--only",
        help="rollout: generate, score and make no update. train: with --replay, make updates alone.",
        metavar="rollout|train",
    ),
]
_Upload = Annotated[
    bool | None,
    typer.Option(
        "--upload/--no-upload",
        help="Where the nodes are other machines: copy this folder there, or use their own of this name. Default:"
        " copy it, unless they share it.",
        show_default=False,
    ),
]
_Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        help="A variable for the job: NAME=VALUE, or NAME for this shell's value. Those that a shell script reads go"
        " along by themselves.",
        metavar="NAME[=VALUE]",
    ),
]
_Detach = Annotated[bool, typer.Option("--detach", help="Leave the job running and return at once.")]
_Again = Annotated[
    str | None,
    typer.Option(
        "--again",
        help="Run the command of a recorded run again, with the fix of its diagnosis if that can be applied.",
        metavar="RUN",
    ),
]
_Verl = Annotated[
    str | None, typer.Option(metavar="VERSION", help="With --dry-run: take verl for this version, such as 0.7.1.")
]
_AsJson = Annotated[bool, typer.Option("--json", help="With --dry-run: print one JSON document on stdout.")]


def run(
    command: _Command = None,
    profile: _Profile = None,
    model: TinyModel = None,
    data: TinyData = None,
    debugger: Debugger = None,
    breaks: _Breaks = None,
    stop_when: _StopWhen = None,
    stop_on: _StopOn = None,
    keep_watchdogs: _KeepWatchdogs = False,
    hang_after: _HangAfter = None,
    on_hang: _OnHang = "report",
    no_spans: _NoSpans = False,
    gpu_history: _GpuHistory = False,
    record: _Record = None,
    replay: _Replay = None,
    only: _Only = None,
    env: _Env = None,
    upload: _Upload = None,
    detach: _Detach = False,
    gpus: _Gpus = None,
    again: _Again = None,
    dry_run: _DryRun = False,
    verl: _Verl = None,
    as_json: _AsJson = False,
    trainer: TrainerName = None,
    name: NameToRunOn = "default",
) -> None:
    """Run a command as a job on the cluster; without a cluster, bring a local one up and take it down after.

    \b
    Examples:
      raydebug run --break 'my.reward:compute_score,rank=0,once' -- python train.py
      raydebug run --again last
    """
    from raydebug.cli.launch import launch
    from raydebug.cli.run_plan import RunOptions

    options = RunOptions(
        command=_with_variables(command or [], env or []),
        name=name,
        profile=profile,
        tiny=tiny_kinds(model, data),
        rollouts=_rollouts(record, replay, only),
        debugger=debugger,
        breaks=breaks or [],
        stop_when=stop_when or [],
        stop_on=stop_on,
        keep_watchdogs=keep_watchdogs,
        hang_after_s=hang_after,
        on_hang=on_hang,
        spans=not no_spans,
        gpu_history=gpu_history,
        detach=detach,
        gpus=gpus,
        upload=upload,
    )
    if dry_run or verl is not None or as_json:
        raise typer.Exit(_show_command(options, again, verl, dry_run=dry_run, as_json=as_json))
    raise typer.Exit(launch(options, again))


def _with_variables(command: list[str], words: list[str]) -> list[str]:
    """Return a command with the variables that `--env` names.

    Raises:
        UsageError: one is not set here, its name is none, or it is a secret, which Ray would show.
    """
    from raydebug.jobs.submit import with_variables

    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        cause = "this shell has no such variable" if not equals and name not in os.environ else ""
        if not name.isidentifier():
            cause = "a name has letters, digits and _"
        elif is_secret(name):
            cause = "Ray shows a job's variables to all who read its list of jobs; keys belong to the cluster"
        if cause:
            fix = "export it and start the cluster from this shell" if is_secret(name) else "--env NAME=VALUE"
            raise UsageError(f"--env {name} is not possible", cause=cause, fix=fix, code="run.env")
        given[name] = value if equals else os.environ[name]
    return with_variables(command, given)


def _show_command(options: RunOptions, again: str | None, version: str | None, *, dry_run: bool, as_json: bool) -> int:
    from raydebug.cli.dry_run import show_command
    from raydebug.cli.launch import find_command

    if not dry_run:
        raise UsageError(
            "--verl and --json are for --dry-run",
            cause="a run takes the verl that is there, and prints what its job prints",
            fix="leave them out, or add --dry-run",
            code="run.no-dry-run",
        )
    return show_command(find_command(options, again), version=version, as_json=as_json)


def _rollouts(record: Path | None, replay: Path | None, only: str | None) -> Rollouts | None:
    """Return what a run does with rollouts; None for nothing."""
    from raydebug.profile.rollouts import Rollouts

    if [record is not None, replay is not None, only == "rollout"].count(True) > 1:
        what, fix = "--record, --replay and --only rollout exclude each other", "leave all but one of them out"
    elif only == "train" and replay is None:
        what, fix = "--only train needs rollouts", "--replay DIR, of a folder that --record DIR has made"
    elif record is not None or replay is not None:
        return Rollouts("record", record) if record is not None else Rollouts("replay", replay)
    else:
        return Rollouts("only-rollout") if only == "rollout" else None
    raise UsageError(what, cause="a run makes rollouts or takes them", fix=fix)


def try_(
    ctx: typer.Context,
    model: TinyModel = None,
    data: TinyData = None,
    debugger: Debugger = None,
    gpus: _Gpus = None,
    dry_run: _DryRun = False,
    trainer: TrainerName = None,
    name: NameToRunOn = "default",
) -> None:
    """Try a training command: check it, run it small, say the next step. At a terminal, a crash stops at its frame.

    Example: raydebug try -- bash train.sh
    """
    from raydebug.check.output import Tried, next_steps
    from raydebug.cli.launch import launch
    from raydebug.cli.run_plan import RunOptions

    command = command_of(ctx, "to try")
    tiny = tiny_kinds(model, data)
    if debugger is None and sys.stdin.isatty():
        debugger = "post-mortem"
    options = RunOptions(command=command, name=name, profile=TRY_PROFILE, tiny=tiny, debugger=debugger, gpus=gpus)
    if dry_run:
        from raydebug.cli.dry_run import show_command

        raise typer.Exit(show_command(options))
    target = _find_subject(command, name)
    outcomes = _check(target, tiny)
    seconds = 0.0
    code = None
    if all(outcome.status != "failed" for outcome in outcomes):
        started = time.monotonic()
        code = launch(options)
        seconds = time.monotonic() - started
    tried = Tried(
        command=shlex.join(without_secret_arguments(command)),
        outcomes=outcomes,
        code=code,
        seconds=seconds,
        debugger=debugger,
        cluster=target.cluster is not None,
        warnings=0 if code is None else _warnings_of_last_run(),
    )
    for line in next_steps(tried):
        render.say(line)
    raise typer.Exit(Exit.FAILED if code is None else code)


def _warnings_of_last_run() -> int:
    from raydebug.runs.folder import load_run

    try:
        return sum(finding.get("severity") == "warning" for finding in load_run().findings)
    except RaydebugError:  # a full disk
        return 0


def _find_subject(command: list[str], name: str) -> Target:
    """Return the target of the check: the command, or only the environment if the training is unknown."""
    from raydebug.check.target import find_target

    try:
        return find_target(command, Path.cwd(), name, TRY_PROFILE)
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
            render.say(line)

    started = time.time()
    outcomes = run_stages(target, choose_stages(words), cache=Cache(), on_outcome=show)
    record(target, outcomes, started)
    return outcomes
