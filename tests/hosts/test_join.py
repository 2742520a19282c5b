"""`raydebug up --join` from a login node: Ray was started by hand on three nodes, with a token."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from ray_by_hand import HEAD, URL, User, assert_token_is_hidden, debug, ray_by_hand, start_ray
from runs import RAYDEBUG, three_lines, wait_for
from world import ADDRESSES, LOGIN, NODES, World, long

SSH = f"ssh {HEAD}"
# A connection that proves nothing: what comes back of it, or the name of its error.
KNOCK = """
import socket, sys
try:
    one = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
    one.sendall(sys.argv[3].encode())
    one.settimeout(30)
    print(one.recv(999).decode().partition("\\r")[0])
except OSError as error:
    print(type(error).__name__)
"""
REQUEST = "GET /pauses HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def root(world: World) -> Iterator[User]:
    """A user of Ray on three nodes, with Ray's token."""
    with ray_by_hand(world, with_token=True) as user:
        yield user


def knock(world: World, machine: str, host: str, port: str | int, sent: str = REQUEST, user: str = "root") -> str:
    """Send something to a port from a machine, and return the first line that comes back."""
    return world.on(machine, ["python", "-c", KNOCK, host, str(port), sent], user=user).stdout.strip()


def lasting(user: User) -> dict[str, set[int]]:
    """Return the programs of each machine that stay: Ray starts and ends workers as it likes."""
    found = {}
    for machine in user.world.inits:
        lines = {}
        for one in user.world.programs(machine):
            with contextlib.suppress(psutil.Error):
                lines[one.pid] = " ".join(one.cmdline())
        found[machine] = {pid for pid, line in lines.items() if not re.match("ray::|.*setup_worker", line)}
    return found


def in_tmp(user: User) -> dict[str, set[str]]:
    """Return what lies in /tmp of each machine."""
    return {machine: {one.name for one in user.world.files(machine, "/tmp").iterdir()} for machine in user.world.inits}


@long
def test_debug_from_the_login_node(root: User):
    """Every verb works through ssh, and `down` leaves processes, files and jobs as they were."""
    programs, files = lasting(root), in_tmp(root)
    with root.joined(SSH):
        debug(root)
        listed = root.ask("ps")
        assert all(address in listed for machine, address in ADDRESSES.items() if machine != LOGIN)
        assert "no breakpoints on" not in listed
        assert "env     passed" in root.ask("check env")
        assert "listening: clients on 127.0.0.1:" in root.ask("logs")
        jobs = json.loads(root.ask("job list", "--json"))["jobs"]
        assert len(jobs) == 3
    assert lasting(root) == programs
    assert in_tmp(root) == files
    table = root.world.on(HEAD, ["ray", "job", "list", "--address", URL], env=root.environ).stdout
    assert set(re.findall(r"raydebug-\d{6}-\w{6}", table)) == {one["id"] for one in jobs}
    assert "raydebug-gateway" not in table


def test_where_the_token_is(root: User):
    """The token is in no argument, variable or log of any machine, and its files are their owner's alone."""
    with root.joined(SSH) as cluster, root.running("--", "python", "several.py", "stop", "n3"):
        (pause,) = root.pauses(1)
        assert "n3" in root.attach(pause["id"], "p host")
        root.ask("stacks")
        for node in NODES:
            folder = root.world.files(node, cluster["folder"])
            assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "token")] == [0o700, 0o600]
        assert_token_is_hidden(root.world, root.token)


@long
def test_the_gateways_ports(root: User):
    """Clients reach the gateway on the head's loopback only, processes only with the token; other users get nothing."""
    with root.joined(SSH) as cluster, root.running("--", "python", "several.py", "stop", "n3"):
        (pause,) = root.pauses(1)
        world, client, dial = root.world, str(cluster["client_port"]), cluster["dial"].rpartition(":")[2]
        listening = {line.split()[3] for line in world.on(HEAD, ["ss", "-Hltn"]).stdout.splitlines()}
        ours = {one for one in listening if one.rpartition(":")[2] in (client, dial)}
        assert ours == {f"127.0.0.1:{client}", f"{ADDRESSES[HEAD]}:{dial}"}
        for machine in (LOGIN, "n2"):
            assert knock(world, machine, HEAD, client) == "ConnectionRefusedError"
        assert knock(world, "n2", HEAD, dial) in ("", "ConnectionResetError")

        wrong = world.home("bob") / "wrong"
        wrong.write_text("0" * 64)
        variables = {"RAYDEBUG_GATEWAY": cluster["dial"], "RAYDEBUG_TOKEN_PATH": str(wrong), "RAYDEBUG_PATIENCE_S": "0"}
        argv = ["python", "-c", "x = 1\nbreakpoint()\nprint('went on')"]
        stranger = world.on("n2", argv, user="bob", env=variables)
        assert stranger.stdout == "went on\n"
        assert "not paused: the gateway refused: 'wrong token'" in stranger.stderr

        assert "401" in knock(world, HEAD, "127.0.0.1", client, user="bob")
        job = world.login(["srun", "-w", HEAD, "python", "-c", KNOCK, "127.0.0.1", client, REQUEST], user="bob")
        assert "401" in job.stdout
        token = ["cat", f"{cluster['folder']}/token"]
        assert "Permission denied" in world.on(HEAD, token, user="bob", check=False).stderr
        # The tunnel on the login node runs its command for root alone.
        assert knock(world, LOGIN, "127.0.0.1", cluster["gateway"].rpartition(":")[2], user="bob") in (
            "",
            "ConnectionResetError",
        )
        assert [one["id"] for one in root.pauses(1)] == [pause["id"]]


@long
def test_ways_that_end(root: User):
    """Connections, the tunnel and the gateway may end: the pause stays, and the error says how to go on."""
    again = f"raydebug up --join {URL}"
    with root.joined(SSH) as cluster, root.running("--", "python", "several.py", "stop", "n3") as job:
        (pause,) = root.pauses(1)
        attached = root.world.start(LOGIN, [str(RAYDEBUG), "attach"], env=root.environ, stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        wait_for(lambda: json.loads(root.ask("paused", "--json"))["pauses"][0]["state"] != "waiting", "the attach")
        root.world.send_to(LOGIN, lambda argv: argv[0] == "ssh")
        said, _ = attached.communicate("p host\n", timeout=30)
        assert attached.returncode == 4, said
        assert [one["id"] for one in root.pauses(1)] == [pause["id"]]

        root.world.login(["kill", "-9", str(root.record()["supervisor_pid"])])
        assert again in three_and_fix(root.raydebug("paused", code=None))
        root.raydebug("up", "--join", URL)
        assert [one["id"] for one in root.pauses(1)] == [pause["id"]]

        root.world.on(HEAD, ["ray", "job", "stop", "--address", URL, cluster["job"]], env=root.environ)
        assert again in three_and_fix(root.raydebug("paused", code=4))
        assert "is STOPPED" in " ".join(root.ask("ps", code=1).split())
        root.raydebug("up", "--join", URL)
        assert [one["id"] for one in root.pauses(1)] == [pause["id"]]
        root.attach(pause["id"], "c")
        job.end()


def three_and_fix(done: subprocess.CompletedProcess[str]) -> str:
    """Check that an error is three lines, and return the last one."""
    three_lines(done, done.returncode)
    return done.stderr.strip().splitlines()[-1]


@long
def test_two_users(root: User):
    """Two users join the same cluster: each lists his own pauses, and one may leave, or join twice."""
    world = root.world
    token = world.home("bob") / "ray_token"
    token.write_text(root.token)
    os.chown(token, 2002, 2002)
    token.chmod(0o600)
    bob = User(world, "bob", environ={**root.environ, "RAY_AUTH_TOKEN_PATH": str(token)}, token=root.token)
    with root.joined(SSH), root.running("--", "python", "several.py", "stop", "n3") as job:
        (pause,) = root.pauses(1)
        with bob.joined(SSH), bob.running("--no-upload", "--", "python", "several.py", "stop", "n2") as other:
            (his,) = bob.pauses(1)
            assert his["ip"] == ADDRESSES["n2"]
            assert "was joined already" in root.join(SSH).stderr
            assert [one["ip"] for one in root.pauses(1)] == [pause["ip"]]
            bob.attach(his["id"], "c")
            assert "done: n2 41" in other.end()
        root.attach(pause["id"], "c")
        job.end()


@pytest.mark.parametrize(
    ("address", "through", "code", "says"),
    [
        ("http://n2:8000", "", "no Ray dashboard is at http://n2:8000", "404"),
        ("http://10.77.0.99:8265", "", "does not answer", "No route to host"),
        (URL, "ssh nowhere", "cannot be reached from here", "Could not resolve hostname nowhere"),
        pytest.param(
            URL, "srun -p nowhere -N1 -n1 -w n1", "cannot be reached from here", "invalid partition specified: nowhere",
            marks=long,
        ),
    ],
)  # fmt: skip
def test_bad_input(root: User, address: str, through: str, code: str, says: str):
    """An address or a way that leads nowhere is an error of three lines with what the other side has said."""
    server = root.world.start("n2", ["python", "-m", "http.server", "8000"], stderr=subprocess.DEVNULL)
    wait_for(lambda: ":8000 " in root.world.on("n2", ["ss", "-ltn"]).stdout, "the other program")
    try:
        done = root.raydebug("up", "--join", address, "--through", through, code=None)
        assert code in three_lines(done, done.returncode)
        assert says in done.stderr
    finally:
        root.raydebug("down", code=None)
        psutil.Process(server.pid).children()[0].kill()
        server.wait(10)


@long
def test_ray_that_is_started_again(root: User):
    """When Ray (of the same version) was started anew under a cluster that was joined, joining again works."""
    with root.joined(SSH):
        root.world.clean()
        failed = root.raydebug("paused", code=None)
        assert failed.returncode != 0
        assert "does not answer" in three_lines(failed, failed.returncode)
        start_ray(root.world, [HEAD], root.environ)
        root.raydebug("up", "--join", URL)
        with root.running("--", "python", "several.py", "stop", HEAD) as job:
            (pause,) = root.pauses(1)
            root.attach(pause["id"], "c")
            assert "done: n1 41" in job.end()
