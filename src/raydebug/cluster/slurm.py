"""What raydebug asks of Slurm for a cluster of `raydebug node` in a job: the way to its head, and when the job ends.

The job itself is the user's own: deploy/slurm.sbatch, or any other that runs `raydebug node` on its hosts.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import time

from raydebug import process
from raydebug.cluster.environment import without_slurm
from raydebug.cluster.rendezvous import Head
from raydebug.cluster.state import Remote

WARN_S = 300.0  # before the time limit


def job_of(head: Head) -> str:
    """Return the id of the job that a head runs in; empty outside of Slurm. Pure."""
    job = head["life"].split(" ")[0]
    return job if job.isdecimal() else ""


def way_to(head: Head) -> str:
    """Return the command that runs a program beside a head: no ssh to the nodes of the job is needed. Pure."""
    step = ["srun", f"--jobid={job_of(head)}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={head['host']}"]
    return shlex.join([*step, "--quiet", "--unbuffered"])


def left_s(job: str) -> float:
    """Return the seconds that Slurm gives a job still; infinite where nothing says so."""
    try:
        argv = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%L"]
        return read_left(process.run(argv, env=without_slurm(os.environ)))
    except process.CommandFailed:  # no Slurm is here, or the job has ended some minutes ago (MinJobAge)
        return math.inf


def read_left(left: str) -> float:
    """Return the seconds of a time as squeue prints it. Pure.

    >>> read_left("1:00:00"), read_left("1-00:04:05"), read_left("5:00"), read_left("UNLIMITED")
    (3600.0, 86645.0, 300.0, inf)
    """
    found = re.search(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)$", left.strip(), re.MULTILINE)
    if found is None:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def why_soon_over(remote: Remote) -> str | None:
    """Return that Slurm ends a cluster within WARN_S, in words; None before. Slurm is asked only near the end."""
    if time.time() < remote.job_ends - WARN_S:
        return None
    left = left_s(remote.slurm_job)  # the limit may have been raised
    left = remote.job_ends - time.time() if math.isinf(left) else left
    if not 0 < left <= WARN_S:
        return None
    return (
        f"Slurm ends this cluster, job {remote.slurm_job}, in {left:.0f} s, and all pauses with it"
        f" (`scontrol update JobId={remote.slurm_job} TimeLimit=...` where you may)"
    )
