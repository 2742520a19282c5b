"""`raydebug up --join`: a Ray cluster that somebody else has started, with and without a token."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest

from environments import with_ray
from foreign_ray import LOOPBACK, ForeignRay, cluster_of, foreign_ray, outer_address, python_without_raydebug
from raydebug.cluster.dashboard import ENDED, Dashboard
from raydebug.cluster.kinds import kind_of
from raydebug.cluster.runner import run_on_each
from raydebug.cluster.state import Cluster, read_record
from raydebug.process import CommandFailed
from raydebug.settings.flavours import has_token_mode
from runs import JOBS, Run, raydebug, starting_runs, three_lines, wait_for

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def with_token() -> Iterator[ForeignRay]:
    """A head that asks for a token, at this machine's address in its network."""
    with foreign_ray(with_token=True, ip=outer_address()) as head:
        yield head


@pytest.fixture(scope="module")
def without_token() -> Iterator[ForeignRay]:
    """A head that asks for none."""
    with foreign_ray(with_token=False) as head:
        yield head


def join(head: ForeignRay, name: str, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run `raydebug up --join` as a user of the cluster, with any free port."""
    arguments = ("up", "--join", head.url, "--name", name, "--gateway-port", "0", *options)
    return raydebug(*arguments, **{"env": head.environ, **more})


def joined(head: ForeignRay, name: str) -> Cluster:
    """Join, and return the record."""
    done = join(head, name)
    assert done.returncode == 0, done.stdout + done.stderr
    found = read_record(name)
    assert found is not None
    return found


def ask(cluster: Cluster, verb: str, *arguments: str, code: int = 0) -> str:
    """Run a verb on a cluster from outside, without any variable of it, and return what it printed."""
    done = raydebug(*verb.split(), "--name", cluster.name, *arguments, cwd=JOBS)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def folders() -> set[Path]:
    """Return the folders of tokens on this host."""
    return {
        path for path in Path("/tmp").glob("raydebug-*") if re.fullmatch("[0-9a-f]{32}", path.name.partition("-")[2])
    }


def own_jobs(head: ForeignRay, name: str) -> list[str]:
    """Return all rows of Ray's table of jobs that are raydebug's own."""
    cluster = read_record(name)
    assert cluster is not None
    return [str(job["submission_id"]) for job in Dashboard(cluster).own_jobs("")]


@pytest.mark.long
@pytest.mark.skipif(not has_token_mode(version("ray")), reason="this Ray has no token")
def test_a_cluster_with_token(with_token, tmp_path):
    """Every verb works on a cluster that was joined, from outside of it, and `down` leaves it as it was."""
    head, before = with_token, folders()
    processes = head.programs()
    worker = head.start_worker(python_without_raydebug(tmp_path / "bare"))
    wait_for(lambda: _nodes(head) == 2, "the second node")
    lacks = join(head, "tok")
    assert three_lines(lacks, 1) == "error: raydebug is not usable in the Python of all nodes"
    assert f"cause: {head.ip}: its Python 3." in lacks.stderr
    assert "/bare/bin/python) has no raydebug" in lacks.stderr
    assert "RUN pip install ./raydebug-" in lacks.stderr
    assert folders() <= before  # also on the node that could have been used
    assert read_record("tok") is None
    head.end(worker)
    wait_for(lambda: _nodes(head) == 1, "the end of the second node")

    began = time.monotonic()
    cluster = joined(head, "tok")
    print(f"up --join took {time.monotonic() - began:.1f} s")
    assert cluster.token == head.token
    assert cluster.remote.dial.startswith(f"{head.ip}:")
    folder = Path(cluster.remote.folder)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "token")] == [0o700, 0o600]
    assert _addresses(cluster.gateway_port) == {LOOPBACK}
    assert _addresses(int(cluster.remote.dial.rpartition(":")[2])) == {head.ip}

    with starting_runs(cluster) as run:
        _debug(cluster, run)
    assert "env     passed" in ask(cluster, "check env")
    assert "listening: clients on 127.0.0.1:" in ask(cluster, "logs")
    listed = json.loads(ask(cluster, "job list", "--json"))["jobs"]
    assert len(listed) == 2
    assert not [line for line in _command_lines() if head.token in line]
    for log in (head.folder / "r").rglob("*"):
        assert not log.is_file() or head.token.encode() not in log.read_bytes(), log

    assert "it runs on without raydebug" in raydebug("down", "--name", "tok").stderr
    assert head.programs() == processes
    assert folders() <= before
    assert Dashboard(cluster_of(head)).own_jobs("") == []
    assert {job["submission_id"] for job in Dashboard(cluster_of(head)).jobs()} == {job["id"] for job in listed}
    assert read_record("tok") is None


def _debug(cluster: Cluster, run: Callable[..., Run]) -> None:
    """Breakpoints, values, stacks, crashes, snapshots, diagnosis and report."""
    job = run("--break", "working.py:loop", "--", "python", "working.py", "actor", "60")
    (pause,) = job.pauses(1)
    assert pause["function"] == "loop"
    job.attach(pause["id"], "c")
    shown = ask(cluster, "stacks", "--native")
    assert "working.py" in shown
    assert re.search(r" in \S+\.so", shown), "C frames"
    added = ask(cluster, "break add", "working.py:step")
    assert "working.py:" in added
    (pause,) = job.pauses(1)
    assert pause["function"] == "step"
    assert "number" in job.attach(pause["id"], "p sorted(locals())")
    submission_id = _id_of(job)
    ask(cluster, "job stop", submission_id)

    crash = run("--debugger", "post-mortem", "--", "python", "crashes.py", "actor")
    (pause,) = crash.pauses(1)
    assert pause["kind"] == "post-mortem"
    assert "'actor'" in crash.attach(pause["id"], "p value", "c")
    crash.end(1)
    assert "boom in actor" in ask(cluster, "diagnose", _id_of(crash), code=1)
    assert "Actor.method" in raydebug("open", _id_of(crash), "-x", "w").stdout
    page = raydebug("report", _id_of(crash), "--output", str(crash.log) + ".html")
    assert page.returncode == 0, page.stderr
    Path(str(crash.log) + ".html").unlink()


@pytest.mark.long
def test_a_cluster_without_token(without_token, tmp_path):
    """One warning; a second join, a second user and a gateway that is stopped from Ray's dashboard find their way."""
    head, before = without_token, folders()
    done = join(head, "open")
    assert done.returncode == 0, done.stderr
    warning = f"warning: this cluster asks for no token: anyone who reaches {head.url} can run code on its nodes"
    assert done.stderr.count(warning) == 1
    cluster = read_record("open")
    assert cluster is not None
    token = (Path(cluster.remote.folder) / "token").read_text()
    assert token == cluster.token
    assert len(token) == 64
    assert not [line for line in _command_lines() if token in line]

    again = join(head, "open")
    assert "cluster 'open' was joined already" in again.stderr
    other = {**head.environ, "XDG_STATE_HOME": str(tmp_path)}
    far = join(head, "open", "--through", "env A=b", env=other)  # as `ssh HEAD` does
    assert far.returncode == 0, far.stderr
    assert "nothing is paused" in raydebug("paused", "--name", "open", env=other).stderr
    record = tmp_path / "raydebug" / "clusters" / "open" / "cluster.json"
    tunnel = json.loads(record.read_text())["supervisor_pid"]
    assert psutil.pid_exists(tunnel)
    assert len(folders() - before) == 2
    assert len([job for job in own_jobs(head, "open") if "gateway" in job]) == 2

    _stop_gateway(head, cluster)
    refused = raydebug("paused", "--name", "open")
    assert three_lines(refused, 4) == "error: the gateway of cluster 'open' does not answer"
    repair = f"`raydebug up --join {head.url} --name open` starts it again"
    assert repair in refused.stderr
    assert repair in raydebug("run", "--name", "open", "--", "python", "first.py").stderr
    seen = raydebug("ps", "--name", "open")
    assert f"the gateway is down: its job {cluster.remote.job} is STOPPED; {repair}" in " ".join(seen.stdout.split())
    assert "next: raydebug run" not in seen.stderr
    printed = join(head, "open").stderr.splitlines()[-1].strip()
    repaired = read_record("open")
    assert repaired is not None
    assert (repaired.token, repaired.remote.dial) == (cluster.token, cluster.remote.dial)
    _run_their_own(head, printed)

    assert raydebug("down", "--name", "open", env=other).returncode == 0
    assert not psutil.pid_exists(tunnel)
    assert not record.exists()
    assert "nothing is paused" in raydebug("paused", "--name", "open").stderr
    assert raydebug("down", "--name", "open").returncode == 0
    assert folders() <= before
    assert Dashboard(cluster_of(head)).own_jobs("") == []


@pytest.mark.skipif(not has_token_mode(version("ray")), reason="this Ray has no token")
@pytest.mark.skipif(outer_address() == LOOPBACK, reason="Ray has one node on loopback")
@pytest.mark.skipif("RAYDEBUG_TEST_LONG" not in os.environ, reason="two more nodes, two minutes: RAYDEBUG_TEST_LONG=1")
def test_several_nodes(with_token):
    """Each node has the token's file and answers for itself, in one job for all; one that came later is named."""
    head, before = with_token, folders()
    head.start_worker(ip="127.0.0.2")
    wait_for(lambda: _nodes(head) == 2, "the second node")
    cluster = joined(head, "two")
    assert len(cluster.remote.prepared) == 2
    runners = dict(kind_of(cluster).runners())
    assert list(runners) == [head.ip, "127.0.0.2"]
    shows = "import os; print(os.environ['RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES'])"
    fails = "import os; os.kill(os.getpid(), 9)"
    programs = {ip: (runners[ip], ["-c", code]) for ip, code in zip(runners, (shows, fails), strict=True)}
    begun = len(_logs_of_own_jobs(head))
    done = run_on_each(programs, Path("/"))
    assert done[head.ip] == "1\n"
    assert isinstance(done["127.0.0.2"], CommandFailed)
    assert done["127.0.0.2"].return_code == -9
    assert len(_logs_of_own_jobs(head)) == begun + 1
    assert "env     passed" in ask(cluster, "check env")
    assert len(_logs_of_own_jobs(head)) == begun + 3

    head.start_worker(ip="127.0.0.3")
    wait_for(lambda: _nodes(head) == 3, "the third node")
    note = "note: no breakpoints on 127.0.0.3: `up --join` has not prepared it;"
    assert note in raydebug("ps", "--name", "two").stderr
    assert "was joined already" in join(head, "two").stderr
    assert "no breakpoints" not in raydebug("ps", "--name", "two").stderr
    assert raydebug("down", "--name", "two").returncode == 0
    assert folders() <= before
    assert Dashboard(cluster_of(head)).own_jobs("") == []


@pytest.mark.skipif(not has_token_mode(version("ray")), reason="this Ray has no token")
@pytest.mark.skipif("RAYDEBUG_TEST_LONG" not in os.environ, reason="two more heads, a minute: RAYDEBUG_TEST_LONG=1")
def test_ray_that_is_upgraded(tmp_path):
    """Another Ray at the address of a cluster that was joined, now with a token: each verb says so, `up` joins it."""
    with foreign_ray(with_token=False, python=with_ray(tmp_path / "old", "2.52.0")) as head:
        cluster = joined(head, "old")
        assert cluster.ray == "2.52.0"
        head.end(head.started[0])
        head.token = "5" * 64
        (head.folder / "ray_token").write_text(head.token)
        head.start_head()
        for verb in (["ps"], ["paused"], ["run", "--", "python", "first.py"]):
            done = raydebug(verb[0], "--name", "old", *verb[1:], cwd=JOBS)
            assert done.returncode != 0
            assert f"`raydebug up --join {head.url} --name old` starts it again" in done.stdout + done.stderr
        again = joined(head, "old")
        assert (again.ray, again.remote.asks_token) == (version("ray"), True)
        with starting_runs(again) as run:
            job = run("--", "python", "cases.py", "actor")
            (pause,) = job.pauses(1)
            job.attach(pause["id"], "c")
            job.end()
        assert raydebug("down", "--name", "old").returncode == 0


def _logs_of_own_jobs(head: ForeignRay) -> list[Path]:
    return list((head.folder / "r" / "session_latest" / "logs").glob("job-driver-raydebug-nodes-*"))


def _run_their_own(head: ForeignRay, printed: str) -> None:
    """Run a user's own `python program.py` with the variables that `up --join` prints: it pauses in a worker."""
    assert printed.endswith("python train.py")
    program = JOBS / "cases.py"
    environ = {**head.environ, "RAY_ADDRESS": f"{head.ip}:{head.ports['gcs']}"}
    command = printed.replace("train.py", f"{program} actor").replace(" python ", f" {sys.executable} ")
    with subprocess.Popen(command, shell=True, env=environ, cwd=program.parent, stdout=subprocess.DEVNULL) as started:
        wait_for(lambda: "waiting" in raydebug("paused", "--name", "open").stdout, "the pause")
        assert raydebug("attach", "next", "--name", "open", "-x", "c").returncode == 0
        assert started.wait(60) == 0


def _stop_gateway(head: ForeignRay, cluster: Cluster) -> None:
    dashboard = Dashboard(cluster)
    dashboard.stop_job(cluster.remote.job)
    wait_for(lambda: dashboard.job(cluster.remote.job)["status"] in ENDED, "the end of the gateway's job")


def _nodes(head: ForeignRay) -> int:
    return len([node for node in Dashboard(cluster_of(head)).nodes() if node["state"] == "ALIVE"])


def _id_of(run: Run) -> str:
    found = re.search(r"raydebug-\d{6}-[0-9a-f]{6}", run.text)
    assert found is not None
    return found[0]


def _addresses(port: int) -> set[str]:
    """Return the addresses of this machine where something listens on a port."""
    listening = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
    return {one.laddr.ip for one in listening if one.laddr.port == port}


def _command_lines() -> list[str]:
    return [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
