"""What `raydebug run` and `try` do with a command: refuse what cannot work, start the job, follow it."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from raydebug import render
from raydebug.errors import Exit, RaydebugError
from raydebug.protocol.secrets import without_secret_arguments

if TYPE_CHECKING:
    from raydebug.check.config import Need
    from raydebug.cluster.locks import Use
    from raydebug.cluster.state import Cluster
    from raydebug.jobs.submit import Job
    from raydebug.profile.rollouts import Rollouts
    from raydebug.stacks.hang_watch import HangWatch


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """A command, and how it is run; the fields are the options of `raydebug run`.

    Args:
        command: the command's words.
        name: of the cluster.
        profile: its name; None for none.
        tiny: what a tiny version replaces: `model`, `data`.
        rollouts: what is done with rollouts; None for nothing.
        debugger: the mode; None for the cluster's or the environment's.
        breaks: where to stop, as `--break` takes them.
        stop_when: conditions on metrics.
        stop_on: `nonfinite`, or None.
        keep_watchdogs: leave the time limits of torch and vLLM as they are.
        hang_after_s: without progress for so long, the job hangs; 0 for never, None for the default.
        on_hang: what is done then.
        snapshots: whether crashes leave snapshots.
        detach: return once the job is submitted.
        gpus: logical GPUs of a cluster that is started for the command.
        folder: where it runs; None for the current one.
    """

    command: list[str]
    name: str
    folder: Path | None = None
    profile: str | None = None
    tiny: list[str] = field(default_factory=list)
    rollouts: Rollouts | None = None
    debugger: str | None = None
    breaks: list[str] = field(default_factory=list)
    stop_when: list[str] = field(default_factory=list)
    stop_on: str | None = None
    keep_watchdogs: bool = False
    hang_after_s: float | None = None
    on_hang: Literal["report", "pause", "stop"] = "report"
    snapshots: bool = True
    detach: bool = False
    gpus: int | None = None


def launch(options: RunOptions) -> int:
    """Run a command as a job, on the running cluster of this name or on one of its own, and return its exit code.

    Raises:
        RaydebugError: the command cannot be run there, or one of the options is not possible there.
    """
    from raydebug.cluster.locks import Use

    with Use(options.name) as use:
        return _launch(options, use)


def _launch(options: RunOptions, use: Use) -> int:
    from raydebug.check.config import find_need
    from raydebug.cluster.kinds import find_running, kind_of
    from raydebug.cluster.runner import LocalRunner
    from raydebug.cluster.state import read_status
    from raydebug.gateway.breakpoint_specs import resolve_breaks
    from raydebug.jobs.stop_options import tripwire_variables
    from raydebug.jobs.submit import Job, find_program
    from raydebug.profile.load import BASE, load_profile
    from raydebug.profile.script import python_path_of
    from raydebug.profile.swap import require_parts
    from raydebug.settings.debugger import choose_mode

    command, name, folder = options.command, options.name, options.folder or Path.cwd()
    mode, origin = choose_mode(options.debugger, os.environ)
    is_training = _is_training(command, folder)
    profile = BASE if options.profile is None and (options.tiny or options.rollouts) else options.profile
    if options.rollouts is not None:
        options.rollouts.require(folder)
    if profile is not None:
        load_profile(profile)
        if is_training is False:
            render.say("note: no training command is found; the profile applies to one that this command starts")
    cluster = find_running(name)
    runner = LocalRunner(sys.executable) if cluster is None else kind_of(cluster).runner()
    in_force = mode if cluster is None or origin != "default" else cluster.debugger
    tripwires, notes = tripwire_variables(
        options.stop_when, options.stop_on, command=command, folder=folder, environ=os.environ, mode=in_force
    )
    find_program(command, folder, runner)
    if options.detach and (cluster is None or cluster.owner):
        raise _detached_alone(name, cluster)
    gpus = fit_gpus(find_need(command, folder, name, profile), cluster, options.gpus, name)
    require_parts(options.tiny, runner, folder)
    for note in notes:
        render.say(render.visible(note))
    job = Job(
        command=command,
        working_dir=runner.folder(folder),
        debugger=None if origin == "default" else mode,
        breaks=resolve_breaks(
            options.breaks,
            runner=runner,
            working_dir=folder,
            search=python_path_of(command, os.environ, folder) if options.breaks else (),
        ),
        profile=profile,
        tiny=options.tiny,
        rollouts="" if options.rollouts is None else options.rollouts.as_variable(),
        variables=({} if in_force == "off" else _debugging_variables(options.keep_watchdogs)) | tripwires,
        snapshots=options.snapshots,
    )
    watch = _watch_for_hangs(options, _why_unwatched(in_force, cluster, detach=options.detach), bool(is_training))
    if cluster is None or (cluster.is_local and read_status(cluster)["phase"] != "up"):
        cluster = _start_cluster(name, gpus, mode)
    try:
        return _run_job(cluster, job, watch, detach=options.detach)
    finally:
        _leave(cluster, use)


def find_command(options: RunOptions, again: str | None) -> RunOptions:
    """Return the options with the command to run: the given one, or that of a recorded run with its fix.

    Args:
        options: the user's; a profile or tiny parts that they name replace those of the recorded run.
        again: the run; None to run the given command.

    Raises:
        RaydebugError: there is no command, or there are two, or the run cannot be run again.
    """
    if again is None and options.command:
        return options
    if again is None or options.command:
        given = " ".join(without_secret_arguments(options.command))
        raise RaydebugError(
            "there is no command to run" if again is None else "--again has the command of the run, and one is given",
            cause="the command comes after `--`" if again is None else f"after `--`: {given[:120]}",
            fix="raydebug run -- COMMAND, or raydebug run --again RUN",
            code="run.no-command" if again is None else "run.two-commands",
            exit_code=Exit.USAGE,
        )
    from raydebug.diagnose.again import plan_again  # google-re2 and the rules: 0.2 s

    plan = plan_again(again, options.name)
    for note in plan.notes:
        render.say(render.visible(note, keep=""))
    return replace(
        options,
        command=plan.command,
        folder=plan.folder,
        profile=options.profile or plan.profile,
        tiny=options.tiny or plan.tiny,
    )


def _is_training(command: list[str], folder: Path) -> bool | None:
    """Return whether a command starts a training that raydebug knows; None where its script cannot be read."""
    from raydebug.profile.script import find_trainings

    try:
        return bool(find_trainings(command, os.environ, folder))
    except RaydebugError:
        return None  # it runs all the same


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
        if cluster.owner:  # `down` would end the job of that run
            why = f"it was started for another `raydebug run` (pid {cluster.owner})"
            fix = "another name (--name NAME) for a cluster of its own"
    elif asked is None and need is not None and need.on_cpu:
        return need.gpus
    else:
        there = environment.choose_gpus(asked, os.environ)
        why = environment.why_so_many(asked, os.environ)
        fix = ""
        if need is not None:
            more = f"--gpus {need.gpus}, or `raydebug up{name_option(name)} --gpus {need.gpus}` first"
            fix = more if need.on_cpu else f"run it where there are as many GPUs, or for logical ones {more}"
    if need is not None and there is not None and need.gpus > there:
        raise RaydebugError(
            f"the command asks for {need.gpus} GPUs, cluster '{name}' has {there}",
            cause=f"trainer.n_gpus_per_node times trainer.nnodes is {need.gpus}; {why}",
            fix=f"{fix}, or a smaller trainer.n_gpus_per_node",
            code="run.gpus",
            exit_code=Exit.USAGE,
        )
    return there or 0


def _watch_for_hangs(options: RunOptions, refusal: str | None, by_steps: bool) -> HangWatch | None:
    """Return the watch for a job that makes no progress; None without one.

    Args:
        options: the user's; --hang-after is 0 for no watch.
        refusal: why this job cannot be watched; None if it can.
        by_steps: the job is a training whose steps are known; only such a job is watched by default.

    Raises:
        RaydebugError: --hang-after was given, and the job cannot be watched.
    """
    from raydebug.stacks.hang_watch import DEFAULT_S, HangWatch

    after_s = options.hang_after_s
    if after_s == 0 or (after_s is None and (refusal is not None or not by_steps)):
        return None
    if refusal is not None:
        raise RaydebugError(
            "--hang-after is not possible here", cause=refusal, fix="leave --hang-after out, or change that",
            code="run.hang-after", exit_code=Exit.USAGE,
        )  # fmt: skip
    return HangWatch(DEFAULT_S if after_s is None else after_s, options.on_hang, by_steps=by_steps)


def _why_unwatched(mode: str, cluster: Cluster | None, *, detach: bool) -> str | None:
    if detach:
        return "with --detach nobody follows the job"
    if mode not in ("breakpoint", "post-mortem"):
        return f"processes answer `raydebug stacks` in the modes breakpoint and post-mortem; the debugger is '{mode}'"
    if cluster is not None and not cluster.has_gateway:
        return "the cluster has no gateway, so its processes cannot be asked for their stacks"
    return None


def _detached_alone(name: str, cluster: Cluster | None) -> RaydebugError:
    from raydebug.cluster.state import name_option

    there = (
        f"no cluster '{name}' runs, and the one that `run` brings up ends with it"
        if cluster is None
        else f"a `run` (pid {cluster.owner}) has started cluster '{name}', which ends with the last `run` that uses it"
    )
    return RaydebugError(
        "--detach needs a cluster that stays",
        cause=there,
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


def _start_cluster(name: str, gpus: int, mode: str) -> Cluster:
    """Start a local cluster that ends with the last `run` that uses it, or wait for the one that starts."""
    from raydebug.cli.status import warn_without_token
    from raydebug.cluster import local
    from raydebug.cluster.up import UpOptions

    with render.waiting(f"no cluster '{name}' runs: starting one on this machine"):
        cluster, _ = local.bring_up(UpOptions(name=name, gpus=gpus, debugger=mode, owner=os.getpid()))
    warn_without_token(cluster)
    return cluster


def _leave(cluster: Cluster, use: Use) -> None:
    """End a cluster that a `run` has started if no other one uses it, and `up` has not taken it over."""
    from raydebug.cluster import local, state

    if not cluster.owner:
        return
    if not use.is_last():
        render.say(f"cluster '{cluster.name}' ends with the last `run` that uses it")
        return
    with contextlib.suppress(RaydebugError):  # its record is damaged: the supervisor ends it
        found = state.read_record(cluster.name)
        if found is not None and found.id == cluster.id and found.owner:
            render.say(f"ending cluster '{cluster.name}'")
            local.take_down(cluster)


def _run_job(cluster: Cluster, job: Job, watch: HangWatch | None, *, detach: bool) -> int:
    from raydebug.jobs.submit import submit

    submission_id = submit(cluster, job)
    command = " ".join(without_secret_arguments(job.command))
    render.say(render.visible(f"job {submission_id}: {command[:200]}", keep=""))
    if detach:
        render.out(submission_id)
        return Exit.OK
    from raydebug.cli.diagnose import explain
    from raydebug.jobs.follow import follow_job  # asyncio costs every other verb 30 ms

    return follow_job(cluster, submission_id, explain, None if watch is None else watch.watch)
