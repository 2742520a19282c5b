"""A local cluster with umask 0, beside another user, on a busy machine, and with killed parts."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raydebug.cluster import local, state
from raydebug.cluster.find import load_cluster
from raydebug.cluster.state import Cluster
from raydebug.cluster.supervisor import RESTARTS
from raydebug.cluster.up import choose_ports
from runs import RAYDEBUG, Run, raydebug, starting_runs, wait_for
from traps import set_traps

pytestmark = pytest.mark.timeout(300)
STRANGER = f"raydebug-test-{os.getpid()}"  # two test runs may share a host
LONG = "RAYDEBUG_TEST_LONG" in os.environ
JOB = """
import ray

ray.init(runtime_env={"working_dir": "."})

@ray.remote
def task(number):
    print("printed by task", number)
    import helper
    breakpoint()
    return helper.NAME

print("the code is", ray.get([task.remote(number) for number in (1, 2)]), flush=True)
ray.get(task.remote(3))
"""


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose modules nobody may import; the mark that one leaves there."""
    return set_traps(tmp_path_factory.mktemp("traps"))


@pytest.fixture(scope="module")
def open_cluster(private_state: Path, traps: Path) -> Iterator[Cluster]:
    """A cluster with pre-forked processes, started by `raydebug up` with umask 0 in a folder of traps."""
    ports = ("--dashboard-port", "0", "--gateway-port", "0")
    done = raydebug("up", "--cluster", "local", "--name", "open", "--prefork", *ports, umask=0, cwd=traps.parent)
    assert done.returncode == 0, done.stderr
    found = load_cluster("open")
    try:
        yield found
    finally:
        family = local.marked_processes(found)
        assert raydebug("down", "--name", "open").returncode == 0
        assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        assert not found.temp_dir.exists()


@pytest.fixture(scope="module")
def job(open_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A job with its own working dir, paused in two tasks."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "job.py").write_text(JOB)
    (folder / "helper.py").write_text("NAME = 'the owner\\'s'\n")
    with starting_runs(open_cluster) as start:
        running = start("--", "python", "job.py", cwd=folder)
        running.pauses(2)
        yield running


@pytest.fixture(scope="module")
def stranger() -> Iterator[pwd.struct_passwd]:
    """Another user of this host, made for the test."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a second user")
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/false", STRANGER], check=True)
    try:
        yield pwd.getpwnam(STRANGER)
    finally:
        subprocess.run(["userdel", STRANGER], check=True)


def refused(user: pwd.struct_passwd, attempts: dict[str, Callable[[], object]]) -> dict[str, str]:
    """Make attempts as another user, in a child process; return the error of each, or its success."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        found = {}
        try:
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            for name, attempt in attempts.items():
                try:
                    attempt()
                    found[name] = "succeeded"
                except OSError as error:
                    found[name] = type(error).__name__
            os.write(writing, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


def test_a_cluster_imports_nothing_of_its_folder(open_cluster: Cluster, job: Run, traps: Path) -> None:
    """Supervisor, gateway, Ray and the pre-forked processes import no module of the folder they were started in."""
    assert not traps.exists(), traps.read_text()


def test_s4_another_user(open_cluster: Cluster, job: Run, stranger: pwd.struct_passwd) -> None:
    """S4: another user can neither list, read, replace nor write any file of a cluster, nor reach its sockets."""
    base = open_cluster.temp_dir
    everything = [base, *base.rglob("*")]
    (package,) = {path.parent for path in everything if path.name == "helper.py"}
    (printed,) = [p for p in everything if p.suffix == ".out" and "printed by task 1" in p.read_text()]
    logs = printed.parent

    def replace_code() -> None:
        package.rename(package.with_suffix(".old"))
        package.mkdir()
        (package / "helper.py").write_text("NAME = 'the stranger\\'s'\n")

    attempts: dict[str, Callable[[], object]] = {
        "list": lambda: list(base.iterdir()),
        "list logs": lambda: list(logs.iterdir()),
        "replace the code of a job": replace_code,
        "plant a link among the logs": lambda: (logs / "runtime_env_setup-09000000.log").symlink_to("/etc/motd"),
        "read what a job printed": printed.read_text,
        "make a file": lambda: (package / "sitecustomize.py").write_text(""),
        "rename the folder": lambda: base.rename(base.with_name("rd-mine")),
        "remove the pool's socket": open_cluster.pool_socket.unlink,
        "read the token": open_cluster.token_file.read_text,
        "read the log of the gateway": (open_cluster.folder / "gateway.log").read_text,
        **{f"see {p}": p.lstat for p in everything if p != base},
        **{f"connect to {p}": lambda p=p: socket.socket(socket.AF_UNIX).connect(str(p)) for p in everything
           if p.is_socket()},
    }  # fmt: skip
    assert open_cluster.pool_socket in everything
    assert len([p for p in everything if p.is_socket()]) > 5
    assert set(refused(stranger, attempts).values()) == {"PermissionError"}


@pytest.mark.long
def test_port_that_is_taken_meanwhile(private_state: Path) -> None:
    """A port that another program takes between its choice and Ray's start costs a second start, not the cluster."""
    argv = [RAYDEBUG, "up", "--cluster", "local", "--name", "meanwhile", "--dashboard-port", "0", "--gateway-port", "0"]
    starting = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: state.read_record("meanwhile") is not None, "the record")
        with socket.create_server(("127.0.0.1", state.read_record("meanwhile").ports["dashboard"])) as taken:
            said = starting.communicate(timeout=200)[0]
            assert starting.returncode == 0, said
            assert "the port of the dashboard meanwhile" in said
            assert load_cluster("meanwhile").ports["dashboard"] != taken.getsockname()[1]
    finally:
        starting.kill()
        raydebug("down", "--name", "meanwhile")


def test_socket_paths_fit(open_cluster: Cluster) -> None:
    """With the longest temp dir, the paths of Ray's sockets still fit in the limit of a unix socket's path."""
    ray_dir = open_cluster.ray_dir
    sockets = [p for p in ray_dir.glob("session_2*/**/*") if p.is_socket()]
    pid = sockets[0].relative_to(ray_dir).parts[0].rpartition("_")[2]
    added_bytes = max(len(str(p)) - len(str(ray_dir)) for p in sockets) + len("4194304") - len(pid)
    assert added_bytes <= 107 - local.TEMP_PATH_BYTES
    assert len(str(ray_dir)) <= local.TEMP_PATH_BYTES


def process_of(cluster: Cluster, program: str) -> psutil.Process:
    """Return a cluster's process by its name."""
    for one in psutil.Process(cluster.supervisor_pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if one.name() == program:
                return one
    raise AssertionError(f"there is no {program}")


def nodes() -> list[dict[str, Any]]:
    return json.loads(raydebug("ps", "--name", "open", "--json").stdout)["nodes"]


def look_at_both(job: Run) -> None:
    """Attach to both pauses, one after the other, and leave them paused."""
    shown = [job.attach(pause["id"], "p ('task', number)") for pause in job.pauses(2)]
    assert sorted(re.findall(r"\('task', (\d)\)", "".join(shown))) == ["1", "2"], shown


@pytest.mark.long
@pytest.mark.timeout(900)
def test_busy_machine(open_cluster: Cluster, job: Run) -> None:
    """F62: a temporarily busy machine ends nothing: nodes are alive or slow, and both pauses attach afterwards."""
    count, span_s = (24, 120.0) if LONG else (8, 8.0)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    seen = []
    try:
        deadline = time.monotonic() + span_s
        while time.monotonic() < deadline:
            seen += [(node["state"], node["reason"]) for node in nodes()]
    finally:
        for one in busy:
            one.kill()
            one.wait()
    print(f"`ps` said: {seen}")
    assert {state for state, _ in seen} <= {"alive", "slow"}
    wait_for(lambda: [node["state"] for node in nodes()] == ["alive"], "the node to be alive")
    look_at_both(job)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_stopped_processes_of_ray(open_cluster: Cluster, job: Run) -> None:
    """F62: a raylet and an agent stopped by SIGSTOP for a minute are slow; `ps` reports it, and nothing is ended."""
    stopped = [process_of(open_cluster, program) for program in ("raylet", "ray::DashboardAgent")]
    begin = time.monotonic()
    for one in stopped:
        one.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: [node["state"] for node in nodes()] == ["slow"], "`ps` to say that the node is slow")
        shown = raydebug("ps", "--name", "open")
        time.sleep(max(0.0, begin + 60.0 - time.monotonic()))
    finally:
        for one in stopped:
            one.send_signal(signal.SIGCONT)
    assert (shown.returncode, bool(re.search(r"slow: no answer for \d+ s", shown.stdout))) == (0, True), shown.stdout
    wait_for(lambda: [node["state"] for node in nodes()] == ["alive"], "the node to be alive")
    look_at_both(job)
    log = (open_cluster.folder / "supervisor.log").read_text()
    assert log.count("Ray is slow: no answer for ") == log.count("Ray answers again after ") >= 1


def test_gateway_that_keeps_dying(open_cluster: Cluster, job: Run) -> None:
    """F61: a gateway that dies six times in ten minutes stays down until `up`; Ray, the job and its pause survive."""
    pids = {pause["pid"] for pause in job.pauses(2)}
    seen: set[int] = set()

    def gateways() -> list[psutil.Process]:
        found = []
        for one in psutil.Process(open_cluster.supervisor_pid).children():
            with contextlib.suppress(psutil.Error):
                if one.pid not in seen and "raydebug.gateway" in one.cmdline():
                    found.append(one)
        return found

    for _ in range(RESTARTS + 1):
        wait_for(lambda: len(gateways()) == 1, "a gateway")
        (gateway,) = gateways()
        seen.add(gateway.pid)
        gateway.kill()
    wait_for(lambda: raydebug("ps", "--name", "open").returncode == 1, "`ps` to say that the gateway is down")
    shown = raydebug("ps", "--name", "open").stdout
    assert "the gateway is down: it has ended 6 times within 10 minutes, the last time with signal 9 (Killed)" in shown
    assert "`raydebug up --name open` starts it again" in shown
    document = json.loads(raydebug("ps", "--name", "open", "--json").stdout)
    assert (document["gateway"]["state"], document["nodes"][0]["state"]) == ("down", "alive")
    assert gateways() == []
    assert job.process.poll() is None
    assert all(psutil.pid_exists(pid) for pid in pids)
    again = raydebug("up", "--cluster", "local", "--name", "open")
    assert again.returncode == 0, again.stderr
    assert json.loads(raydebug("ps", "--name", "open", "--json").stdout)["gateway"]["state"] == "up"
    listed = job.pauses(2)
    assert {pause["pid"] for pause in listed} == pids
    for pause in listed:
        job.attach(pause["id"], "c")
    wait_for(lambda: 'the code is ["the owner\'s", "the owner\'s"]' in job.text, "the job's answer", run=job)


@pytest.mark.long
def test_cluster_of_two_runs(private_state: Path, tmp_path: Path) -> None:
    """Two `run`s without a cluster share one: it outlives the first, `up` takes it over, and then it stays."""
    name = "owned"
    ports = choose_ports({"dashboard": 0, "gateway": 0}, {}, ())
    (state.make_folder(name) / "ports.json").write_text(json.dumps(ports))  # not the default ones
    jobs = {}
    for job in ("first", "second"):
        wait = (
            "import os, sys, time; print('begun', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"
        )
        with (tmp_path / f"{job}.log").open("wb") as log:
            argv = [str(RAYDEBUG), "run", "--name", name, "--", "python", "-c", wait, str(tmp_path / job)]
            jobs[job] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def end(job: str) -> str:
        (tmp_path / job).touch()
        code = jobs[job].wait(60)
        text = (tmp_path / f"{job}.log").read_text()
        assert code == 0, text
        return text

    try:
        for job in jobs:
            wait_for(lambda job=job: "\nbegun\n" in (tmp_path / f"{job}.log").read_text(), f"{job} to begin")
        owner = load_cluster(name).owner
        assert owner in {process.pid for process in jobs.values()}
        first, second = sorted(jobs, key=lambda job: jobs[job].pid != owner)
        assert "cluster 'owned' ends with the last `run` that uses it" in end(first)
        taken = raydebug("up", "--cluster", "local", "--name", name)
        assert taken.returncode == 0, taken.stderr
        assert f"`raydebug run` (pid {owner}) has started it; it stays now until `raydebug down`" in taken.stderr
        assert "ending" not in end(second)
        assert (load_cluster(name).owner, local.is_alive(load_cluster(name))) == (0, True)
    finally:
        for process in jobs.values():
            process.kill()
            process.wait()
        raydebug("down", "--name", name)
