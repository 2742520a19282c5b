"""Jobs of Slurm that are pending, refused, or the user's own, as `raydebug up --cluster slurm` meets them."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from ray_by_hand import User
from runs import JOBS, RAYDEBUG, three_lines, wait_for
from world import LOGIN, World, long

UP = ("up", "--cluster", "slurm")
GONE_S = 15.0  # after the end of a job: KillWait of the world is 5 s

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def user(world: World) -> Iterator[User]:
    """A user at the login node; nothing of his is left."""
    try:
        yield User(world)
    finally:
        User(world).raydebug("down", code=None)
        world.clean()


def left(user: User) -> list[str]:
    """Return what is left on the machines: programs, and folders of Ray's."""
    found = []
    for machine in user.world.inits:
        for one in user.world.programs(machine):
            with contextlib.suppress(psutil.Error):
                found.append(f"{machine}: {' '.join(one.cmdline())}")
        found += [f"{machine}: {path}" for path in user.world.files(machine, "/tmp").glob("rd-*")]
    return found


def test_pending_job(user: User):
    """A pending job is waited for with Slurm's reason; `ps` shows it; Ctrl-C cancels it, and nothing of it is left."""
    argv = [str(RAYDEBUG), *UP, "--", "--begin=now+1hour"]
    started = user.world.start(LOGIN, argv, cwd=JOBS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: "PENDING" in user.world.login(["squeue", "-h", "-o", "%T"]).stdout, "the job")
        assert re.search(r"pending.*BeginTime", " ".join(user.ask("ps", code=1).split()))
        user.world.send_to(LOGIN, lambda words: words[-1] == "--begin=now+1hour", signal.SIGINT)
        said, _ = started.communicate(timeout=30)
        assert "is pending: BeginTime" in said
        assert started.returncode == 130
    finally:
        started.kill()
    assert user.world.login(["squeue", "-h"]).stdout == ""
    assert "there is no cluster" in user.raydebug("ps", code=None).stderr


@long
def test_own_allocation(user: User):
    """A cluster that the user's own srun has started is reached through its folder; `down` leaves it alone."""
    folder = user.world.home() / "own"
    argv = [
        "srun",
        "-N2",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
        str(RAYDEBUG),
        "node",
        "--folder",
        str(folder),
    ]
    with (user.world.folder / "log" / "own").open("w") as log:
        srun = user.world.start(LOGIN, argv, stdout=log, stderr=log)
    user.raydebug(*UP, "--folder", str(folder), timeout_s=240)
    user.world.login(["kill", "-9", str(user.record()["supervisor_pid"])])  # the way there: `up` opens it again
    assert "runs already" in user.raydebug("up").stderr
    with user.running("--", "python", "several.py", "stop", "n2") as job:
        (pause,) = user.pauses(1)
        user.attach(pause["id"], "c")
        job.end()
    user.ask("down")
    assert user.world.login(["squeue", "-h", "-o", "%T"]).stdout == "RUNNING\n"
    user.world.login(["scancel", "--user=root"])
    srun.wait(30)
    wait_for(lambda: not left(user), f"the end of {left(user)}", GONE_S)


def test_sbatch_refuses(user: User):
    """What sbatch refuses is an error of three lines with its words, and nothing is left of it."""
    done = user.raydebug(*UP, "--", "--partition=nowhere", code=None)
    assert three_lines(done, done.returncode) == "error: 'sbatch' failed with exit code 1"
    assert "nowhere" in done.stderr
    assert "there is no cluster" in user.raydebug("ps", code=None).stderr
