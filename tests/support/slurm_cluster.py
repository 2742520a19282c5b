"""A cluster of Slurm in the tests' world, and what is left of it."""

from __future__ import annotations

import contextlib
import json

import psutil

from ray_by_hand import User
from world import NODES, World

UP_S, GONE_S = 120.0, 15.0


def up(world: World, name: str = "default", *options: str) -> User:
    """Start a cluster on all nodes, and return its user."""
    user = User(world, cluster=name)
    words = ("up", "--cluster", "slurm", "--nodes", "3", "--cpus", "2", "--name", name, *options)
    user.raydebug(*words, timeout_s=UP_S)
    return user


def job_of(user: User) -> str:
    """Return the id of Slurm's job."""
    found: str = user.record()["remote"]["launched"]["job"]
    return found


def nodes(user: User) -> dict[str, tuple[str, str]]:
    """Return state and reason of each node, by address."""
    listed = json.loads(user.ask("ps --json", code=None))["nodes"]
    return {one["ip"]: (one["state"], one["reason"] or "") for one in listed}


def left(world: World) -> list[str]:
    """Return what is left of a cluster on the nodes: programs, and folders of their own disks."""
    found = []
    for node in NODES:
        for one in world.programs(node):
            with contextlib.suppress(psutil.Error):  # it ends just now
                found.append(f"{node}: {' '.join(one.cmdline())}")
    for node in NODES:
        found += [str(path) for path in world.files(node, "/tmp").iterdir() if path.name.startswith("rd-")]
    return found
