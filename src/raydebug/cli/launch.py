"""`raydebug run` and `try` carry out a plan: look at what is there, start the job, follow it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from raydebug import render
from raydebug.check.config import find_need
from raydebug.cli.run_plan import Facts, RunOptions, RunPlan, plan_run
from raydebug.cli.status import warn_without_token
from raydebug.client.breakpoint_specs import resolve_breaks
from raydebug.cluster import environment, local, state
from raydebug.cluster.interpreter import find_interpreter
from raydebug.cluster.kinds import find_running, kind_of
from raydebug.cluster.known_folders import note_shared
from raydebug.cluster.locks import Use
from raydebug.cluster.runner import LocalRunner
from raydebug.cluster.state import Cluster
from raydebug.cluster.up import UpOptions
from raydebug.commands.trainings import read_command
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.jobs import submit
from raydebug.profile.load import load_profile
from raydebug.profile.swap import require_parts
from raydebug.protocol.secrets import without_secret_arguments
from raydebug.runs.folder import RunFolder


def launch(options: RunOptions, again: str | None = None) -> int:
    """Run a command as a job, on the running cluster of this name or on one of its own, and return its exit code.

    With `again` the command is that of a recorded run (`find_command`).

    Raises:
        RaydebugError: the command cannot be run there, or one of the options is not possible there.
    """
    options = find_command(options, again)
    with Use(options.name) as use:
        facts = find_facts(options)
        plan = plan_run(options, facts, os.environ)
        for note in plan.notes:
            render.say(note)
        cluster = facts.cluster
        if cluster is None or (cluster.is_local and state.read_status(cluster)["phase"] != "up"):
            with render.waiting(f"no cluster '{options.name}' runs: starting one on this machine"):
                wanted = UpOptions(name=options.name, gpus=plan.gpus, debugger=plan.mode, owner=os.getpid())
                cluster, _ = local.bring_up(wanted)  # it ends with the last `run` that uses it
            warn_without_token(cluster)
        try:
            return _run_job(cluster, plan, detach=options.detach)
        finally:
            _leave(cluster, use)


def find_facts(options: RunOptions) -> Facts:
    """Ask for all that the plan needs: what the command is, what its cluster has, and what that finds.

    Raises:
        RaydebugError: the profile, the folder of the rollouts, the program, a tiny part or a breakpoint is not there.
    """
    folder, profile = options.folder or Path.cwd(), options.profile_in_force
    reading = read_command(options.command, os.environ, folder)
    if options.rollouts is not None:
        options.rollouts.require(folder)
    if profile is not None:
        load_profile(profile)
    cluster = find_running(options.name)
    kind = None if cluster is None else kind_of(cluster)
    runner = LocalRunner(find_interpreter()) if kind is None else kind.runner()
    if options.upload is not None:
        _note_shared(cluster, folder, options)
    submit.find_program(options.command, folder, runner)
    require_parts(options.tiny, runner, folder)
    working_dir = runner.folder(folder)  # copies it where nodes are other machines; breakpoints are looked up in that
    return Facts(
        reading,
        working_dir,
        cluster,
        gpus=environment.choose_gpus(options.gpus, os.environ) if kind is None else kind.gpus(),
        why_so_many=environment.why_so_many(options.gpus, os.environ) if kind is None else "",
        need=find_need(reading, folder, cluster, profile),
        breaks=resolve_breaks(options.breaks, runner=runner, working_dir=folder, search=reading.python_path),
        environ=local.environ_of(cluster) if cluster is not None and cluster.is_local else {},
    )


def _note_shared(cluster: Cluster | None, folder: Path, options: RunOptions) -> None:
    """Note for the cluster whether its nodes share the folder, as the user has said."""
    if cluster is None or not cluster.is_of_nodes:
        raise UsageError(
            "--upload and --no-upload are for a cluster whose nodes are other machines",
            cause=f"the jobs of cluster '{options.name}' run in this folder itself",
            fix="leave it out",
            code="run.no-nodes",
        )
    note_shared(cluster, folder, shared=not options.upload)


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
        raise UsageError(
            "there is no command to run" if again is None else "--again has the command of the run, and one is given",
            cause="the command comes after `--`" if again is None else f"after `--`: {given[:120]}",
            fix="raydebug run -- COMMAND, or raydebug run --again RUN",
            code="run.no-command" if again is None else "run.two-commands",
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


def _leave(cluster: Cluster, use: Use) -> None:
    """End a cluster that a `run` has started if no other one uses it, and `up` has not taken it over."""
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


def _run_job(cluster: Cluster, plan: RunPlan, *, detach: bool) -> int:
    submission_id = submit.submit(cluster, plan.job)
    command = " ".join(without_secret_arguments(plan.job.command))
    render.say(render.visible(f"job {submission_id}: {command[:200]}", keep=""))
    if detach:
        with contextlib.suppress(OSError):  # by its folder, `job` knows that the job was submitted from here
            RunFolder(submission_id)
        render.out(submission_id)
        render.say(f"next: {render.command('raydebug', 'job', 'logs', '--follow', submission_id)}")
        return Exit.OK
    from raydebug.cli.diagnose import explain
    from raydebug.jobs.follow import follow_job  # while the job starts

    return follow_job(cluster, submission_id, explain, None if plan.watch is None else plan.watch.watch)
