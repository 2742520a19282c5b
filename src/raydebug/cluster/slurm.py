"""A cluster as a job of Slurm: one task of `raydebug node` on each host, and this machine reaches it through srun.

No ssh to the nodes is needed, and no connection into the cluster's network. The token is in a file of the shared folder
only: `scontrol show job` and Slurm's log show the script, its options and what the nodes print to every user.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from raydebug import process
from raydebug.cluster import rendezvous, state
from raydebug.cluster.environment import without_slurm
from raydebug.cluster.locks import only_one
from raydebug.cluster.private_folders import remove_private
from raydebug.cluster.ray_node import START_LIMIT_S, last_words
from raydebug.cluster.rendezvous import ENDED, FAILED, UP, Head, NodeState
from raydebug.cluster.state import Cluster, Remote, name_option
from raydebug.cluster.tunnel import close_way, open_way
from raydebug.cluster.up import (
    UpOptions,
    choose_ports,
    choosing_ports,
    ignore_interrupts,
    raise_if_interrupted,
    words_of,
)
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.process import SAFE_PATH
from raydebug.settings.files import atomic_write

LOG, SCRIPT = "slurm.log", "job.sh"
EXAMPLE = "raydebug up --cluster slurm --nodes 2 -- --partition=NAME --time=01:00:00"
ASK_S, POLL_S = 2.0, 0.2  # Slurm's controller is asked, and our own files are looked at
ASK_LATER_S = 15.0  # of a job that has been pending for a minute: one controller serves the whole site
SUBMITS_S = 600.0  # a busy slurmctld lets sbatch wait, and a job whose number is not known cannot be cancelled
STARTS_S = START_LIMIT_S + 60.0  # all nodes, once the job runs
ENDS_S = 90.0  # after scancel: Slurm waits KillWait, 30 s by default, before it kills
NAMED = 4  # nodes in a line of progress
WARN_S = 300.0  # before the time limit
# Slurm 22.05 squeue(1), JOB STATE CODES: a job is there in all of these.
PENDING = (
    *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"),
    *("SPECIAL_EXIT", "RESV_DEL_HOLD", "SUSPENDED", "STOPPED"),
)
RUNNING, GONE, UNKNOWN = "RUNNING", "gone", "unknown"  # the last two where Slurm knows none, or does not answer
# Slurm 22.05 sbatch(1): options that say which CPUs of a node the job gets, and those that raydebug cannot follow.
_NAMES_CPUS = re.compile(r"-[cs]|--(cpus|mincpus|exclusive|oversubscribe)")
_REFUSED = re.compile(r"-[WaM]|--(wait$|(array|test-only|clusters?)(=|$))")
# srun does not take them from its job (Slurm 22.05 srun(1), --cpus-per-task).
CPUS_OF_STEP = '[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK'
THERE = (*PENDING, RUNNING, UNKNOWN, "COMPLETING", "SIGNALING", "STAGE_OUT")


@dataclass(frozen=True)
class SlurmJob:
    """What Slurm says of a job: its state, why it waits, the seconds it has left, if any."""

    state: str = GONE
    reason: str = ""
    left_s: float = math.inf

    @property
    def words(self) -> str:
        """Its state, with the reason where there is one."""
        return self.state.lower() + ("" if self.reason in ("", "None") else f": {self.reason}")


def script_of(options: UpOptions, folder: Path) -> str:
    """Return the script for sbatch. Pure.

    A node that fails ends neither the job nor the step; the head's end does: it alone ends with an error. 30 s before
    its time limit the job is asked to end, and it is not queued again: what was paused would be gone. A task gets one
    CPU unless it asks for more: without --cpus, and unless the options of sbatch say what it gets, it has whole nodes.

    Raises:
        RaydebugError: the options ask for no job of this kind.
    """
    _refuse(options)
    cpus = {"cpus-per-task": options.cpus} if options.cpus is not None else {}
    settings = {
        "nodes": options.nodes, "ntasks-per-node": 1, "job-name": f"raydebug-{options.name}", "chdir": folder,
        "output": folder / LOG, "open-mode": "append", "signal": "TERM@30",
        **cpus, **({"gres": f"gpu:{options.gpus}"} if options.gpus else {}),
    }  # fmt: skip
    lines = [f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in settings.items()]
    if not cpus and not any(map(_NAMES_CPUS.match, options.after)):
        lines.append("#SBATCH --exclusive")
    step = ["srun", "--no-kill", "--kill-on-bad-exit=1", "--wait=0", "--cpu-bind=none", "--unbuffered", "--label"]
    python = options.python or ("python3" if options.container else sys.executable)  # in a container, that on its PATH
    step += [*words_of("--container", options.container), python, SAFE_PATH, "-m", "raydebug", "node"]
    step += ["--folder", str(folder), "--debugger", options.debugger]
    for name, value in (("--gpus", options.gpus), ("--cpus", options.cpus)):
        step += [name, str(value)] if value is not None else []
    step += words_of("--node-options", options.node_options)
    lines += ["#SBATCH --no-kill --no-requeue", CPUS_OF_STEP]
    return "\n".join(["#!/bin/bash", *lines, f"exec {shlex.join(step)}", ""])


def _refuse(options: UpOptions) -> None:
    """Refuse options of sbatch after which its job is not one that can be waited for. Pure."""
    if options.nodes is None:
        raise UsageError(
            "there is no script without --nodes", cause="with --folder alone a cluster that srun has started is taken",
            fix="--nodes N, or leave --dry-run out", code="slurm.options",
        )  # fmt: skip
    for number, word in enumerate(options.after):
        if (number == 0 and not word.startswith("-")) or _REFUSED.match(word):
            raise UsageError(
                f"{word} is not an option that this job can have",
                cause="what follows `--` are options of sbatch; the script, how many jobs there are, in which cluster"
                " of Slurm, and waiting for their end are not among them",
                fix=EXAMPLE, code="slurm.options",
            )  # fmt: skip


def fresh_folder(name: str) -> Path:
    """Return the path for the folder of a new cluster; it is not made."""
    return state.clusters_dir() / state.check_name(name) / f"slurm-{secrets.token_hex(4)}"


def bring_up(options: UpOptions, *, on_phase: Callable[[str], None]) -> tuple[Cluster, list[NodeState], bool]:
    """Submit a cluster and wait until it is up; one that was submitted before is waited for.

    Returns:
        The cluster, its nodes, and whether this call has submitted it.

    Raises:
        RaydebugError: Slurm refuses it, or it does not come up: nothing is left then of a job that this call has
            submitted. Or there is no way to it: then it stays.
    """
    for program in ("sbatch", "squeue", "scancel", "srun"):
        if shutil.which(program) is None:
            raise UsageError(
                "Slurm is not here", cause=f"there is no {program} on the PATH",
                fix="run it where you submit jobs: on a login node", code="slurm.missing",
            )  # fmt: skip
    with only_one(options.name, wait=False):
        cluster = state.read_record(options.name)
        if cluster is not None:
            state.refuse_other_kind(cluster, "slurm")
        if cluster is not None and ask(cluster).state not in THERE:
            down, own = f"`raydebug down{name_option(options.name)}`", is_own(cluster)
            again = f"`raydebug up --cluster slurm{f' --folder {cluster.there.folder}' if own else ''}`"
            raise RaydebugError(
                f"the job of cluster '{options.name}' has ended", cause=str(why_not_running(cluster)),
                fix=f"clear it away with {down}, then {again} again", code="cluster.dead",
            )  # fmt: skip
        is_new, is_up = cluster is None, False
        if cluster is None:
            with choosing_ports(options.name) as taken:  # refused before anything waits for a job
                choose_ports(options.ports, {}, taken, [purpose for purpose, port in options.ports.items() if port])
            cluster = _adopt(options, on_phase) if options.nodes is None else _submit(options)
        own = is_own(cluster)
        try:
            head, nodes = _wait_until_up(cluster, on_phase)
            is_up = True
            on_phase("opening the way to its head")
            cluster = _open(cluster, head, options)
            raise_if_interrupted()
        except BaseException as error:  # a cluster that is up stays where only the way to it has failed
            gives_up = own or not is_up or isinstance(error, KeyboardInterrupt)
            if gives_up and (is_new or ask(cluster).state in PENDING):
                on_phase("leaving it" if own else "cancelling its job")
                with ignore_interrupts():
                    take_down(state.read_record(options.name) or cluster)  # the record knows the way
            raise
        return cluster, nodes, is_new and not own


def take_down(cluster: Cluster) -> list[str]:
    """Cancel the job and wait for its end, close the way there, remove the folder and the record; return what is left.

    A cluster in an allocation of the user's own runs on.
    """
    job, folder = cluster.there.launched["job"], Path(cluster.there.folder)
    left = []
    if not is_own(cluster):
        with contextlib.suppress(process.CommandFailed):  # it has ended
            _slurm("scancel", job)
        deadline = time.monotonic() + ENDS_S
        while (found := ask(cluster).state) in THERE and time.monotonic() < deadline:
            time.sleep(ASK_S / 2)
        left = [f"job {job} ({found})"] if found in THERE else []
    close_way(cluster)
    if not left:
        if folder.parent == cluster.folder:
            remove_private(folder)
        elif not is_own(cluster):
            (folder / "token").unlink(missing_ok=True)
        state.forget(cluster)
    return left


def is_own(cluster: Cluster) -> bool:
    """Return whether the cluster is in an allocation of the user's own, which `down` does not end."""
    return "own" in cluster.there.launched


def ask(cluster: Cluster) -> SlurmJob:
    """Return what Slurm says of the cluster's job."""
    return ask_job(cluster.there.launched["job"])


def ask_job(job: str) -> SlurmJob:
    """Return what Slurm says of a job."""
    try:
        said = _slurm("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%L|%r")
    except process.CommandFailed as error:
        if "Invalid job id" in error.output:  # it has ended some minutes ago (MinJobAge)
            return SlurmJob()
        return SlurmJob(UNKNOWN, error.cause)
    return read_job(said)


def _slurm(*argv: str) -> str:
    return process.run(argv, env=without_slurm(os.environ))


def read_job(said: str) -> SlurmJob:
    """Return what a line of squeue says. Pure.

    >>> read_job("PENDING|1:00:00|Resources")
    SlurmJob(state='PENDING', reason='Resources', left_s=3600.0)
    >>> read_job("RUNNING|1-00:04:05|None").left_s, read_job("RUNNING|UNLIMITED|None").left_s, read_job("").state
    (86645.0, inf, 'gone')
    """
    found = re.search(r"^([A-Z_]+)\|([^|\n]*)\|([^\n]*)$", said, re.MULTILINE)
    if found is None:
        return SlurmJob()
    left = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", found[2])
    left_s = math.inf
    if left is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in left.groups())
        left_s = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    return SlurmJob(found[1], found[3], left_s)


def why_not_running(cluster: Cluster) -> str | None:
    """Return why the cluster's job does not run; None while it does."""
    job, found = cluster.there.launched["job"], ask(cluster)
    if found.state in (RUNNING, UNKNOWN):
        return None
    return f"job {job} is {found.words}"


def why_soon_over(cluster: Cluster) -> str | None:
    """Return that Slurm ends the cluster within WARN_S, in words; None before. Slurm is asked only near the end."""
    job, ends = cluster.there.launched["job"], float(cluster.there.launched.get("ends", "inf"))
    if time.time() < ends - WARN_S or (left_s := ask(cluster).left_s) > WARN_S:
        return None
    return (
        f"Slurm ends this cluster, job {job}, in {left_s:.0f} s, and all pauses with it"
        f" (`scontrol update JobId={job} TimeLimit=...` where you may)"
    )


def _keep_logs(cluster: Cluster) -> Path:
    """Copy the logs of a cluster that has not come up, whose folder is removed; return the folder of the copies."""
    folder = Path(cluster.there.folder)
    remove_private(state.kept_logs(cluster.name))
    state.keep_logs(replace(cluster, folder=folder / rendezvous.NODES))
    return state.keep_logs(replace(cluster, folder=folder))


def _submit(options: UpOptions) -> Cluster:
    """Submit the job and return the cluster, recorded: from now on `down` ends it, and `up` waits for it."""
    folder = options.folder.absolute() if options.folder else fresh_folder(options.name)
    script = script_of(options, folder)
    state.make_folder(options.name)
    rendezvous.make(folder)
    rendezvous.check(folder)
    _refuse_running(folder)
    rendezvous.forget_head(folder)
    remove_private(folder / rendezvous.NODES)
    with state.writing(folder):
        atomic_write(folder / SCRIPT, script)
    job, fix = "", f"its own options follow after `--`: {EXAMPLE}"
    submit = ["sbatch", "--parsable", *options.after, str(folder / SCRIPT)]
    try:
        with ignore_interrupts():  # what was submitted is recorded
            said = process.run(submit, env=without_slurm(os.environ), timeout_s=SUBMITS_S, fix=fix)
            found = re.search(r"^\s*(\d+)(?:;.*)?\s*$", said, re.MULTILINE | re.ASCII)
            if found is None:
                raise RaydebugError(
                    "sbatch gave no number of a job", cause=said.strip()[-300:], fix=fix, code="slurm.no-job"
                )
            job = found[1]
            return _record(options, folder, {"job": job, "container": options.container})
    except BaseException:
        with ignore_interrupts(), contextlib.suppress(process.CommandFailed):
            if job:
                _slurm("scancel", job)
        remove_private(folder) if options.folder is None else (folder / "token").unlink(missing_ok=True)
        raise


def _refuse_running(folder: Path) -> None:
    """Refuse a folder whose cluster runs: it would end with its head's file."""
    head = None
    with contextlib.suppress(RaydebugError):  # a broken file is replaced
        head = rendezvous.find_head(folder)
    job = head["life"].split(" ")[0] if head is not None else ""
    if job.isdecimal() and (found := ask_job(job)).state in THERE:
        raise RaydebugError(
            f"{folder} has a cluster already", cause=f"its job {job} is {found.words}",
            fix=f"`raydebug up --cluster slurm --folder {folder}` leads to it; `scancel {job}` ends it, or name another"
            " folder", code="slurm.taken", exit_code=Exit.TAKEN,
        )  # fmt: skip


def _open(cluster: Cluster, head: Head, options: UpOptions) -> Cluster:
    """Return the cluster, recorded, with the way to its head."""
    found = _with_head(cluster, head)
    if (found.there.through, found.there.far) != (cluster.there.through, cluster.there.far):
        close_way(cluster)  # to an earlier head
    return open_way(found, options.ports)


def _adopt(options: UpOptions, on_phase: Callable[[str], None]) -> Cluster:
    """Return the cluster of an allocation of the user's own, recorded, once its head says where it is."""
    if options.folder is None:
        raise UsageError(
            "nothing says which cluster", cause="--nodes submits a new one, --folder names one that srun has started",
            fix="raydebug up --cluster slurm --nodes 2", code="slurm.options",
        )  # fmt: skip
    folder, deadline = options.folder.absolute(), time.monotonic() + STARTS_S
    on_phase(f"waiting for a head in {folder}")
    job, problem = "", f"no head has written {rendezvous.HEAD_FILE} there, below srun"
    while not job:
        raise_if_interrupted()
        try:
            if head := rendezvous.find_head(folder):
                of = head["life"].split(" ")[0]
                found = ask_job(of) if of.isdecimal() else None
                if found is None or found.state in (RUNNING, UNKNOWN):
                    job = of
                    break
                problem = f"its {rendezvous.HEAD_FILE} is of job {of}, which is {found.words}"
        except RaydebugError as error:  # a file system that is away for a while
            problem = error.cause
        if time.monotonic() > deadline:
            break
        time.sleep(ASK_S)
    if not job:
        raise RaydebugError(
            f"{folder} has no cluster of Slurm", cause=problem,
            fix=f"srun --ntasks-per-node=1 --cpu-bind=none raydebug node --folder {folder}", code="slurm.no-head",
        )  # fmt: skip
    rendezvous.check(folder)
    return _record(options, folder, {"job": job, "container": options.container, "own": "1"})


def _record(options: UpOptions, folder: Path, launched: dict[str, str]) -> Cluster:
    own = state.make_folder(options.name)
    nowhere = "127.0.0.1:1"  # until the head says where it is
    remote = Remote(f"http://{nowhere}", nowhere, str(folder / "token"), folder=str(folder), launched=launched)
    cluster = Cluster(
        name=options.name, id=uuid.uuid4().hex, kind="slurm", folder=own, temp_dir=own, python=sys.executable,
        ports={}, cpus=options.cpus or 0, gpus=options.gpus or 0, debugger=options.debugger, flavour="core",
        created=time.time(), remote=remote,
    )  # fmt: skip
    state.save_cluster(cluster)
    return cluster


def _with_head(cluster: Cluster, head: Head) -> Cluster:
    """Return the record with what the head has said."""
    launched, left_s = dict(cluster.there.launched), ask(cluster).left_s
    if math.isfinite(left_s):
        launched["ends"] = str(time.time() + left_s)
    step = ["srun", f"--jobid={launched['job']}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={head['host']}"]
    step += ["--quiet", "--unbuffered"]
    if launched["container"]:  # no second one for each connection: the far end needs this Python, which the nodes share
        step += ["sh", "-c", f'shift; exec {shlex.quote(sys.executable)} "$@"', "sh"]
    return rendezvous.with_head(cluster, head, through=shlex.join(step), launched=launched)


def _wait_until_up(cluster: Cluster, on_phase: Callable[[str], None]) -> tuple[Head, list[NodeState]]:
    """Return the head and all nodes, once each is up or has failed, or is late and the head is up.

    Raises:
        RaydebugError: the job has ended, or the head has not come up.
    """
    folder, job = Path(cluster.there.folder), cluster.there.launched["job"]
    said, asked, deadline, found = "", -ASK_S, math.inf, SlurmJob()
    began = time.monotonic()
    while True:
        raise_if_interrupted()
        waits_s = (time.monotonic() - began) / 4 if found.state in PENDING else 0.0
        if time.monotonic() > asked + min(max(waits_s, ASK_S), ASK_LATER_S):
            asked, found = time.monotonic(), ask(cluster)
        nodes, head, problem = rendezvous.list_nodes(folder), None, ""
        if found.state == RUNNING:
            deadline = min(deadline, time.monotonic() + STARTS_S)
            try:
                head = rendezvous.find_head(folder)
            except RaydebugError as error:  # a file system that is away for a while
                problem = error.cause
            settled = sum(node["phase"] in (UP, FAILED, ENDED) for node in nodes)
            # A node that is late at a later `up` has ended without a word.
            if head is not None and (settled >= head["nodes"] or cluster.there.head or time.monotonic() > deadline):
                return head, nodes
            waiting = [f"{one['host']}: {one['phase']}" for one in nodes if one["phase"] != UP]
            now = f"{len(nodes) - len(waiting)} nodes are up"
            more = [f"and {len(waiting) - NAMED} more"] if len(waiting) > NAMED else []
            now = "; ".join([now, *waiting[:NAMED], *more])
            if not nodes:
                now = f"no node has written to {folder}"
        else:
            now = f"job {job} is {found.words}"
        if found.state not in (RUNNING, UNKNOWN, *PENDING) or time.monotonic() > deadline:
            reasons = [f"{node['host']}: {node['reason']}" for node in nodes if node["phase"] == FAILED]
            log = last_words(folder / LOG) if (folder / LOG).exists() else ""
            share = "" if nodes or log else "nodes and this machine have to share that folder: --folder DIR; "
            logs = f"read the logs in {kept}; " if (kept := _keep_logs(cluster)).is_dir() else ""
            causes = [now, problem, *(reasons or [log or "there is no log of the job"])]
            raise RaydebugError(
                f"cluster '{cluster.name}' did not come up", cause="; ".join(filter(None, causes)),
                fix=f"{share}{logs}`squeue --jobs={job} --states=all` shows what Slurm says; then"
                " the same `raydebug up` again", code="cluster.not-up",
            )  # fmt: skip
        if now != said:
            said = now
            on_phase(now)
        time.sleep(POLL_S)
