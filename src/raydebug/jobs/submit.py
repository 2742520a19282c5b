"""Submit a command as a Ray job: its environment variables, its entrypoint, its submission id."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from raydebug import render
from raydebug.client.breakpoint_specs import resolve_breaks
from raydebug.client.gateway_client import fetch_dial_address, remove_break, set_breaks
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.head_requests import COMES_WITHIN_S, stop_job
from raydebug.cluster.kinds import kind_of
from raydebug.cluster.known_folders import copies_on, with_local_names
from raydebug.cluster.runner import NodeRunner, Runner
from raydebug.cluster.state import DEFAULT_NAME, Cluster, without_token
from raydebug.cluster.up import ignore_interrupts
from raydebug.commands.syntax import SHELLS
from raydebug.commands.trainings import read_command
from raydebug.errors import RaydebugError, UsageError
from raydebug.protocol import variables
from raydebug.protocol.records import BreakpointSpec
from raydebug.protocol.secrets import is_secret, without_secrets_in_line
from raydebug.settings.debugger import mode_variables
from raydebug.trainers.registry import started_by

ID_PREFIX = "raydebug-"
UNSURE = ("cluster.no-answer", "ray.refused")  # a busy head takes a job and says nothing, or answers with 500


@dataclass(frozen=True)
class Job:
    """A command to run on a cluster.

    Args:
        command: program and arguments.
        working_dir: where it runs, as it is called there.
        debugger: its debugger mode, or None for the cluster's.
        breaks: breakpoints set from outside (client/breakpoint_specs.py).
        profile: name of the profile to apply, or None.
        tiny: what is replaced by a tiny one: `model`, `data`.
        rollouts: what is done with rollouts (profile/rollouts.py); empty for nothing.
        spans: whether its processes keep spans for `raydebug trace`.
        variables: further environment variables of the user's.
    """

    command: list[str]
    working_dir: str
    debugger: str | None = None
    breaks: list[BreakpointSpec] = field(default_factory=list)
    profile: str | None = None
    tiny: list[str] = field(default_factory=list)
    rollouts: str = ""
    spans: bool = True
    variables: dict[str, str] = field(default_factory=dict)


def job_variables(job: Job, submission_id: str, *, node_gpus: int = 0) -> dict[str, str]:
    """Return the environment variables that the job's driver and workers get.

    Args:
        job: the command to run.
        submission_id: its id in the cluster.
        node_gpus: logical GPUs of each node; 0 if unknown.
    """
    environment = {
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",  # Ray's own: values of ray.init(runtime_env=...) win, as without a job
        **_given(job.command),
        **job.variables,
        variables.JOB: submission_id,
        variables.WORKING_DIR: job.working_dir,
    }
    if job.debugger is not None:
        environment |= mode_variables(job.debugger)
    if not job.spans:
        environment[variables.SPANS] = "0"
    if job.breaks:
        environment[variables.BREAKS] = json.dumps(job.breaks)
    if job.profile:
        environment[variables.PROFILE] = job.profile
        if trainer := os.environ.get(variables.TRAINER):
            environment[variables.TRAINER] = trainer
        if node_gpus:
            environment[variables.NODE_GPUS] = str(node_gpus)
    if job.tiny:
        environment[variables.TINY] = " ".join(job.tiny)
    if job.rollouts:
        environment[variables.ROLLOUTS] = job.rollouts
    return environment


def _given(command: Sequence[str]) -> dict[str, str]:
    """Return the variables of a leading `env NAME=VALUE...`: Ray's workers do not inherit those of the driver.

    Secrets stay with the driver, as Ray logs the variables of a job; so do those that choose GPUs and a cluster.
    """
    given: dict[str, str] = {}
    for word in command[1:] if command[0].rpartition("/")[2] == "env" else ():
        name, equals, value = word.partition("=")
        if not equals and not word.startswith("-"):
            break
        stays = name.startswith(("CUDA_VISIBLE", "RAY")) and name != variables.PATCHES
        if name.isidentifier() and not is_secret(name) and not stays:
            given[name] = value
    return given


# What describes this machine or this terminal, and so not the job's.
_OF_MACHINE = frozenset(("COLUMNS", "HOME", "HOSTNAME", "LINES", "LOGNAME", "OLDPWD", "PWD", "SHELL", "SHLVL", "USER"))
_OF_MACHINES = (
    "BASH",
    "CONDA",
    "CUDA_V",
    "LC_",
    "LD_",
    "PATH",
    "PYTHONPATH",
    "RAY",
    "SLURM",
    "SSH_",
    "TERM",
    "TMP",
    "VIRTUAL_",
    "XDG_",
)


def of_shell(asked: Iterable[str], environ: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this shell that a job's script asks for and that its cluster lacks. Pure.

    Args:
        asked: the names in its scripts.
        environ: of this shell.
        there: of the cluster, as far as it is known.
    """
    return {
        name: environ[name]
        for name in sorted(set(asked) & environ.keys() - _OF_MACHINE)
        if environ[name] != there.get(name) and not name.startswith(_OF_MACHINES) and not is_secret(name)
    }


def with_variables(command: list[str], given: Mapping[str, str]) -> list[str]:
    """Return a command that has these variables: `env NAME=VALUE... COMMAND`, which `job_variables` reads."""
    if not given:
        return command
    rest = command[1:] if command[:1] == ["env"] else command
    return ["env", *(f"{name}={value}" for name, value in given.items()), *rest]


def folder_of(entrypoint: str) -> str | None:
    """Return the folder of a job's shell line, as the cluster calls it; None for another program's line."""
    change, separator, _ = entrypoint.partition(" && exec ")
    words = _split(change) if separator else []
    return words[1] if len(words) == 2 and words[0] == "cd" else None


def job_entrypoint(job: Job) -> str:
    """Return the shell line that Ray's head runs: it changes the folder and becomes the command.

    Raises:
        UsageError: it is not UTF-8, as Ray's JSON is.
    """
    for text in (job.working_dir, *job.command):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                "the job's command or folder is not UTF-8", cause=f"Ray takes no other text: {text!r}",
                fix="rename the file or folder, or pass its name by a file", code="run.not-utf-8",
            ) from error  # fmt: skip
    return f"cd {shlex.quote(job.working_dir)} && exec {shlex.join(job.command)}"


def command_of(entrypoint: str) -> str:
    """Return the user's command from a job's shell line; any other line as it is."""
    return entrypoint.partition(" && exec ")[2] or entrypoint


def words_of(entrypoint: str) -> list[str]:
    """Return the words of the user's command in a job's shell line; another program's line may be no whole shell.

    >>> words_of("python x.py 'a b'"), words_of("python x.py # it's")
    (['python', 'x.py', 'a b'], ['python', 'x.py', '#', "it's"])
    """
    return _split(command_of(entrypoint))


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def shown_command(entrypoint: str) -> str:
    """Return the user's command from a job's shell line, without its secrets."""
    return without_secrets_in_line(command_of(entrypoint))


def hide_command(text: str, entrypoint: str) -> str:
    """Return a piece of a job's log without the secrets of its command, which Ray repeats there.

    Source: ray 2.41.0 to 2.60.0 job_supervisor.py `_exec_entrypoint`, "Running entrypoint for job".
    """
    command, shown = command_of(entrypoint).split("\n"), shown_command(entrypoint).split("\n")
    if len(command) != len(shown):  # one of its secrets has several lines
        command, shown = ["\n".join(command)], ["\n".join(shown)]
    for line, shown_line in zip(command, shown, strict=True):  # of a log that is read line by line too
        if line != shown_line:
            text = text.replace(line, shown_line)
    return text


def find_break(cluster: Cluster, where: str, job: str | None = None) -> BreakpointSpec:
    """Return a breakpoint for running jobs, whose files are those of the copy of this folder that such a job has.

    Args:
        cluster: that runs them.
        where: as --break takes it.
        job: only this one.

    Raises:
        RaydebugError: it cannot be parsed, or nothing is there.
    """
    runner, here = kind_of(cluster).runner(), Path.cwd()
    if isinstance(runner, NodeRunner):
        runner = replace(runner, at=copy_of_jobs(cluster, here, job))
    search: list[str] = []  # the PYTHONPATH that the scripts of these jobs set for their trainings
    with contextlib.suppress(RaydebugError):
        for row in Dashboard(cluster).submitted_jobs():
            folder = folder_of(row["entrypoint"])
            if folder is not None and row["status"] == "RUNNING" and job in (None, row["submission_id"]):
                at = Path(with_local_names(cluster, folder))
                search += read_command(words_of(row["entrypoint"]), os.environ, at).python_path
    (spec,) = resolve_breaks([where], runner=runner, working_dir=here, search=list(dict.fromkeys(search)))
    return spec


def copy_of_jobs(cluster: Cluster, here: Path, job: str | None = None) -> str:
    """Return the copy of a folder in which a running job is, the last one if `job` is not; empty if none is."""
    copies = copies_on(cluster)
    rows = Dashboard(cluster).submitted_jobs() if copies else []
    in_order = sorted(rows, key=lambda row: row["submission_id"] == job)
    folders = [folder_of(row["entrypoint"]) or "" for row in in_order if row["status"] == "RUNNING"]
    return next((folder for folder in reversed(folders) if copies.get(folder) == str(here)), "")


def find_program(command: list[str], working_dir: Path, runner: Runner) -> None:
    """Check that a command's program exists where the job will run, and the script that it gives an interpreter.

    Raises:
        RaydebugError: it does not.
    """
    program, script = command[0], script_of(command)
    if script and not isinstance(runner, NodeRunner) and not (working_dir / script).exists():
        raise UsageError(
            f"there is no file {script}",
            cause=f"{program} would run it in {working_dir}",
            fix="check its name, and the folder that you start the run in",
            code="run.no-script",
        )
    if not runner.has_program(program, working_dir):
        looked = f"no file {program} in {working_dir}" if "/" in program else f"no '{program}' on the cluster's PATH"
        raise UsageError(
            f"the command '{program}' was not found",
            cause=looked,
            fix="check its name; everything after `--` is the command: raydebug run -- python train.py",
            code="run.command-not-found",
        )


def script_of(command: list[str]) -> str | None:
    """Return the file that an interpreter or a shell is given to run; None for none, and for a path from the root.

    That may be one of a container's own.
    """
    name, word = Path(command[0]).name, ""
    if name in SHELLS:
        word = "".join(command[1:2])
    elif (name.startswith("python") or name == "torchrun") and (started := started_by(command)):
        word = command[started.arguments_at - 1]
    return word if word.endswith((".py", ".sh")) and not word.startswith("/") else None


def node_variables(cluster: Cluster) -> dict[str, str]:
    """Return what the processes of a job need where the nodes do not have it from their start.

    Of a cluster around us without a record the gateway knows its address, unless it listens on all addresses: then
    containers have it.
    """
    remote = cluster.remote
    if remote.node_folder:  # they have all from their start but the name that is used here
        return {} if cluster.name == DEFAULT_NAME else {variables.CLUSTER_NAME: cluster.name}
    dial = remote.dial
    if cluster.kind == "joined" and not dial:
        with contextlib.suppress(RaydebugError):
            dial = fetch_dial_address(cluster)
    if not dial:
        return {}
    found = {variables.GATEWAY: dial, variables.TOKEN_PATH: remote.token_file}
    if cluster.id:
        found[variables.CLUSTER_ID] = cluster.id
    if cluster.is_of_nodes:
        found |= {variables.TOKEN_PATH: f"{remote.folder}/token", variables.RAY_LOGS: remote.logs}
        found |= mode_variables(cluster.debugger)
    if cluster.name != DEFAULT_NAME:
        found[variables.CLUSTER_NAME] = cluster.name
    return found


def submit(cluster: Cluster, job: Job) -> str:
    """Start a job and return its submission id.

    Raises:
        RaydebugError: the cluster or its gateway does not take it, or does not say so: then the job is stopped, if it
            has come after all, and its breakpoints are removed again.
    """
    submission_id = f"{ID_PREFIX}{time.strftime('%H%M%S')}-{secrets.token_hex(3)}"
    # A gateway that is a job may be stopped by anybody: then no process of this one could pause.
    if cluster.remote.job:
        fetch_dial_address(cluster)
        with contextlib.suppress(RaydebugError):
            nodes = Dashboard(cluster).living_nodes()
            if without := without_token(cluster, {node["node_id"]: node["node_ip"] for node in nodes}):
                render.say(f"note: {without}")
    # The gateway assigns the ids by which breakpoints are listed and removed; processes know them from their start.
    job = replace(job, breaks=set_breaks(cluster, job.breaks, job=submission_id))
    environment = node_variables(cluster) | job_variables(job, submission_id, node_gpus=cluster.gpus)
    try:
        line, folder = job_entrypoint(job), job.working_dir
        return Dashboard(cluster).submit_job(line, submission_id=submission_id, env=environment, folder=folder)
    except BaseException as error:
        with ignore_interrupts():
            if not isinstance(error, RaydebugError) or error.code in UNSURE:
                with contextlib.suppress(RaydebugError):
                    stop_job(cluster, submission_id, comes_within_s=COMES_WITHIN_S)
            for spec in job.breaks:  # without a job, nothing would remove them
                with contextlib.suppress(RaydebugError):
                    remove_break(cluster, spec["id"])
        raise
