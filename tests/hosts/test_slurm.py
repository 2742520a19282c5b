"""`raydebug up --cluster slurm`: a cluster in a job of Slurm, used from the login node through srun alone."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ray_by_hand import User, assert_token_is_hidden, debug
from runs import wait_for
from world import ADDRESSES, LOGIN, NODES, World, long

UP_S, GONE_S = 120.0, 15.0

pytestmark = pytest.mark.timeout(400)


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


@pytest.fixture
def cluster(world: World) -> Iterator[User]:
    """A cluster that the test ends."""
    yield up(world)
    User(world).raydebug("down", code=None)
    world.clean()


@pytest.fixture(scope="module")
def shared(world: World) -> Iterator[User]:
    """A cluster that the test leaves as it was."""
    yield up(world, "shared")
    user = User(world, cluster="shared")
    user.ask("down")
    assert left(world) == []
    world.clean()


def test_debug_through_srun_alone(shared: User):
    """Every verb works from the login node, without ssh; no process has Slurm's variables."""
    debug(shared)
    assert "env     passed" in shared.ask("check env")
    assert [state for state, _ in nodes(shared).values()] == ["alive"] * 3
    assert not [one for one in shared.world.programs(LOGIN) if one.name() == "ssh"]
    with shared.running("--", "python", "several.py", "ranks", "") as job:
        assert "done: [None, None, None]" in job.end()


def test_where_the_token_is(shared: User):
    """The token is in no argument, variable, log, script or row of Slurm's; its file is its owner's alone."""
    with shared.running("--", "python", "several.py", "stop", "n3"):
        (pause,) = shared.pauses(1)
        shared.attach(pause["id"], "p host")
        token = Path(shared.record()["remote"]["token_file"])
        assert token.stat().st_mode & 0o777 == 0o600
        secret, job = token.read_text(), job_of(shared)
        shown = shared.world.login(["scontrol", "show", "job", "-dd", job]).stdout
        script = shared.world.login(["scontrol", "write", "batch_script", job, "-"]).stdout
        assert secret not in shown + script
        assert_token_is_hidden(shared.world, secret)


@long
def test_a_network_that_is_cut(shared: User):
    """n3's network goes for 30 s: its pause comes back within 10 s, with its number, and the job goes on."""
    with shared.running("--", "python", "several.py", "stop", "n3") as job:
        (pause,) = shared.pauses(1)
        shared.world.cut("n3")
        try:
            time.sleep(30)
        finally:
            shared.world.mend("n3")
        assert [one["id"] for one in shared.pauses(1, timeout_s=10)] == [pause["id"]]
        shared.attach(pause["id"], "c")
        assert "done: n3 41" in job.end()


@long
def test_twice_on_the_same_nodes(shared: User):
    """A second cluster on the same nodes has its own ports, and its own pauses."""
    second = up(shared.world, "second")
    try:
        with second.running("--", "python", "several.py", "stop", "n3") as job:
            (pause,) = second.pauses(1)
            assert shared.pauses(0) == []
            second.attach(pause["id"], "c")
            job.end()
    finally:
        second.ask("down")
    assert [state for state, _ in nodes(shared).values()] == ["alive"] * 3


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
