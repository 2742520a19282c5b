"""`raydebug up --cluster slurm` from a login node, without ssh: real Slurm, three nodes, Ray on each."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ray_by_hand import User, debug
from runs import JOBS, RAYDEBUG, three_lines, wait_for
from world import ADDRESSES, LOGIN, NODES, World

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


@contextlib.contextmanager
def cluster_of(user: User, nodes: int, *options: str) -> Iterator[Path]:
    """Submit a cluster, give its folder, and take it down."""
    user.raydebug(*UP, "--nodes", str(nodes), *options, timeout_s=240)
    try:
        yield Path(user.record()["remote"]["folder"])
    finally:
        user.ask("down")


def left(user: User) -> dict[str, list[str]]:
    """Return what is left on each machine: programs, and folders of Ray's."""
    found = {}
    for machine in user.world.inits:
        lines = []
        for one in user.world.programs(machine):
            with contextlib.suppress(psutil.Error):
                lines.append(" ".join(one.cmdline()))
        found[machine] = lines + [path.name for path in user.world.files(machine, "/tmp").glob("rd-*")]
    return {machine: lines for machine, lines in found.items() if lines}


def test_debug_from_the_login_node(user: User):
    """Every verb works through srun on the nodes of a job, and `down` leaves neither programs nor files nor a job."""
    for node in NODES:  # ssh to the nodes is not needed
        for one in user.world.own[node]:
            if one.name() == "sshd":
                one.suspend()
    try:
        with cluster_of(user, 3) as folder:
            debug(user)
            listed = user.ask("ps")
            assert all(ADDRESSES[node] in listed for node in NODES)
            assert listed.count(" alive ") == 3
            assert "env     passed" in user.ask("check env")
            assert "listening: clients on 127.0.0.1:" in user.ask("logs", "gateway")
            assert "10.77.0.13: up" in user.ask("logs", "nodes")
            with user.running("--", "python", "several.py", "ranks") as job:
                assert "[None, None, None]" in job.end()
            assert "runs already" in user.raydebug("up").stderr
    finally:
        for node in NODES:
            for one in user.world.own[node]:
                if one.name() == "sshd":
                    one.resume()
    wait_for(lambda: not left(user), "the end of all programs", GONE_S)
    assert not folder.exists()
    assert user.world.login(["squeue", "-h"]).stdout == ""


def test_where_the_token_is(user: User):
    """The token is in no argument, variable, script or log of any machine, and not in what Slurm shows of the job."""
    with cluster_of(user, 2) as folder, user.running("--", "python", "several.py", "stop", "n2"):
        user.pauses(1)
        secret = (folder / "token").read_bytes()
        assert [path.stat().st_mode & 0o777 for path in (folder, folder / "token")] == [0o700, 0o600]
        for machine in user.world.inits:
            for one in user.world.programs(machine):
                for part in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        assert secret not in Path(f"/proc/{one.pid}/{part}").read_bytes(), one
        for path in folder.rglob("*"):
            assert path.name == "token" or not path.is_file() or secret not in path.read_bytes(), path
        job = user.record()["remote"]["launched"]["job"]
        shown = user.world.login(["scontrol", "show", "job", "-dd", job]).stdout
        shown += user.world.login(["scontrol", "write", "batch_script", job, "-"]).stdout
        assert secret.decode() not in shown


def test_a_node_that_dies(user: User):
    """A host without power ends neither the job nor the head; `ps` names it dead with a reason; another pause stays."""
    with cluster_of(user, 3), user.running("--", "python", "several.py", "stop", "n2"):
        (pause,) = user.pauses(1)
        user.world.kill("n3")
        try:

            def reason() -> str:
                rows = json.loads(user.ask("ps", "--json", code=None))["nodes"]
                return next(
                    (row["reason"] for row in rows if row["ip"] == ADDRESSES["n3"] and row["state"] == "dead"), ""
                )

            wait_for(lambda: bool(reason()), "the death of n3", 150.0)
            assert [one["id"] for one in user.pauses(1)] == [pause["id"]]
            assert user.world.login(["squeue", "-h", "-o", "%T"]).stdout == "RUNNING\n"
        finally:
            user.world.boot("n3")


@pytest.mark.parametrize("how", ["scancel", "the head's node program"])
def test_end_from_outside(user: User, how: str):
    """When the job is cancelled, or the head's program killed, nothing is left on any node, and `ps` says so."""
    user.raydebug(*UP, "--nodes", "2", timeout_s=240)
    job = user.record()["remote"]["launched"]["job"]
    if how == "scancel":
        user.world.login(["scancel", job])
    else:
        (program,) = [one for one in user.world.programs("n1") if one.cmdline()[2:5] == ["-m", "raydebug", "node"]]
        program.kill()
    tunnel = user.record()["supervisor_pid"]

    def of_nodes() -> dict[str, list[str]]:
        return {machine: lines for machine, lines in left(user).items() if machine != LOGIN}

    wait_for(lambda: not any("python" in line or "ray" in line for lines in of_nodes().values() for line in lines),
             "the end of all programs", GONE_S)  # fmt: skip
    wait_for(lambda: "its head is not up" in (said := user.ask("ps", code=1)) or f"job {job} is" in said, "`ps`")
    user.ask("down")
    assert not psutil.pid_exists(tunnel)


def test_pending_job(user: User):
    """A pending job is waited for with Slurm's reason; `ps` shows it; Ctrl-C cancels it, and nothing of it is left."""
    argv = [str(RAYDEBUG), *UP, "--", "--begin=now+1hour"]
    started = user.world.start(LOGIN, argv, cwd=JOBS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: "PENDING" in user.world.login(["squeue", "-h", "-o", "%T"]).stdout, "the job")
        assert re.search(r"pending.*BeginTime", " ".join(user.ask("ps", code=1).split()))
        for one in user.world.programs(LOGIN):
            if one.cmdline()[-1:] == ["--begin=now+1hour"]:
                one.send_signal(signal.SIGINT)
        said, _ = started.communicate(timeout=30)
        assert "is pending: BeginTime" in said
        assert started.returncode == 130
    finally:
        started.kill()
    assert user.world.login(["squeue", "-h"]).stdout == ""
    assert "there is no cluster" in user.raydebug("ps", code=None).stderr


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
    with user.running("--", "python", "several.py", "stop", "n2") as job:
        (pause,) = user.pauses(1)
        user.attach(pause["id"], "c")
        job.end()
    user.ask("down")
    assert user.world.login(["squeue", "-h", "-o", "%T"]).stdout == "RUNNING\n"
    psutil.Process(srun.pid).children()[0].send_signal(signal.SIGINT)
    time.sleep(0.5)
    psutil.Process(srun.pid).children()[0].send_signal(signal.SIGINT)
    srun.wait(30)
    wait_for(lambda: not left(user), "the end of all programs", GONE_S)


def test_sbatch_refuses(user: User):
    """What sbatch refuses is an error of three lines with its words, and nothing is left of it."""
    done = user.raydebug(*UP, "--", "--partition=nowhere", code=None)
    assert three_lines(done, done.returncode) == "error: 'sbatch' failed with exit code 1"
    assert "nowhere" in done.stderr
    assert "there is no cluster" in user.raydebug("ps", code=None).stderr
