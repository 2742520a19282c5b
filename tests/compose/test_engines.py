"""Unusable Docker engines, and engines without disk space: exit code 5 (3 for a full disk) and three lines."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers import UP, what_is_left
from engines import GoingEngine, engine_of
from raydebug.cluster.find import find_cluster
from runs import RAYDEBUG, raydebug, three_lines

# Engines that cannot be used (F49)


def up_with_engine(where: str, name: str, project: Path) -> subprocess.CompletedProcess[str]:
    """Run `up` with another engine."""
    return raydebug(*UP, name, cwd=project, env={**os.environ, "DOCKER_HOST": where})


@pytest.mark.parametrize("where", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1", "nonsense", "ssh://"])
def test_f49_no_engine(project, name, where):
    """F49: if no engine answers at DOCKER_HOST, `up` reports it with the address, exit code 5."""
    done = up_with_engine(where, name, project)
    assert three_lines(done, 5) == "error: the Docker engine is not running"
    assert where in done.stderr
    assert find_cluster(name) is None


def test_f49_engine_too_old(project, name, tmp_path):
    """F49: an engine with API 1.41 is refused, with its version and the required one, exit code 5."""
    with engine_of({"ApiVersion": "1.41", "Version": "20.10.24"}, tmp_path / "s") as where:
        done = up_with_engine(where, name, project)
    assert three_lines(done, 5) == "error: the Docker engine is too old (API 1.41)"
    assert "engine 20.10.24" in done.stderr
    assert "1.44 (engine 25) is needed" in done.stderr


def test_f49_engine_says_nothing(project, name, tmp_path):
    """F49: `up` gives up on a silent engine after 10 s, exit code 5."""
    started = time.monotonic()
    with engine_of(None, tmp_path / "s") as where:
        done = up_with_engine(where, name, project)
    assert three_lines(done, 5) == "error: the Docker engine does not answer"
    assert time.monotonic() - started < 20


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder writable by every user."""
    folder = Path(tempfile.mkdtemp(prefix="fx-"))
    folder.chmod(0o1777)  # like /tmp: without the sticky bit raydebug refuses to keep state there
    yield folder
    shutil.rmtree(folder)


def test_f49_no_permission(project, name, tmp_path, open_folder):
    """F49: for a socket without access `up` exits with 5 and names the group to join."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0o000)
        # Another user may not read this environment: the first run loads the imports for the second.
        code = "import contextlib, os, sys, raydebug.cli\nsys.argv[0] = 'raydebug'\n"
        code += "where = os.environ.pop('DOCKER_HOST')\n"
        code += "os.environ['DOCKER_HOST'] = 'unix:///nowhere/s'\n"
        code += "with contextlib.suppress(SystemExit): raydebug.cli.main()\n"
        code += f"os.environ.update(DOCKER_HOST=where, XDG_STATE_HOME={str(open_folder / 'second')!r})\n"
        code += "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n" if os.getuid() == 0 else ""
        code += "raydebug.cli.main()"
        code = f"import os; os.environ['XDG_STATE_HOME'] = {str(open_folder / 'first')!r}\n{code}"
        environment = {**os.environ, "DOCKER_HOST": f"unix://{path}"}
        done = subprocess.run([sys.executable, "-c", code, *UP, name], capture_output=True, text=True, timeout=50,
                              cwd="/", env=environment, check=False)  # fmt: skip
    assert three_lines(done, 5) == "error: no permission to use the Docker engine"
    assert "usermod -aG docker" in done.stderr


def test_f49_no_docker_program(project, name):
    """F49: without a `docker` on PATH `up` reports that, exit code 5."""
    done = raydebug(*UP, name, cwd=project, env={**os.environ, "PATH": "/nowhere"})
    assert three_lines(done, 5) == "error: docker is not installed"


@pytest.mark.parametrize("verb", ["ps", "logs", "down"])
def test_f49_engine_gone_later(cluster, project, verb):
    """F49: with a recorded cluster and no engine, `ps` and `down` exit with 5, without a traceback."""
    environment = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = raydebug(verb, "--name", cluster.name, cwd=project, env=environment)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    if verb != "logs":
        assert three_lines(done, 5) == "error: the Docker engine is not running"
    assert find_cluster(cluster.name) is not None


# An engine that restarts while a verb runs (F49)


@pytest.fixture
def going_engine(tmp_path) -> Iterator[GoingEngine]:
    """This machine's engine behind a relay that can be closed."""
    engine = GoingEngine(tmp_path / "docker.sock")
    engine.come()
    yield engine
    engine.go()


def up_until(phase: str, engine: GoingEngine, name: str, project: Path) -> subprocess.Popen[str]:
    """Start `up` with this engine and return when it has reported this phase."""
    process = subprocess.Popen(
        [str(RAYDEBUG), *UP, name, "--workers", "0"], cwd=project, env={**os.environ, "DOCKER_HOST": engine.where},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if phase in line:
            return process
    raise AssertionError(f"it did not come to '{phase}'")


def end_of(process: subprocess.Popen[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Wait for the end of a command and return its result."""
    printed, said = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(process.args, process.returncode, printed, said)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("phase", "away_s"), [("creating containers", 1), ("head starting", 5)])
def test_f49_engine_restarts_during_up(project, name, going_engine, phase, away_s):
    """F49: if the engine restarts while `up` creates containers or waits for nodes, `up` waits for it and succeeds."""
    process = up_until(phase, going_engine, name, project)
    going_engine.go()
    time.sleep(away_s)
    going_engine.come()
    done = end_of(process, 150)
    assert done.returncode == 0, done.stderr
    if phase == "head starting":
        assert "the Docker engine does not answer; waiting for it" in done.stderr


@pytest.mark.timeout(180)
@pytest.mark.parametrize("phase", ["creating containers", "head starting"])
def test_f49_engine_ends_during_up(project, name, going_engine, phase):
    """F49: if the engine ends during `up`, the exit code is 5 within 40 s, and the named clean-up command works."""
    process = up_until(phase, going_engine, name, project)
    started = time.monotonic()
    going_engine.go()
    done = end_of(process, 60)
    assert three_lines(done, 5) == f"error: the Docker engine went away while cluster '{name}' came up"
    assert time.monotonic() - started < 40
    if find_cluster(name) is not None:
        cleared = raydebug("down", "--name", name)
        assert cleared.returncode == 0, cleared.stderr
    assert what_is_left(name).keys() <= {"volumes"}


@pytest.mark.timeout(180)
def test_f49_engine_restarts_during_down(project, name, going_engine):
    """F49: if the engine ends during `down`, it exits with 5 in three lines; the record stays, the next one works."""
    assert raydebug(*UP, name, "--workers", "0", cwd=project, timeout=120).returncode == 0
    environment = {**os.environ, "DOCKER_HOST": going_engine.where}
    argv = [str(RAYDEBUG), "down", "--name", name]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "ending cluster" in process.stderr.readline()
    going_engine.go()
    assert three_lines(end_of(process, 60), 5) == "error: the Docker engine is not running"
    assert find_cluster(name) is not None
    assert raydebug("down", "--name", name).returncode == 0
    assert what_is_left(name).keys() <= {"volumes"}


# Full disks (F51)


def up_with_small_disk(folder: Path, name: str, project: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `up` with a disk of 8 MiB mounted at a folder, for this command only."""
    outside = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*outside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount of our own can be made here (unshare --mount)")
    script = 'mount -t tmpfs -o size=8m tmpfs "$0" && exec "$@"'
    argv = [*outside, "sh", "-c", script, str(folder), str(RAYDEBUG), *UP, name]
    return subprocess.run(
        argv, cwd=project, env={**os.environ, **variables}, capture_output=True, text=True, timeout=50, check=False
    )


def test_f51_state_folder_full(project, name, tmp_path):
    """F51: with too little space for raydebug's own files `up` creates nothing and names the folder, exit code 3."""
    done = up_with_small_disk(tmp_path, name, project, XDG_STATE_HOME=str(tmp_path))
    assert three_lines(done, 3) == "error: the disk of raydebug's state is full"
    assert f"cause: {tmp_path / 'raydebug' / 'clusters'} has " in done.stderr
    assert "creating containers" not in done.stderr
    assert what_is_left(name) == {}
