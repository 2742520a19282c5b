"""Clusters by ssh, without Ray: the file of hosts, what hosts answer, what is started and ended on one.

In place of `ssh` there is a program that runs the command on this machine, or plays a host that is not what it should
be. tests/hosts/test_ssh.py has OpenSSH, several hosts and Ray.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import raydebug
from raydebug.cluster import hosts, on_host, on_nodes, remote_kinds, rendezvous
from raydebug.cluster.hosts import ask_hosts, read_hosts, what_does_not_fit
from raydebug.cluster.local import processes_with
from raydebug.cluster.on_host import HostAnswer
from raydebug.cluster.remote_kinds import SshKind
from raydebug.cluster.state import Cluster, Remote, clusters_dir
from raydebug.cluster.up import UpOptions
from raydebug.errors import RaydebugError
from raydebug.protocol import variables
from runs import wait_for

# ssh OPTIONS -- HOST COMMAND. A host is this machine, unless a script is named like it; it gets what ssh was given.
# What runs on a host is in another session than ssh: it outlives a connection that is cut.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
script=$(dirname "$0")/$2
if [ -e "$script" ]; then . "$script"; else setsid sh -c "$3" 2>&1 | cat; fi
"""
GOOD: HostAnswer = {
    "python": "3.11.7", "executable": "/opt/python", "ray": "2.60.0", "raydebug": raydebug.__version__,
    "debugpy": "1.8.22", "hook": True,
}  # fmt: skip
# Nobody listens there: a node waits for this head until it is asked to end.
NO_HEAD = {
    "id": "0" * 32, "host": "n1", "ip": "127.0.0.1", "gcs": "127.0.0.1:9", "dial": "127.0.0.1:9", "client_port": 9,
    "dashboard_port": 9, "temp_dir": "/tmp/rd-none", "python": sys.executable, "ray": "2.60.0", "flavour": "core",
    "debugger": "breakpoint", "gpus": 0, "nodes": 2, "life": "  ",
}  # fmt: skip


def answer_of(found: HostAnswer) -> str:
    """Return the script of a host that gives this answer."""
    return f"cat >/dev/null; cat <<'END'\nWelcome!\n{on_nodes.MARK}{json.dumps(found)}\nEND\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of two hosts, n1 and n2; both are this machine, with one folder. What runs there ends with the test."""
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o700)
    launched = {"ssh": str(ssh), "hosts": "n1 n2", "python": sys.executable}
    folder = f"/tmp/rd-{uuid.uuid4().hex[:12]}"
    remote = Remote("", "", str(tmp_path / "token"), folder=folder, launched=launched)
    made = Cluster(
        name="mine", id="0" * 32, kind="ssh", folder=tmp_path, temp_dir=tmp_path, python=sys.executable, ports={},
        cpus=1, gpus=0, debugger="breakpoint", flavour="core", created=0.0, remote=remote,
    )  # fmt: skip
    yield made
    assert on_host.end({"folder": folder}) == {}


def folder_of(cluster: Cluster) -> Path:
    """Return the folder of its hosts."""
    return Path(cluster.there.folder)


def programs_of(cluster: Cluster) -> list[psutil.Process]:
    """Return what runs on its hosts."""
    return processes_with(variables.TOKEN_PATH, str(folder_of(cluster) / "token"))


def start_waiting(cluster: Cluster, **options: Any) -> HostAnswer:
    """Start a node on n1 that waits for a head which is not there."""
    request = {"token": "secret-token", "head": NO_HEAD, "options": ["--join"], **options}
    return ask_hosts(cluster, "start", ["n1"], **request)["n1"]


def up(cluster: Cluster, hosts_file: Path) -> list[str]:
    """Return the command line that starts a cluster by this stand-in for ssh."""
    argv = [sys.executable, "-m", "raydebug", "up", "--cluster", "ssh", "--hosts", str(hosts_file)]
    return [*argv, "--ssh", cluster.there.launched["ssh"], "--name", "mine"]


def test_a_file_of_hosts(tmp_path):
    """Names in their order, with comments, empty lines and users' names; the first one is the head."""
    path = tmp_path / "hosts"
    path.write_text("# a comment\n\n n1 # the head\nme@n2.example.org\n192.0.2.7\nfd00::7\n")
    assert read_hosts(path) == ["n1", "me@n2.example.org", "192.0.2.7", "fd00::7"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "line 1: it is empty"),
        ("# none\n", "it names no host"),
        ("n1\nn2\n\nn1\n", "line 4: n1 is in line 1 already"),
        ("n1\n-oProxyCommand=id\n", "line 2: '-oProxyCommand=id' is not the name of a host"),
        ("me@-oProxyCommand=id\n", "line 1: 'me@-oProxyCommand=id' is not the name of a host"),
        ("n1 n2\n", "line 1: 'n1 n2' is not the name of a host"),
        ("n1;id\n", "line 1: 'n1;id' is not the name of a host"),
        ("n1\n$(id)\n", "line 2: '$(id)' is not the name of a host"),
        ("n%h\n", "line 1: 'n%h' is not the name of a host"),
        ("n1\r\n", "line 1: it has a CR line end"),
        ("né\n", "line 1: 'né' is not the name of a host"),
        ("n1\n" * 400_000, "it has 1200000 bytes, more than the 1048576 that it may have"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_hosts(tmp_path, text, cause):
    """A name that ssh or a shell would read as something else never reaches them; the line is named."""
    path = tmp_path / "hosts"
    path.write_bytes(text.encode())
    with pytest.raises(RaydebugError) as caught:
        read_hosts(path)
    assert (caught.value.what, caught.value.cause, caught.value.exit_code) == (
        f"{path} is not a file of host names",
        cause,
        2,
    )


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({}, None),
        ({"debugpy": "1.8.6"}, None),
        ({"ray": "2.41.0"}, "it has Ray 2.41.0, and n1 has 2.60.0"),
        ({"ray": ""}, "its Python 3.11.7 (/opt/python) has no ray"),
        ({"python": "3.12.1"}, "it has Python 3.12.1, and n1 has 3.11.7"),
        ({"python": "3.11.9"}, "it has Python 3.11.9, and n1 has 3.11.7"),  # Ray itself refuses this
        ({"raydebug": "0.0.1"}, f"it has raydebug 0.0.1, and this is {raydebug.__version__}"),
        ({"raydebug": ""}, "its Python 3.11.7 (/opt/python) has no raydebug"),
        ({"debugpy": ""}, "its Python 3.11.7 (/opt/python) has no debugpy"),
        ({"hook": False}, "raydebug is installed there without its hook (raydebug.pth)"),
        ({"problem": "ssh does not reach it: No route to host"}, "ssh does not reach it: No route to host"),
    ],
)
def test_hosts_that_do_not_fit(answer, problem):
    """Ray takes one version of itself and of Python; raydebug has to be this one."""
    looked: dict[str, HostAnswer] = {"n1": GOOD, "n2": {**GOOD, **answer}}
    assert what_does_not_fit(looked, raydebug.__version__) == ([f"n2: {problem}"] if problem else [])


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'ssh: connect to host n2: No route to host' >&2; exit 255", "ssh does not reach it: ssh: connect to"),
        ("exit 255", "ssh does not reach it: it printed nothing"),
        ("echo 'No module named raydebug'; exit 1", "raydebug does not run there: No module named raydebug"),
        ("echo 'Unknown option: -P'; echo usage; exit 2", "raydebug does not run there: its Python is older than 3.11"),
        ("echo 'raydebug-answer: {'", "its answer cannot be read: "),
        ("echo 'raydebug-answer: []'", "its answer cannot be read: the answer is not an object"),
        ("echo 'raydebug-answer: {\"ray\": 7}'", "its answer cannot be read: 'ray' of the answer is not a text"),
        ("printf 'raydebug-answer: '; head -c 900000 /dev/zero | tr '\\0' '['", "its answer cannot be read: "),
        ("head -c 9000000 /dev/zero", "its answer is too long"),
        ("exec sleep 60", "it gave no answer within 1 s"),
        ("trap '' TERM; (sleep 60) & sleep 60", "it gave no answer within 1 s"),
    ],
)  # fmt: skip
def test_answers_of_a_hostile_host(cluster, tmp_path, script, problem):
    """A host may say what it likes: it becomes a sentence about this host, and the others are not kept waiting."""
    (tmp_path / "n1").write_text(answer_of(GOOD))
    (tmp_path / "n2").write_text(script)
    found = ask_hosts(cluster, "look", limit_s=1.0 if "within" in problem else 60.0)
    assert found["n1"] == GOOD
    assert found["n2"]["problem"].startswith(problem)


def test_no_ssh(cluster, tmp_path):
    """A command that is not there is named."""
    (tmp_path / "ssh").unlink()
    assert ask_hosts(cluster, "look")["n1"] == {"problem": f"{tmp_path}/ssh: No such file or directory"}


def test_the_versions_of_this_machine(cluster):
    """A host tells what its Python has."""
    found = ask_hosts(cluster, "look")
    assert found["n1"] == found["n2"]
    assert found["n1"]["raydebug"] == raydebug.__version__
    assert found["n1"]["executable"] == sys.executable


def test_the_token_reaches_a_host_by_stdin(cluster, tmp_path):
    """No argument and no variable has it."""
    (tmp_path / "n1").write_text(f'env >{tmp_path}/env; echo "$@" >{tmp_path}/argv; cat >{tmp_path}/stdin')
    start_waiting(cluster)
    assert "secret-token" in (tmp_path / "stdin").read_text()
    assert "raydebug.cluster.on_host" in (tmp_path / "argv").read_text()
    assert "secret-token" not in (tmp_path / "env").read_text() + (tmp_path / "argv").read_text()


def test_a_node_that_does_not_start(cluster):
    """The answer has the last words of the node program, and `end` removes all of it."""
    assert "No such option" in start_waiting(cluster, options=["--bogus"])["problem"]
    folder = folder_of(cluster)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "token")] == [0o700, 0o600]
    again = start_waiting(cluster)
    assert again["problem"] == f"{folder} is there already: has this host two names in the file?"
    assert ask_hosts(cluster, "end") == {"n1": {}, "n2": {}}
    assert not folder.exists()
    assert ask_hosts(cluster, "read", ["n1"])["n1"]["problem"].startswith("its node is gone: the host was restarted")


def test_a_connection_that_is_lost_while_a_node_starts(cluster):
    """Nobody would know of the node: it ends, and leaves nothing."""
    found = start_waiting(cluster, limit_s=8.0)
    assert found == {"problem": "it gave no answer within 8 s"}
    wait_for(lambda: not folder_of(cluster).exists() and programs_of(cluster) == [], "the end of the node", 60)


def test_the_end_of_a_node_that_was_killed(cluster, tmp_path):
    """Its processes are found by their environment, and its temporary folder by what the head has said."""
    temp_dir = Path(f"/tmp/rd-{uuid.uuid4().hex[:12]}")
    temp_dir.mkdir(mode=0o700)
    folder_of(cluster).mkdir(mode=0o700)
    (folder_of(cluster) / "cluster.json").write_text(json.dumps({**NO_HEAD, "temp_dir": str(temp_dir)}))
    environ = {**os.environ, variables.TOKEN_PATH: str(folder_of(cluster) / "token")}
    with subprocess.Popen(["sleep", "60"], env=environ) as left:
        assert ask_hosts(cluster, "read", ["n1"])["n1"]["problem"].startswith("its node program has ended: ")
        assert ask_hosts(cluster, "end", ["n1"]) == {"n1": {}}
        assert left.wait() == -signal.SIGKILL
    assert not temp_dir.exists()
    assert not folder_of(cluster).exists()


@pytest.mark.parametrize(
    ("script", "condition", "reason"),
    [
        (answer_of({"node": {"phase": "up", "ip": "192.0.2.7"}}), "alive", "up"),
        (answer_of({"node": {"phase": "starting Ray", "ip": "192.0.2.7"}}), "starting", "starting Ray"),
        (answer_of({"node": {"phase": "up", "ip": "192.0.2.7"}, "problem": "it ended"}), "dead", "n2: it ended"),
        ("echo 'No route'; exit 255", "unreachable", "n2: ssh does not reach it: No route"),
    ],
)
def test_what_becomes_of_a_node(cluster, tmp_path, script, condition, reason):
    """Its own words; what ssh says of one that is not reached, with the address that it had at its start."""
    (tmp_path / "n1").write_text(answer_of({"node": {"phase": "starting", "ip": "192.0.2.6"}}))
    (tmp_path / "n2").write_text(script)
    launched = {**cluster.there.launched, "ips": "192.0.2.6 192.0.2.7"}
    kind = SshKind(replace(cluster, remote=replace(cluster.there, launched=launched)))
    assert kind.nodes() == [
        {"node_id": None, "ip": "192.0.2.6", "role": "head", "state": "starting", "reason": "starting"},
        {"node_id": None, "ip": "192.0.2.7", "role": "worker", "state": condition, "reason": reason},
    ]
    assert kind.why_gateway_down() == "its head is starting"


def test_up_names_a_host_with_another_ray(cluster, tmp_path):
    """The table of versions, then the error; nothing is started, and no record is written."""
    (tmp_path / "hosts").write_text("n1\nn2\n")
    (tmp_path / "n1").write_text(answer_of(GOOD))
    (tmp_path / "n2").write_text(answer_of({**GOOD, "ray": "2.41.0"}))
    done = subprocess.run(up(cluster, tmp_path / "hosts"), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert [line.split() for line in lines[:-3] if "debugpy" in line or line.startswith((" n1", " n2"))] == [
        ["host", "python", "ray", "raydebug", "debugpy"],
        ["n1", "3.11.7", "2.60.0", raydebug.__version__, "1.8.22"],
        ["n2", "3.11.7", "2.41.0", raydebug.__version__, "1.8.22"],
    ]
    assert lines[-3:-1] == [
        "error: these hosts cannot be one cluster",
        "cause: n2: it has Ray 2.41.0, and n1 has 2.60.0",
    ]
    assert not (clusters_dir() / "mine" / "cluster.json").exists()


def test_ctrl_c_while_nodes_start(cluster, tmp_path):
    """Nothing is left on the hosts, nor a record; the exit code is 130."""
    (tmp_path / "hosts").write_text("n1\nn2\n")
    facts = {name: value for name, value in on_nodes.facts_of_python().items() if name in HostAnswer.__annotations__}
    (tmp_path / "n1").write_text(answer_of({**facts, "head": NO_HEAD, "node": {"phase": "up", "ip": "127.0.0.1"}}))
    argv = up(cluster, tmp_path / "hosts")  # so n2 waits for a head
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True) as started:
        try:
            record = clusters_dir() / "mine" / "cluster.json"
            wait_for(record.exists, "the record", 60)
            folder = Path(json.loads(record.read_text())["remote"]["folder"])
            wait_for((folder / "node.log").exists, "the node program", 60)
            started.send_signal(signal.SIGINT)
            _, said = started.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 130, said
    assert not record.exists()
    wait_for(lambda: not folder.exists(), "the end of the node", 30)
    assert processes_with(variables.TOKEN_PATH, str(folder / "token")) == []


def test_down_names_a_host_that_is_not_reached(cluster, tmp_path):
    """The record stays, and `down` again works once the host is there."""
    (tmp_path / "n2").write_text("echo 'ssh: connect to host n2 port 22: Connection refused'; exit 255")
    made = clusters_dir(make=True)
    assert made.is_dir()
    assert hosts.take_down(cluster) == [
        "n2: ssh does not reach it: ssh: connect to host n2 port 22: Connection refused"
    ]
    (tmp_path / "n2").unlink()
    assert hosts.take_down(cluster) == []


def test_follow_a_log_that_is_cut_off(cluster, monkeypatch, capsys):
    """`logs -f` prints each line once although a host sends the end of a log only, and whole lines until the end."""
    looks = 0

    def log_of(_self: SshKind, _service: str) -> str:
        nonlocal looks
        looks += 1
        return "".join(f"line {number} {'x' * 80}\n" for number in range(100 * looks))[-20_000:] + "a part"

    monkeypatch.setattr(SshKind, "log_of", log_of)
    monkeypatch.setattr(SshKind, "why_gateway_down", lambda _: "over" if looks >= 4 else None)
    monkeypatch.setattr(remote_kinds, "FOLLOW_EVERY_S", 0.0)
    assert SshKind(cluster).show_logs("gateway", follow=True) == 0
    numbers = [line.split(" ")[3] for line in capsys.readouterr().out.splitlines() if "line" in line]
    assert numbers == [str(number) for number in range(500)]


@pytest.mark.parametrize(("through", "least_s"), [("", 1.0), ("srun", 3.0)])
def test_follow_asks_a_host_seldom(cluster, monkeypatch, through, least_s):
    """`logs -f` waits between two looks for as long as the way to the cluster wants."""
    waited: list[float] = []
    there = replace(cluster, remote=replace(cluster.there, through=through))
    monkeypatch.setattr(SshKind, "log_of", lambda *_: "")
    monkeypatch.setattr(SshKind, "why_gateway_down", lambda _: "over" if waited else None)
    monkeypatch.setattr(remote_kinds, "FOLLOW_EVERY_S", 1.0)
    monkeypatch.setattr(remote_kinds.time, "sleep", waited.append)
    SshKind(there).show_logs("gateway", follow=True)
    assert waited == [least_s]


def test_nodes_without_an_address(cluster, monkeypatch):
    """Nodes whose addresses are not known yet are each listed, beside those of Ray."""
    alive = {"node_id": "a", "ip": "10.0.0.1", "role": "head", "state": "alive", "reason": None}
    states = [rendezvous.state_of("n1", "10.0.0.1", "up", is_head=True)]
    states += [rendezvous.state_of(host, "?", "starting", is_head=False, reason=host) for host in ("n2", "n3")]
    monkeypatch.setattr(SshKind, "node_states", lambda _: states)
    monkeypatch.setattr(remote_kinds.Kind, "nodes", lambda _: [dict(alive)])
    assert [(row["ip"], row["reason"]) for row in SshKind(cluster).nodes()] == [
        ("10.0.0.1", None), ("?", "n2"), ("?", "n3"),
    ]  # fmt: skip


def test_a_connection_of_another_user(cluster, tmp_path, monkeypatch):
    """A silent host is named also where what leads to it may not be ended, as below sudo."""

    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "n1").write_text("exec sleep 1")
    monkeypatch.setattr(hosts.os, "killpg", refuse)
    assert ask_hosts(cluster, "look", ["n1"], limit_s=0.3)["n1"]["problem"].startswith("it gave no answer within")


@pytest.mark.parametrize("options", [{"ssh": "ssh -F other"}, {"python": "/other/python"}])
def test_options_of_a_cluster_that_runs(cluster, options):
    """A Python or an ssh that a running cluster does not have is refused; none named is that of its start."""
    with pytest.raises(RaydebugError, match="runs already, with another --") as raised:
        hosts._refuse_others(cluster, UpOptions(name="mine", **options))
    assert raised.value.exit_code == 3
    launched = cluster.there.launched
    for same in (UpOptions(name="mine"), UpOptions(name="mine", ssh=launched["ssh"], python=launched["python"])):
        hosts._refuse_others(cluster, same)
