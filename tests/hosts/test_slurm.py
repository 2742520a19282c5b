"""`raydebug up --cluster slurm`: a cluster in a job of Slurm, used from the login node through srun alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_by_hand import User, assert_token_is_hidden, debug
from slurm_cluster import job_of, left, nodes, up
from world import LOGIN, World, long

pytestmark = pytest.mark.timeout(400)


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
