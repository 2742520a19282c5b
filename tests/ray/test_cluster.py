"""`raydebug up`, `ps`, `down`: clusters run side by side, report their faults, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

import ray
from raydebug.cluster import local, state
from raydebug.cluster.find import find_cluster, load_cluster
from raydebug.dap import DapSession, RequestFailed
from raydebug.settings.flavours import has_token_mode
from runs import WAIT_S, raydebug, wait_for

LONG = pytest.mark.long
UP = ("up", "--cluster", "local", "--dashboard-port", "0", "--gateway-port", "0", "--name")


@pytest.fixture
def other(private_state):
    """A cluster for this test alone."""
    done = raydebug(*UP, "other", "--gpus", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = load_cluster("other")
    yield found
    left = find_cluster("other")  # a test may have started another of this name
    if left is not None:
        local.take_down(left)


def error_of(done: subprocess.CompletedProcess[str], code: int) -> list[str]:
    """Check the exit code and the three lines at the end of stderr; return their texts."""
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()[-3:]
    assert [line.partition(": ")[0] for line in lines] == ["error", "cause", "fix"], done.stderr
    assert "Traceback" not in done.stderr
    return [line.partition(": ")[2] for line in lines]


@pytest.mark.timeout(120)
def test_life_of_a_cluster(cluster, other):
    """Two clusters run side by side; `ps --json` describes one; `down` waits for no time-out and leaves nothing."""
    document = json.loads(raydebug("ps", "--name", "other", "--json").stdout)
    assert {
        "version",
        "name",
        "kind",
        "address",
        "dashboard",
        "gateway",
        "token_file",
        "python",
        "nodes",
        "pool",
        "modes",
    } == set(document)
    assert document["pool"] is None, "it is no warm one"
    assert (document["version"], document["name"], document["kind"]) == (1, "other", "local")
    (node,) = document["nodes"]
    assert (node["role"], node["state"], node["ip"]) == ("head", "alive", "127.0.0.1")
    assert Path(document["token_file"]).stat().st_mode & 0o777 == 0o600
    assert len(Path(document["token_file"]).read_text()) == 64, "256 bits"

    again = raydebug(*UP, "other")
    assert again.returncode == 0
    assert "cluster 'other' runs already" in again.stderr

    family = local.marked_processes(other)
    assert len(family) > 5
    started = time.monotonic()
    assert raydebug("down", "--name", "other").returncode == 0
    assert time.monotonic() - started < WAIT_S / 2, "nothing waits for a time-out; the goal is 5 s"
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not other.temp_dir.exists()
    assert not other.token_file.exists()
    assert raydebug("ps", "--name", cluster.name).returncode == 0, "the other cluster is as it was"


def test_nothing_listens_beyond_loopback(cluster):
    """All listening ports of the cluster's processes are on loopback."""
    pids = {p.pid for p in local.marked_processes(cluster)}
    listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.pid in pids]
    assert len(listening) >= 8
    assert {c.laddr.ip.removeprefix("::ffff:") for c in listening} == {"127.0.0.1"}


@LONG
@pytest.mark.timeout(120)
def test_workers_listen_on_any_free_port(cluster, run):
    """Ray's workers listen on ports that the kernel chooses, so two clusters never use the same."""
    job = run("--", "python", "cases.py", "task")
    (pause,) = job.pauses(1)
    (port,) = [c.laddr.port for c in psutil.Process(pause["pid"]).net_connections() if c.status == psutil.CONN_LISTEN]
    assert port not in range(10002, 20000)
    job.attach(pause["id"], "c")
    job.end()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", ["raylet", pytest.param("gcs_server", marks=LONG)])
def test_ps_says_that_ray_died(other, victim):
    """F63: when Ray dies, `ps` says so with the reason within seconds, `up` names the remedy, `down` removes all."""
    (process,) = [p for p in local.marked_processes(other) if p.name() == victim]
    process.kill()
    wait_for(lambda: raydebug("ps", "--name", "other").returncode == 1, "ps to say that Ray is dead", 30)
    (node,) = json.loads(raydebug("ps", "--name", "other", "--json").stdout)["nodes"]
    assert node["state"] == "dead"
    assert node["reason"]
    assert error_of(raydebug(*UP, "other"), 1)[0] == "cluster 'other' is there, but dead"
    assert raydebug("down", "--name", "other").returncode == 0
    assert local.marked_processes(other) == []


@pytest.mark.timeout(120)
def test_killed_gateway_and_supervisor(other):
    """A gateway that dies is restarted; a killed supervisor is named by `ps`, and `down` ends what it had started."""
    gateway, *_ = [p for p in local.marked_processes(other) if "raydebug.gateway" in p.cmdline()]
    gateway.kill()
    wait_for(lambda: raydebug("paused", "--name", "other").returncode == 0, "the gateway to be back")
    os.kill(other.supervisor_pid, signal.SIGKILL)
    wait_for(lambda: not local.is_alive(other), "the supervisor to be gone", 5)
    assert "its supervisor is gone" in raydebug("ps", "--name", "other").stdout
    assert raydebug("down", "--name", "other").returncode == 0
    assert local.marked_processes(other) == []


@pytest.mark.parametrize(
    ("phase", "after_s"),
    [
        pytest.param("starting cluster", 0, marks=LONG),
        pytest.param("starting cluster", 0.3, marks=LONG),
        ("starting Ray", 0),
    ],
)
def test_ctrl_c_during_up_leaves_nothing(private_state, phase, after_s):
    """Ctrl-C at any moment of `up` exits with 130 and leaves no process and no record."""
    argv = [str(Path(sys.executable).parent / "raydebug"), *UP, "broken"]
    up = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert up.stderr is not None
    for line in up.stderr:  # a fixed delay would miss the moment on a slow or a fast machine
        if phase in line:
            break
    time.sleep(after_s)
    up.send_signal(signal.SIGINT)
    said = up.communicate(timeout=20)
    try:
        assert up.returncode == 130, said
        assert find_cluster("broken") is None
    finally:
        if (left := find_cluster("broken")) is not None:
            local.take_down(left)


# Invalid input: each case is an error of three lines and leaves nothing behind


@pytest.mark.long
@pytest.mark.timeout(120)
def test_token_ends_with_its_cluster(other):
    """S10: after `down` a cluster's token opens nothing: the next cluster of this name, on its ports, has another."""
    old, port = other.token, other.ports["gateway"]
    assert raydebug("down", "--name", "other").returncode == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    done = raydebug(*UP, "other")
    assert done.returncode == 0, done.stderr
    anew = load_cluster("other")
    assert (anew.ports["gateway"], anew.token == old) == (port, False)

    async def attach() -> None:
        session = await DapSession.connect(anew.gateway_host, port)
        await session.request("initialize")
        with pytest.raises(RequestFailed, match="the token is not this cluster's"):
            await session.request("attach", {"token": old, "target": "next"})
        await session.close()

    asyncio.run(attach())
    urls = [f"http://127.0.0.1:{port}/pauses"]
    if has_token_mode(ray.__version__):
        urls.append(f"{anew.dashboard}/api/v0/nodes")
    for url in urls:
        answer = httpx.get(url, headers={"Authorization": f"Bearer {old}"}, trust_env=False, timeout=20)
        assert answer.status_code in (401, 403), url


@pytest.mark.timeout(90)
def test_ctrl_c_stops_the_job(run, dashboard):
    """Ctrl-C at a `run` without a terminal stops the job and exits with 130; none of its workers is left."""
    job = run("--", "python", "cases.py", "task")
    job.pauses(1)
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(30) == 130
    wait_for(lambda: dashboard.paused_workers() == [], "the paused worker to be gone", 15)


def heeds_hangups() -> None:
    """Restore the default action of SIGHUP: under nohup these tests and their child processes ignore it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@LONG
@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGHUP, id="its terminal is closed"),
        pytest.param(signal.SIGTERM, id="terminated"),
        pytest.param(signal.SIGKILL, id="killed"),
    ],
)
def test_run_that_is_gone_takes_its_cluster_with_it(private_state, tmp_path, number):
    """A cluster that `run` started for itself ends with it in every case, with its paused job."""
    (tmp_path / "job.py").write_text("import ray\n\nray.init()\nbreakpoint()\n")
    argv = [str(Path(sys.executable).parent / "raydebug"), "run", "--name", "lost", "--", "python", "job.py"]
    running = subprocess.Popen(argv, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, preexec_fn=heeds_hangups)  # fmt: skip
    assert running.stderr is not None
    assert any("next: raydebug attach" in line for line in running.stderr)
    lost = load_cluster("lost")
    family = local.marked_processes(lost)
    running.send_signal(number)
    running.communicate()
    wait_for(lambda: local.marked_processes(lost) == [], "the cluster to end", 30)
    assert len(family) > 5
    assert not lost.temp_dir.exists()
    assert state.read_record("lost") is None


@pytest.mark.timeout(90)
def test_orphans_are_buried(cluster, private_state, tmp_path):
    """An orphaned process leaves no zombie in a long-lived cluster."""
    code = "import subprocess; print(subprocess.Popen(['sh', '-c', 'sleep 1 & echo $!'], stdout=-1).stdout.readline())"
    done = raydebug("run", "--name", cluster.name, "--", "python", "-c", code)
    orphan = int(re.findall(r"b'(\d+)", done.stdout)[-1])
    wait_for(lambda: not psutil.pid_exists(orphan), f"process {orphan} to be buried", 30)


@pytest.mark.timeout(90)
def test_break_from_outside(run, tmp_path):
    """`--break` stops unedited code of the job: in its workers, in imported modules and in the driver's script."""
    (tmp_path / "lib.py").write_text("def double(x):\n    y = 2 * x\n    return y\n")
    (tmp_path / "job.py").write_text(
        "import ray, lib\n\n@ray.remote\ndef task(x):\n    return lib.double(x)\n\n"
        "print('got', ray.get(task.remote(21)))\n"
    )
    job = run("--break", "lib:double", "--break", "job.py:5", "--", "python", "job.py", cwd=tmp_path)
    (first,) = job.pauses(1)
    assert (first["line"], first["function"]) == (5, "task")
    job.attach(first["id"], "c")
    wait_for(lambda: job.pauses(1)[0]["id"] != first["id"], "the second breakpoint")
    (second,) = job.pauses(1)
    assert (second["line"], second["function"], second["where"]) == (2, "double", "lib:double")
    looked = job.attach(second["id"], "p x", "n", "p y").splitlines()
    assert (looked[0], looked[-1]) == ("21", "42")
    job.attach(second["id"], "c")
    assert "got 42" in job.end()
