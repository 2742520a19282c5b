"""`raydebug run` and `try`: a training command as a job, with its log, its pauses and its exit code."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raydebug import render
from raydebug.cli.options import GPUS_HELP, Debugger, Name, TinyData, TinyModel, needed_command_of, tiny_kinds
from raydebug.errors import Exit, RaydebugError

if TYPE_CHECKING:
    from raydebug.check.config import Need
    from raydebug.check.stages import Outcome
    from raydebug.check.target import Target
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.state import Cluster
    from raydebug.jobs.submit import Job
    from raydebug.stacks.hang_watch import Action, HangWatch

TRY_PROFILE = "debug"
_Gpus = Annotated[int | None, typer.Option(help=GPUS_HELP, min=0, metavar="N")]


def run(
    command: Annotated[list[str], typer.Argument(help="The command, after `--`.", metavar="-- COMMAND...")],
    profile: Annotated[
        str | None,
        typer.Option(help="Apply a profile to a training command, such as debug: `profile list`.", metavar="PROFILE"),
    ] = None,
    model: TinyModel = None,
    data: TinyData = None,
    debugger: Debugger = None,
    breaks: Annotated[
        list[str] | None,
        typer.Option(
            "--break",
            help="Stop at file.py:LINE, file.py:function or package.module:function, in any worker. Conditions follow"
            " after commas: if=EXPR, rank=0, step>=3, every=100, once, max=5, timeout=60s; log=TEXT only writes.",
            metavar="WHERE",
        ),
    ] = None,
    stop_when: Annotated[
        list[str] | None,
        typer.Option(
            "--stop-when",
            help="Stop the trainer at the end of a step when this holds, such as 'actor/grad_norm > 100',"
            " 'nan(actor/pg_loss)', 'critic/rewards/mean == 0 for 5 steps', 'memory > 0.95'; repeatable.",
            metavar="CONDITION",
        ),
    ] = None,
    stop_on: Annotated[
        str | None,
        typer.Option(
            "--stop-on",
            help="nonfinite: stop a rank at the first module whose output or gradient is NaN or infinite (slower).",
            metavar="WHAT",
        ),
    ] = None,
    keep_watchdogs: Annotated[
        bool,
        typer.Option("--keep-watchdogs", help="Leave the time limits alone by which torch and vLLM end long pauses."),
    ] = False,
    hang_after: Annotated[
        float | None,
        typer.Option(
            "--hang-after",
            help="After so long without a step and without a moving stack, write the stacks of all processes and a"
            " verdict. 0: never. Default: 600 for a training of a known trainer, else never.",
            min=0,
            metavar="SECONDS",
        ),
    ] = None,
    on_hang: Annotated[
        Literal["report", "pause", "stop"],
        typer.Option(
            "--on-hang",
            help="Then also pause the process that the verdict names, or stop the job (exit code 124).",
            metavar="report|pause|stop",
        ),
    ] = "report",
    no_snapshots: Annotated[
        bool, typer.Option("--no-snapshots", help="Leave no snapshots of crashes in the run's folder.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Leave the job running and return at once.")] = False,
    gpus: _Gpus = None,
    name: Name = "default",
) -> None:
    """Run a command as a job on the cluster; without a cluster, bring a local one up and take it down after.

    Example: raydebug run --break 'my.reward:compute_score,rank=0,once' -- python train.py
    """
    raise typer.Exit(
        launch(
            command,
            name,
            profile=profile,
            tiny=tiny_kinds(model, data),
            debugger=debugger,
            breaks=breaks,
            stop_when=stop_when,
            stop_on=stop_on,
            keep_watchdogs=keep_watchdogs,
            hang_after=hang_after,
            on_hang=on_hang,
            no_snapshots=no_snapshots,
            detach=detach,
            gpus=gpus,
        )
    )


def launch(
    command: list[str],
    name: str,
    *,
    profile: str | None = None,
    tiny: list[str] | None = None,
    debugger: str | None = None,
    breaks: list[str] | None = None,
    stop_when: list[str] | None = None,
    stop_on: str | None = None,
    keep_watchdogs: bool = False,
    hang_after: float | None = None,
    on_hang: Action = "report",
    no_snapshots: bool = False,
    detach: bool = False,
    gpus: int | None = None,
) -> int:
    """Run a command as a job, on the running cluster of this name or on one of its own, and return its exit code.

    Raises:
        RaydebugError: the command cannot be run there, or one of the wishes cannot be met.
    """
    from raydebug.check.config import find_need
    from raydebug.cluster.kinds import find_running, kind_of
    from raydebug.cluster.runner import LocalRunner
    from raydebug.gateway.breakpoint_specs import resolve_breaks
    from raydebug.jobs.stop_options import tripwire_variables
    from raydebug.jobs.submit import Job, find_program
    from raydebug.profile.load import BASE, load_profile
    from raydebug.profile.swap import require_parts
    from raydebug.settings.debugger import choose_mode

    mode, origin = choose_mode(debugger, os.environ)
    profile = BASE if profile is None and tiny else profile
    folder = Path.cwd()
    if profile is not None:
        load_profile(profile)
        _look_for_training(command, folder)
    cluster = find_running(name)
    runner = LocalRunner(sys.executable) if cluster is None else kind_of(cluster).runner()
    in_force = mode if cluster is None or origin != "default" else cluster.debugger
    tripwires, notes = tripwire_variables(
        stop_when or [], stop_on, command=command, folder=folder, environ=os.environ, mode=in_force
    )
    find_program(command, folder, runner)
    if cluster is None and detach:
        raise _detached_alone(name)
    gpus = fit_gpus(find_need(command, folder, name, profile), cluster, gpus, name)
    require_parts(tiny or [], runner, folder)
    for note in notes:
        render.say(render.visible(note))
    job = Job(
        command=command,
        working_dir=runner.folder(folder),
        debugger=None if origin == "default" else mode,
        breaks=resolve_breaks(breaks or [], runner=runner, working_dir=folder),
        profile=profile,
        tiny=tiny or [],
        variables=({} if in_force == "off" else _debugging_variables(keep_watchdogs)) | tripwires,
        snapshots=not no_snapshots,
    )
    refusal = _why_unwatched(in_force, cluster, detach=detach)
    watch = _watch_for_hangs(command, folder, hang_after, on_hang, refusal)
    if cluster is not None:
        return _run_job(cluster, job, watch, detach=detach)
    return _run_alone(job, name, gpus, mode, watch)


def fit_gpus(need: Need | None, cluster: Cluster | None, asked: int | None, name: str) -> int:
    """Return how many logical GPUs the cluster has, or is to have where this starts it.

    Args:
        need: of the command; None where it is not known.
        cluster: the one that runs.
        asked: the user's --gpus, for a cluster that this starts.
        name: the cluster's name.

    Raises:
        RaydebugError: the command asks for more.
    """
    from raydebug.cluster import environment
    from raydebug.cluster.kinds import kind_of
    from raydebug.cluster.state import name_option

    if cluster is not None:
        there = kind_of(cluster).gpus()
        why = "its nodes have no more"
        fix = f"`raydebug down{name_option(name)}`, then `raydebug up{name_option(name)} --gpus N`"
    elif asked is None and need is not None and need.on_cpu:
        return need.gpus
    else:
        there = environment.choose_gpus(asked, os.environ)
        why = environment.why_so_many(asked, os.environ)
        fix = f"--gpus {need.gpus}" if need is not None and need.on_cpu else "run it where there are as many GPUs"
    if need is not None and there is not None and need.gpus > there:
        raise RaydebugError(
            f"the command asks for {need.gpus} GPUs, cluster '{name}' has {there}",
            cause=f"trainer.n_gpus_per_node times trainer.nnodes is {need.gpus}; {why}",
            fix=f"{fix}, or a smaller trainer.n_gpus_per_node",
            code="run.gpus",
            exit_code=Exit.USAGE,
        )
    return there or 0


def _look_for_training(command: list[str], folder: Path) -> None:
    """Say so where a profile is wished and no training is in sight; one may still start below the command."""
    from raydebug.profile.script import find_trainings

    try:
        found = find_trainings(command, os.environ, folder)
    except RaydebugError:
        return  # a script that cannot be read runs all the same
    if not found:
        render.say("note: no training command is in sight; the profile is laid over one that starts below this command")


def _watch_for_hangs(
    command: list[str], folder: Path, after_s: float | None, action: Action, refusal: str | None
) -> HangWatch | None:
    """Return the watch for a job that makes no progress; None where none is wished, or none is possible.

    Args:
        command: the job's.
        folder: where it runs.
        after_s: the user's limit.
        action: what is done with a job that hangs.
        refusal: why this job cannot be watched.

    Raises:
        RaydebugError: the user wishes one, and none is possible.
    """
    if after_s == 0 or (after_s is None and refusal is not None):
        return None
    if refusal is not None:
        raise RaydebugError(
            "--hang-after is not possible here", cause=refusal, fix="leave --hang-after out, or change that",
            code="run.hang-after", exit_code=Exit.USAGE,
        )  # fmt: skip
    from raydebug.profile.script import find_trainings
    from raydebug.stacks.hang_watch import DEFAULT_S, HangWatch

    by_steps = False
    with contextlib.suppress(RaydebugError):  # a script that cannot be read runs all the same
        by_steps = bool(find_trainings(command, os.environ, folder))
    if after_s is None and not by_steps:
        return None
    return HangWatch(DEFAULT_S if after_s is None else after_s, action, by_steps=by_steps)


def _why_unwatched(mode: str, cluster: Cluster | None, *, detach: bool) -> str | None:
    if detach:
        return "with --detach nobody follows the job"
    if mode not in ("breakpoint", "post-mortem"):
        return f"processes answer `raydebug stacks` in the modes breakpoint and post-mortem; the debugger is '{mode}'"
    if cluster is not None and not cluster.has_gateway:
        return "the cluster has no gateway, so its processes cannot be asked for their stacks"
    return None


def _detached_alone(name: str) -> RaydebugError:
    from raydebug.cluster.state import name_option

    return RaydebugError(
        "--detach needs a cluster that stays",
        cause=f"no cluster '{name}' runs, and the one that `run` brings up ends with it",
        fix=f"raydebug up{name_option(name)}, then the same command again",
        code="run.detach-alone",
        exit_code=Exit.USAGE,
    )


def _debugging_variables(keep_watchdogs: bool) -> dict[str, str]:
    """Return the variables of a job that may hang or be paused for long, and list the time limits among them."""
    from raydebug.protocol import variables
    from raydebug.settings.debugger import WIDE_S, recorder_variables, widened

    limits = {} if keep_watchdogs else widened(os.environ)
    if limits:
        render.say(f"watchdogs widened to {WIDE_S // 3600} h (--keep-watchdogs: not): {', '.join(limits)}")
    users = {name: os.environ[name] for name in (variables.WATCHDOG,) if name in os.environ}
    return limits | recorder_variables(os.environ) | users


def _run_alone(job: Job, name: str, gpus: int, mode: str, watch: HangWatch | None) -> int:
    """Run a job on a local cluster that is there for it alone."""
    from raydebug.cli.status import warn_without_token
    from raydebug.cluster import local
    from raydebug.cluster.up import UpOptions

    with render.waiting(f"no cluster '{name}' runs: starting one on this machine"):
        cluster, _ = local.bring_up(UpOptions(name=name, gpus=gpus, debugger=mode, owner=os.getpid()))
    warn_without_token(cluster)
    try:
        return _run_job(cluster, job, watch, detach=False)
    finally:
        render.say(f"ending cluster '{name}'")
        local.take_down(cluster)


def _run_job(cluster: Cluster, job: Job, watch: HangWatch | None, *, detach: bool) -> int:
    from raydebug.jobs.submit import submit

    submission_id = submit(cluster, job)
    render.say(f"job {submission_id}: {' '.join(job.command)[:200]}")
    if detach:
        render.out(submission_id)
        return Exit.OK
    from raydebug.jobs.follow import follow_job  # asyncio costs every other verb 30 ms

    return follow_job(cluster, submission_id, None if watch is None else watch.watch, _explain)


def _explain(dashboard: Dashboard, submission_id: str) -> list[str]:
    try:
        from raydebug.diagnose.job import explain_failure  # google-re2 and the rules: 0.2 s, after a failure only

        return explain_failure(dashboard, submission_id)
    except ImportError as error:  # the environment is older than raydebug's lock; the job's own error is shown above
        return [f"no diagnosis: {error}; install the environment's lock again"]


def try_(
    ctx: typer.Context,
    model: TinyModel = None,
    data: TinyData = None,
    debugger: Debugger = None,
    gpus: _Gpus = None,
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
        code = launch(command, name, profile=TRY_PROFILE, tiny=tiny, debugger=debugger, gpus=gpus)
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
            render.say(render.visible(line))

    started = time.time()
    outcomes = run_stages(target, choose_stages(words), cache=Cache(), on_outcome=show)
    record(target, outcomes, started)
    return outcomes
