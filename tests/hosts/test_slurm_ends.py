"""How a cluster in a job of Slurm ends: a node, the head, the job; and a start that is slow."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from ray_by_hand import User
from runs import wait_for
from slurm_cluster import GONE_S, UP_S, job_of, left, nodes, up
from world import ADDRESSES, LOGIN, World, long

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def cluster(world: World) -> Iterator[User]:
    """A cluster that the test ends."""
    yield up(world)
    User(world).raydebug("down", code=None)
    world.clean()


@long
def test_a_node_that_dies(cluster: User):
    """n3 loses its power: head and n2 live, `ps` says why n3 does not, and the job's error names the dead node."""
    with cluster.running("--", "python", "several.py", "work", "600") as job:
        wait_for(lambda: "working" in job.text, "the job's start")
        cluster.world.kill("n3")
        try:
            wait_for(lambda: nodes(cluster)[ADDRESSES["n3"]][0] == "dead", "n3's end", UP_S)
            found = nodes(cluster)
            assert found[ADDRESSES["n3"]][1]
            assert [found[ADDRESSES[node]][0] for node in ("n1", "n2")] == ["alive", "alive"]
            assert "ActorDied" in job.end(1, timeout_s=UP_S)
        finally:
            cluster.world.boot("n3")


@pytest.mark.parametrize("end", ["scancel", pytest.param("the head", marks=long), pytest.param("down", marks=long)])
def test_nothing_is_left(cluster: User, end: str):
    """However the cluster ends, no program of it and no folder is left on any node."""
    world = cluster.world
    with cluster.running("--", "python", "several.py", "work", "600") as job:
        wait_for(lambda: "working" in job.text, "the job's start")
        if end == "scancel":
            world.login(["scancel", job_of(cluster)])
        elif end == "the head":
            keeper = next(one for one in world.programs("n1") if one.cmdline()[-1:] and "node" in one.cmdline()[1:5])
            keeper.kill()
        else:
            cluster.ask("down")
        wait_for(lambda: left(world) == [], f"the end of {left(world)}", GONE_S)
        wait_for(lambda: world.login(["squeue", "-h"]).stdout == "", "the end of Slurm's job", GONE_S)
        job.process.wait(60)


@long
def test_a_head_that_starts_slowly(world: World):
    """The head's raylet stands still for 20 s while it starts: all nodes come up."""
    user = User(world)
    started = world.start(LOGIN, ["raydebug", "up", "--cluster", "slurm", "--nodes", "3", "--cpus", "2"])
    try:
        raylets: list[psutil.Process] = []

        def is_there() -> bool:
            raylets[:] = [one for one in world.programs("n1") if one.name() == "raylet"]
            return bool(raylets)

        wait_for(is_there, "the head's raylet")
        raylets[0].send_signal(signal.SIGSTOP)
        time.sleep(20)
        raylets[0].send_signal(signal.SIGCONT)
        assert started.wait(UP_S) == 0
        assert [state for state, _ in nodes(user).values()] == ["alive"] * 3
    finally:
        user.raydebug("down", code=None)
        world.clean()
