"""deploy/hosts.sh from a login node: three hosts with OpenSSH, which share no folder of the cluster."""

from __future__ import annotations

import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_by_hand import User, assert_token_is_hidden, debug
from runs import wait_for
from slurm_cluster import left
from world import ADDRESSES, LOGIN, NODES, REPOSITORY, World, long

SCRIPT = str(REPOSITORY / "deploy" / "hosts.sh")
SMALL = {"NODE_OPTIONS": "--cpus 2"}
UP_S = 380.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def user(world: World) -> Iterator[User]:
    """Somebody at the login node; nothing of his is left after the test."""
    try:
        yield User(world)
    finally:
        User(world).raydebug("down", code=None)
        world.clean()
        subprocess.run(["rm", "-rf", str(world.home() / "train")], check=True)


def hosts(world: World, *words: str, code: int = 0) -> str:
    """Run the script, and return what it printed."""
    done = world.login([SCRIPT, *words], env=SMALL, timeout_s=UP_S, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_debug_by_ssh(user: User):
    """Every verb works. The cluster outlives ssh's connections. `down` of the script leaves nothing on any host."""
    world, folder = user.world, user.world.home() / "train"
    assert f"raydebug up --join {folder} --through 'ssh n1'" in hosts(world, "up", str(folder), *NODES)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "token", folder / "cluster.json")]
    assert modes == [0o700, 0o600, 0o600]
    assert_token_is_hidden(world, (folder / "token").read_text())
    user.raydebug("up", "--join", str(folder), "--through", "ssh n1")
    debug(user)
    listed = user.ask("ps")
    assert all(ADDRESSES[node] in listed for node in NODES)
    assert "env     passed" in user.ask("check env")
    with user.running("--", "python", "several.py", "stop", "n3") as job:
        (pause,) = user.pauses(1)
        world.send_to(LOGIN, lambda argv: argv[0] == "ssh")
        assert [one["id"] for one in user.pauses(1)] == [pause["id"]]
        user.attach(pause["id"], "c")
        assert "done: n3 41" in job.end()
    user.ask("down")
    hosts(world, "down", str(folder))
    assert left(world) == []
    assert not folder.exists()


def test_a_host_that_is_not_there(user: User):
    """The error of ssh is shown, and what was started on the others is ended."""
    printed = hosts(user.world, "up", str(user.world.home() / "train"), "n1", "n9", code=255)
    assert "Could not resolve hostname n9" in printed
    assert left(user.world) == []


@long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_cut_off(user: User, how: signal.Signals):
    """Ctrl-C ends what was started."""
    world, folder = user.world, user.world.home() / "train"
    started = world.start(LOGIN, [SCRIPT, "up", str(folder), *NODES], env=SMALL, start_new_session=True)
    wait_for(lambda: any(world.files("n1", "/tmp").glob("rd-*")), "the start of the head", 60.0)
    world.send_to(LOGIN, lambda words: SCRIPT in words, how)
    assert started.wait(90.0) != 0
    wait_for(lambda: left(world) == [], "the end of the head", 30.0)
    assert not Path(folder).exists()
