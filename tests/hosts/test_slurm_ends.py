"""How a cluster of deploy/slurm.sbatch ends: a node, the head, the job, its time; a job that waits, a slow start."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

from ray_by_hand import User
from runs import RAYDEBUG, wait_for
from slurm_cluster import GONE_S, UP_S, folder_of, job_of, left, nodes, submit, up
from world import ADDRESSES, LOGIN, World, long

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def cluster(world: World) -> Iterator[User]:
    """A cluster that the test ends."""
    yield up(world)
    world.login(["scancel", "--user=root"])
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


@pytest.mark.parametrize("end", ["scancel", pytest.param("the head", marks=long)])
def test_nothing_is_left(cluster: User, end: str):
    """However the cluster ends, no program of it and no folder is left on any node."""
    world = cluster.world
    with cluster.running("--", "python", "several.py", "work", "600") as job:
        wait_for(lambda: "working" in job.text, "the job's start")
        if end == "scancel":
            world.login(["scancel", job_of(cluster)])
        else:
            keeper = next(one for one in world.programs("n1") if one.cmdline()[-1:] and "node" in one.cmdline()[1:5])
            keeper.kill()
        wait_for(lambda: left(world) == [], f"the end of {left(world)}", GONE_S)
        wait_for(lambda: world.login(["squeue", "-h"]).stdout == "", "the end of Slurm's job", GONE_S)
        job.process.wait(60)


@long
def test_a_head_that_starts_slowly(world: World):
    """The head's raylet stands still for 20 s while it starts: all nodes come up."""
    user, job = User(world), submit(world)
    started = world.start(LOGIN, ["raydebug", "up", "--join", str(folder_of(world, job))])
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
        world.login(["scancel", "--user=root"])
        user.raydebug("down", code=None)
        world.clean()


@long
def test_a_time_limit(world: World):
    """`paused` says how long the job has still; at its end no program and no folder is left on any node."""
    user = up(world, "default", "--time=3")
    try:
        warned = user.raydebug("paused").stderr
        assert re.search(r"warning: Slurm ends this cluster, job \d+, in \d+ s, and all pauses", warned)
        wait_for(lambda: world.login(["squeue", "-h"]).stdout == "", "the end of Slurm's job", 300.0)
        assert left(world) == []
        assert "its head" in user.raydebug("ps", code=1).stdout
    finally:
        user.raydebug("down", code=None)
        world.clean()


def test_a_job_that_waits(world: World):
    """`up --join` of a job that is pending waits, and Ctrl-C leaves the job as it was and no record."""
    job = submit(world, "--begin=now+1hour")
    try:
        argv = [str(RAYDEBUG), "up", "--join", str(folder_of(world, job))]
        started = world.start(LOGIN, argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        lines = iter(started.stdout or ())
        wait_for(lambda: "no head has written" in next(lines), "what it waits for")
        world.send_to(LOGIN, lambda words: words[2:4] == argv[1:3], signal.SIGINT)  # an interpreter and its script
        started.communicate(timeout=30)
        assert started.returncode == 130
        assert world.login(["squeue", "-h", "-o", "%T"]).stdout == "PENDING\n"
        assert "there is no cluster" in User(world).raydebug("ps", code=None).stderr
    finally:
        world.clean()
