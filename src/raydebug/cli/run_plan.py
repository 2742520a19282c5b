"""What `raydebug run` will do, decided from its options and from facts. Nothing here looks or acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from raydebug.check.config import Need
from raydebug.cluster.state import Cluster
from raydebug.commands.trainings import Reading
from raydebug.errors import RaydebugError, UsageError
from raydebug.jobs.stop_options import WITH_PAUSES, tripwire_variables
from raydebug.jobs.submit import Job, of_shell, with_variables
from raydebug.profile.load import BASE
from raydebug.profile.rollouts import Rollouts
from raydebug.protocol import variables
from raydebug.protocol.records import BreakpointSpec
from raydebug.settings.debugger import choose_mode, recorder_variables, widened
from raydebug.stacks.hang_watch import HangWatch


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """A command, and how it is run; the fields are the options of `raydebug run`.

    Args:
        command: the command's words.
        name: of the cluster.
        folder: where it runs; None for the current one.
        tiny: what a tiny version replaces: `model`, `data`.
        debugger: the mode; None for the cluster's or the environment's.
        breaks: where to stop, as `--break` takes them.
        hang_after_s: without progress for so long, the job hangs; 0 for never, None for the default.
        gpus: logical GPUs of a cluster that is started for the command.
        upload: whether the folder is copied to the nodes of a cluster that was joined; None: as needed.
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
    spans: bool = True
    gpu_history: bool = False
    detach: bool = False
    gpus: int | None = None
    upload: bool | None = None

    @property
    def profile_in_force(self) -> str | None:
        """The name of the profile that is applied: what is tiny or recorded needs one, if it changes nothing else."""
        return BASE if self.profile is None and (self.tiny or self.rollouts) else self.profile


@dataclass(frozen=True)
class Facts:
    """What was found before a command is run; nothing is asked again.

    Args:
        reading: the command with its trainings.
        working_dir: where it runs, as the cluster calls that folder.
        cluster: the running one of this name.
        gpus: logical GPUs of that cluster, or of this machine without one; None where they are not known.
        why_so_many: the reason for their number, without a cluster.
        need: what the command asks for; None where it is not known.
        breaks: where it stops.
        environ: of the cluster's processes, as far as it is known.
    """

    reading: Reading
    working_dir: str
    cluster: Cluster | None = None
    gpus: int | None = None
    why_so_many: str = ""
    need: Need | None = None
    breaks: list[BreakpointSpec] = field(default_factory=list)
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunPlan:
    """What `run` will do.

    Args:
        mode: the debugger's, of a cluster that is started for the command.
        gpus: logical GPUs of the cluster.
        job: what is submitted.
        watch: for a job that hangs.
        notes: lines for the user before it starts.
    """

    mode: str
    gpus: int
    job: Job
    watch: HangWatch | None
    notes: list[str]


def plan_run(options: RunOptions, facts: Facts, environ: Mapping[str, str]) -> RunPlan:
    """Return the plan for a command.

    Raises:
        RaydebugError: one of the options is not possible with these facts.
    """
    mode, origin = choose_mode(options.debugger, environ)
    in_force = mode if facts.cluster is None or origin != "default" else facts.cluster.debugger
    tripwires, notes = tripwire_variables(options.stop_when, options.stop_on, facts.reading, in_force)
    if options.profile_in_force is not None and not facts.reading.trainings and not facts.reading.unreadable:
        notes.insert(0, "note: no training command is found; the profile applies to one that this command starts")
    if options.detach and (facts.cluster is None or facts.cluster.owner):
        raise _detached_alone(options.name, facts.cluster)
    watch = _watch_for_hangs(options, facts, in_force)
    debugging: dict[str, str] = {}
    if in_force != "off":
        debugging = ({} if options.keep_watchdogs else widened(environ)) | recorder_variables(environ)
    if options.gpu_history or options.profile_in_force == "debug":
        tripwires[variables.GPU_HISTORY] = "1"
    given = {} if facts.cluster is None else of_shell(facts.reading.asked, environ, facts.environ)
    if given:
        notes.append(f"note: the job gets variables of this shell that its script reads: {', '.join(given)}")
    job = Job(
        command=with_variables(options.command, given),
        working_dir=facts.working_dir,
        debugger=None if origin == "default" else mode,
        profile=options.profile_in_force,
        tiny=options.tiny,
        rollouts="" if options.rollouts is None else options.rollouts.as_variable(),
        variables=debugging | tripwires,
        breaks=facts.breaks,
        spans=options.spans,
    )
    return RunPlan(mode, _fit_gpus(options, facts), job, watch, notes)


def _fit_gpus(options: RunOptions, facts: Facts) -> int:
    """Return how many logical GPUs the cluster has, or is to have where it is started for the command."""
    need, cluster, gpus = facts.need, facts.cluster, facts.gpus
    if need is None:
        return gpus or 0
    if cluster is None and options.gpus is None and need.on_cpu:
        return need.gpus
    if gpus is None or need.gpus <= gpus:
        return gpus or 0
    if cluster is None:
        why = facts.why_so_many
        more = f"--gpus {need.gpus}, or `raydebug up --gpus {need.gpus}` first"
        fix = more if need.on_cpu else f"run it where there are as many GPUs, or for logical ones {more}"
    elif cluster.owner:  # `down` would end the job of that run
        why = f"it was started for another `raydebug run` (pid {cluster.owner})"
        fix = "another name (--name NAME) for a cluster of its own"
    else:
        why, fix = "its nodes have no more", f"`raydebug down`, then `raydebug up --gpus {need.gpus}`"
    per_node, nodes = need.keys
    raise UsageError(
        f"the command asks for {need.gpus} GPUs, cluster '{options.name}' has {gpus}",
        cause=f"{per_node} times {nodes} is {need.gpus}; {why}",
        fix=f"{fix}, or a smaller {per_node}",
        code="run.gpus",
    )


def _watch_for_hangs(options: RunOptions, facts: Facts, mode: str) -> HangWatch | None:
    """Return the watch for a job that makes no progress; by default only a training, whose steps are known, has one."""
    after_s, by_steps = options.hang_after_s, bool(facts.reading.trainings)
    refusal = _why_unwatched(mode, facts.cluster, detach=options.detach)
    if after_s == 0 or (after_s is None and (refusal is not None or not by_steps)):
        return None
    if refusal is not None:
        raise UsageError(
            "--hang-after is not possible here", cause=refusal, fix="leave --hang-after out, or change that",
            code="run.hang-after",
        )  # fmt: skip
    return HangWatch(after_s, options.on_hang, by_steps=by_steps)


def _why_unwatched(mode: str, cluster: Cluster | None, *, detach: bool) -> str | None:
    if detach:
        return "with --detach nobody follows the job"
    if mode not in WITH_PAUSES:
        return f"processes answer `raydebug stacks` in the modes breakpoint and post-mortem; the debugger is '{mode}'"
    if cluster is not None and not cluster.has_gateway:
        return "the cluster has no gateway, so its processes cannot be asked for their stacks"
    return None


def _detached_alone(name: str, cluster: Cluster | None) -> RaydebugError:
    why = (
        f"no cluster '{name}' runs, and the one that `run` brings up ends with it"
        if cluster is None
        else f"a `run` (pid {cluster.owner}) has started cluster '{name}', which ends with the last `run` that uses it"
    )
    return UsageError(
        "--detach needs a cluster that stays",
        cause=why,
        fix="raydebug up, then the same command again",
        code="run.detach-alone",
    )
