"""`raydebug up --cluster ssh` from a login node: three hosts with OpenSSH, which share no folder of the cluster."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from foreign_ray import python_without_raydebug
from ray_by_hand import User, debug
from runs import RAYDEBUG, three_lines, wait_for
from world import ADDRESSES, LOGIN, NODES, World, long

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def hosts(world: World) -> Path:
    """A file with the three hosts."""
    file = world.home() / "hosts"
    file.write_text("# the head first\nn1\n\nn2\nroot@n3  # by its user's name\n")
    return file


@pytest.fixture
def user(world: World) -> Iterator[User]:
    """Somebody at the login node; nothing of his is left after the test."""
    try:
        yield User(world)
    finally:
        world.clean()
        for folder in (world.home() / ".local/state/raydebug/clusters").glob("*"):
            for path in folder.glob("*"):
                path.unlink()


def up(user: User, hosts: Path, *options: str, code: int = 0) -> str:
    """Start the cluster, and return what was printed."""
    done = user.raydebug("up", "--hosts", str(hosts), "--cpus", "2", *options, code=code, timeout_s=200.0)
    return done.stdout + done.stderr


def left_on(world: World) -> dict[str, list[str]]:
    """Return the programs of ours and the files on each node; what another user's ssh keeps is none of it."""
    found = {}
    for node in set(NODES) & set(world.inits):
        found[node] = [one.name() for one in world.files(node, "/tmp").iterdir() if one.name.startswith("rd-")]
        for one in world.programs(node):
            with contextlib.suppress(Exception):
                found[node].append(" ".join(one.cmdline()))
    return found


NOTHING: dict[str, list[str]] = {node: [] for node in NODES}


def test_debug_by_ssh(user: User, hosts: Path):
    """Every verb works. The cluster outlives ssh's connections and the tunnel. `down` leaves nothing on any host."""
    printed = up(user, hosts)
    assert "(ssh, core, debugger: breakpoint)" in printed
    world, record = user.world, user.record()
    folder = record["remote"]["folder"]
    for node in NODES:
        there = world.files(node, folder)
        assert [stat.S_IMODE(path.stat().st_mode) for path in (there, there / "token")] == [0o700, 0o600]
    secret = Path(record["remote"]["token_file"]).read_bytes()
    for machine in world.inits:
        for one in world.programs(machine):
            for part in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    assert secret not in Path(f"/proc/{one.pid}/{part}").read_bytes(), one
    debug(user)
    listed = user.ask("ps")
    assert all(ADDRESSES[node] in listed for node in NODES)
    assert "no breakpoints on" not in listed
    assert "env     passed" in user.ask("check env")
    assert "listening: clients on 127.0.0.1:" in user.ask("logs", "gateway")
    assert "runs already" in up(user, hosts)
    with user.running("--", "python", "several.py", "stop", "n3") as job:
        (pause,) = user.pauses(1)
        world.send_to(LOGIN, lambda argv: argv[0] == "ssh")
        assert [one["id"] for one in user.pauses(1)] == [pause["id"]]
        world.login(["kill", "-9", str(user.record()["supervisor_pid"])])
        assert "raydebug up" in user.raydebug("paused", code=None).stderr
        user.raydebug("up")
        assert [one["id"] for one in user.pauses(1)] == [pause["id"]]
        user.attach(pause["id"], "c")
        assert "done: n3 41" in job.end()
    assert "cluster 'default' is down" in user.raydebug("down").stderr
    assert left_on(world) == NOTHING
    assert not any("raydebug" in " ".join(one.cmdline()) for one in world.programs(LOGIN))


def test_a_host_with_another_python(user: User, hosts: Path, world: World):
    """It is named, and so is a host that is not there; nothing is started."""
    bare = python_without_raydebug(world.folder / "bare")
    for node in NODES:
        script = f"printf '#!/bin/sh\\nexec {bare if node == 'n2' else sys.executable} \"$@\"\\n' >/run/python"
        world.on(node, ["sh", "-c", f"{script} && chmod +x /run/python"])
    lacks = user.raydebug("up", "--hosts", str(hosts), "--python", "/run/python", code=1)
    assert three_lines(lacks, 1) == "error: these hosts cannot be one cluster"
    assert re.search(r"cause: n2: .*(no module named 'raydebug'|has no raydebug)", lacks.stderr, re.I), lacks.stderr
    hosts_with_one_more = hosts.with_name("more")
    hosts_with_one_more.write_text(hosts.read_text() + "n9\n")
    missing = user.raydebug("up", "--hosts", str(hosts_with_one_more), code=1)
    assert "cause: n9: ssh does not reach it: ssh: Could not resolve hostname n9" in missing.stderr
    assert left_on(world) == NOTHING


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=long)])
def test_a_start_that_is_cut_off(user: User, hosts: Path, how: signal.Signals):
    """Ctrl-C ends what was started; after a `kill -9` of `up` it is `down` that does."""
    world = user.world
    argv = [str(RAYDEBUG), "up", "--hosts", str(hosts), "--cpus", "2"]
    started = world.start(LOGIN, argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_for(lambda: any(world.files("n1", "/tmp").glob("rd-*/nodes/n1.json")), "the start of the head", 60.0)
    world.send_to(LOGIN, lambda words: words[1:3] == argv[:2], how)
    said, _ = started.communicate(timeout=90.0)
    if how == signal.SIGINT:
        assert started.returncode == 130, said
        assert "there is no cluster 'default'" in user.raydebug("down", code=1).stderr
    else:
        user.raydebug("down")
    wait_for(lambda: left_on(world) == NOTHING, "the end of the head", 30.0)


@long
def test_a_host_that_is_lost(user: User, hosts: Path):
    """`ps` has its name and why it is not reached, `down` names it, and `down` again works when it is back."""
    up(user, hosts)
    world = user.world
    world.kill("n3")
    wait_for(lambda: "ssh does not reach it" in user.raydebug("ps", code=None).stdout, "the end of n3", 180.0)
    assert "root@n3: ssh does not reach it" in user.ask("ps")
    not_down = user.raydebug("down", code=1)
    assert three_lines(not_down, 1) == "error: cluster 'default' is not wholly down"
    assert "still there: root@n3: ssh does not reach it: " in not_down.stderr
    assert left_on(world) == {"n1": [], "n2": []}
    world.boot("n3")
    user.raydebug("down")
    assert "there is no cluster 'default'" in user.raydebug("down", code=1).stderr


@long
def test_programs_that_are_killed(user: User, hosts: Path):
    """The node program of n2, then that of the head: `ps` says so, and `down` finds what they have left."""
    up(user, hosts)
    world = user.world
    for node in ("n2", "n1"):
        world.send_to(node, lambda argv: "raydebug node --folder" in " ".join(argv))
    said = user.raydebug("ps", code=1).stdout
    assert "its node program has ended" in said
    assert "is there, but its head does not answer" in up(user, hosts, code=1)
    user.raydebug("down")
    assert left_on(world) == NOTHING


@long
def test_two_clusters_on_the_same_hosts(user: User, hosts: Path):
    """They have their own ports, folders and tokens; the end of one leaves the other."""
    up(user, hosts)
    up(user, hosts, "--name", "second")
    user.raydebug("down")
    rows = json.loads(user.raydebug("ps", "--name", "second", "--json").stdout)["nodes"]
    assert [row["state"] for row in rows] == ["alive"] * 3
    user.raydebug("down", "--name", "second")
    assert left_on(user.world) == NOTHING


def test_a_port_that_is_not_forwarded(user: User, hosts: Path):
    """Where ssh leads to the hosts and not to the gateway, the error has what it said, and `down` works."""
    ssh = user.world.home() / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\ncase "$*" in *"-W 127"*) set -- -p 9 "$@";; esac\nexec /usr/bin/ssh "$@"\n')
    ssh.chmod(0o755)
    printed = up(user, hosts, "--ssh", str(ssh), code=1)
    assert "cannot be reached from here" in printed
    assert "Connection refused" in printed
    user.raydebug("down")
    assert left_on(user.world) == NOTHING
