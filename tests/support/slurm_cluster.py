"""A cluster of deploy/slurm.sbatch in the tests' world, and what is left of it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import psutil

from ray_by_hand import User
from world import NODES, REPOSITORY, World

SBATCH = REPOSITORY / "deploy" / "slurm.sbatch"
# On two cores Ray is not to start a worker for each of the 16 logical CPUs before anything asks for one.
ENVIRON = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}
UP_S, GONE_S = 380.0, 20.0  # as long as `up --join` itself waits


def submit(world: World, *options: str) -> str:
    """Submit the recipe as it is committed, on all nodes, and return the id of Slurm's job."""
    argv = ["sbatch", "--parsable", "--nodes=3", *options, str(SBATCH)]
    return world.login(argv, env=ENVIRON).stdout.strip()


def folder_of(world: World, job: str) -> Path:
    """Return the folder of a job's nodes."""
    return world.home() / f"raydebug-{job}"


def up(world: World, name: str = "default", *options: str) -> User:
    """Start a cluster, and return a user who has joined it."""
    user, job = User(world, cluster=name), submit(world, *options)
    user.raydebug("up", "--join", str(folder_of(world, job)), "--name", name, timeout_s=UP_S)
    return user


def job_of(user: User) -> str:
    """Return the id of Slurm's job."""
    found: str = user.record()["remote"]["slurm_job"]
    return found


def nodes(user: User) -> dict[str, tuple[str, str]]:
    """Return state and reason of each node, by address."""
    listed = json.loads(user.ask("ps --json", code=None))["nodes"]
    return {one["ip"]: (one["state"], one["reason"] or "") for one in listed}


def left(world: World) -> list[str]:
    """Return what is left of a cluster on the nodes: programs, and folders of their own disks."""
    found = []
    for node in set(NODES) & set(world.inits):
        for one in world.programs(node):
            with contextlib.suppress(psutil.Error):  # it ends just now
                found.append(f"{node}: {' '.join(one.cmdline())}")
        prefixes = ("rd-", "raydebug-")
        found += [str(path) for path in world.files(node, "/tmp").iterdir() if path.name.startswith(prefixes)]
    return found
