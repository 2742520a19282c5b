"""deploy/slurm.sbatch: a cluster in a job of Slurm, used from the login node through srun alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_by_hand import User, assert_token_is_hidden, debug
from runs import wait_for
from slurm_cluster import GONE_S, job_of, left, nodes, up
from world import LOGIN, World, long

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def shared(world: World) -> Iterator[User]:
    """A cluster that the test leaves as it was."""
    yield up(world, "shared", "--oversubscribe")
    user = User(world, cluster="shared")
    assert "its nodes run on, with raydebug" in user.raydebug("down", "--name", "shared").stderr
    world.login(["scancel", "--user=root"])
    wait_for(lambda: left(world) == [], f"the end of {left(world)}", GONE_S)
    world.clean()


@long
def test_debug_through_srun_alone(shared: User):
    """Every verb works from the login node, without ssh; no process has Slurm's variables."""
    debug(shared)
    assert "env     passed" in shared.ask("check env")
    assert [state for state, _ in nodes(shared).values()] == ["alive"] * 3
    assert not [one for one in shared.world.programs(LOGIN) if one.name() == "ssh"]
    with shared.running("--", "python", "several.py", "ranks", "") as job:
        assert "done: [None, None, None]" in job.end()


@long
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


def test_joining_again(shared: User):
    """A way that has ended is opened again, and a pause is where it was; `--join auto` on the head needs none."""
    with shared.running("--", "python", "several.py", "stop", "n2") as job:
        (pause,) = shared.pauses(1)
        shared.world.login(["kill", "-9", str(shared.record()["supervisor_pid"])])
        assert "up --join" in shared.raydebug("paused", "--name", "shared", code=None).stderr
        assert "was joined already" in shared.raydebug("up", "--name", "shared").stderr
        inside = User(shared.world, machine="n1", cluster="inside")
        assert (
            "(joined, core, debugger: breakpoint)" in inside.raydebug("up", "--join", "auto", "--name", "inside").stdout
        )
        assert [one["id"] for one in inside.pauses(1)] == [pause["id"]]
        inside.ask("down")
        shared.attach(pause["id"], "c")
        job.end()


def test_a_node_too_many(shared: User):
    """A second head in the folder of a cluster that runs is refused, and ends nothing."""
    done = shared.world.on("n1", ["raydebug", "node", "--head", "--folder", shared.record()["remote"]["node_folder"]],
                           check=False)  # fmt: skip
    assert "has a cluster already" in done.stderr
    assert [state for state, _ in nodes(shared).values()] == ["alive"] * 3


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
    second = up(shared.world, "second", "--oversubscribe")
    try:
        with second.running("--", "python", "several.py", "stop", "n3") as job:
            (pause,) = second.pauses(1)
            assert shared.pauses(0) == []
            second.attach(pause["id"], "c")
            job.end()
    finally:
        shared.world.login(["scancel", job_of(second)])
        second.ask("down")
    assert [state for state, _ in nodes(shared).values()] == ["alive"] * 3
