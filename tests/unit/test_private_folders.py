"""Folders that no other user can read or replace: made so under any umask, and checked before Ray starts in one."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raydebug.cluster import local, locks, private_folders, state, supervisor
from raydebug.cluster.state import Cluster
from raydebug.cluster.up import UpOptions, choosing_ports
from raydebug.errors import RaydebugError
from raydebug.prefork import server
from raydebug.settings.files import open_private


@pytest.fixture
def without_umask(tmp_path, monkeypatch):
    """Make files with all the rights that are asked for, in a state folder and a TMPDIR of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home" / "state"))
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    before = os.umask(0)
    yield
    os.umask(before)


def test_s4_state_folders_under_umask_0(without_umask, tmp_path):
    """S4: with umask 0 the state folder, the folders above it and the files of a cluster are the owner's alone."""
    folder = state.make_folder("x")
    state.make_token(folder)
    with locks.only_one("x"), choosing_ports("x"), locks.Use("x"), open_private(folder / "supervisor.log", "wb"):
        pass
    made = state.Cluster("x", "id", "local", folder, tmp_path / "t", sys.executable, {}, 1, 0, "off", "core", 0.0)
    made.temp_dir.mkdir(mode=0o700)
    ports = dict.fromkeys(("dial", "gateway"), 1)
    supervisor.Supervisor(dataclasses.replace(made, ports=ports))._start(["true"], folder / "ray.log").wait()
    state.keep_logs(made)
    planned = local._plan(UpOptions(name="y"), sys.executable, local.Environment("core", "2.60.0"))
    planned.temp_dir.rmdir()
    server.Server(str(made.pool_socket), str(made.pool_status))._write_status()
    modes = {str(p.relative_to(tmp_path)): oct(p.stat().st_mode & 0o777) for p in tmp_path.rglob("*")}
    state.forget(made)
    modes |= {str(p.relative_to(tmp_path)): oct(p.stat().st_mode & 0o777) for p in folder.iterdir()}
    assert set(modes.values()) == {"0o700", "0o600"}, modes
    made_files = {"token", "supervisor.log", "ray.log", "pool.json", "ports.json", "numbers"}
    assert made_files | {"x.lock", "x.use", "ports.lock"} <= {path.rpartition("/")[2] for path in modes}


def test_temp_folder_under_umask_0(without_umask):
    """The folder that holds Ray's is private with umask 0, its name cannot be known before, and Ray's paths fit."""
    made = [private_folders.make_temporary(local.TEMP_PATH_BYTES) for _ in range(2)]
    try:
        assert made[0] != made[1]
        assert {p.stat().st_mode & 0o7777 for p in made} == {0o700}
        assert max(len(str(p)) for p in made) <= local.TEMP_PATH_BYTES - len("/r")
    finally:
        for path in made:
            path.rmdir()


def test_temp_folder_of_a_long_tmpdir(tmp_path, monkeypatch):
    """Where TMPDIR is so long that Ray's sockets would not fit, /tmp is taken."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 40)))
    made = private_folders.make_temporary(local.TEMP_PATH_BYTES)
    made.rmdir()
    assert made.parent == Path("/tmp")


def as_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.mkdir(mode=0o700)
    path.symlink_to(target)


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def of_another_user(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's folder")
    path.mkdir(mode=0o700)
    os.chown(path, 4321, 4321)


def in_a_folder_for_all(path: Path) -> None:
    path.mkdir(mode=0o700)
    path.parent.chmod(0o777)


def in_a_folder_of(path: Path, uid: int, gid: int, mode: int) -> None:
    of_another_user(path)
    os.chown(path, 0, 0)
    os.chown(path.parent, uid, gid)
    path.parent.chmod(mode)


@pytest.mark.parametrize(
    ("plant", "cause", "fix"),
    [
        (as_link, "it is a link to {parent}/elsewhere", "remove the link {path}"),
        (open_to_all, "its mode is 0777, not 0700", "chmod 700 {path}"),
        (of_another_user, "it belongs to uid 4321, not to 0", private_folders.OTHERS.format(4321)),
        (in_a_folder_for_all, "every user may replace what is in {parent} (mode 0777, no sticky bit)",
         "chmod go-w {parent}, or use another folder (TMPDIR, XDG_STATE_HOME, --folder)"),
        (lambda path: in_a_folder_of(path, 0, 4321, 0o2775),
         "the group 4321 may replace what is in {parent} (mode 2775, no sticky bit)",
         "chmod go-w {parent}, or use another folder (TMPDIR, XDG_STATE_HOME, --folder)"),
        (lambda path: in_a_folder_of(path, 4321, 4321, 0o755),
         "uid 4321 may replace what is in {parent} (it is that user's)",
         "use another folder (TMPDIR, XDG_STATE_HOME, --folder)"),
    ],
)  # fmt: skip
def test_supervisor_refuses(tmp_path, monkeypatch, plant: Callable[[Path], None], cause: str, fix: str):
    """A cluster whose temp folder is a link, open, another's or replaceable starts nothing; its status says why."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "t").mkdir()
    path = tmp_path / "t" / "rd-planted"
    plant(path)
    with pytest.raises(RaydebugError) as failure:
        private_folders.check_private(path)
    names = {"path": path, "parent": path.parent}
    assert str(failure.value) == (
        f"error: {path} is not private to you\ncause: {cause.format(**names)}\nfix: {fix.format(**names)}"
    )
    folder = state.make_folder("x")
    state.make_token(folder)
    cluster = Cluster(name="x", id="0", kind="local", folder=folder, temp_dir=path, python=sys.executable,
                      ports=dict.fromkeys(("gateway", "dial"), 1), cpus=1, gpus=0, debugger="breakpoint",
                      flavour="core", created=0.0)  # fmt: skip
    state.save_cluster(cluster)
    supervisor = subprocess.Popen([sys.executable, "-m", "raydebug.cluster.supervisor", "x"])
    try:
        while state.read_status(cluster)["phase"] == "starting" and supervisor.poll() is None:
            time.sleep(0.05)
        status = json.loads((folder / "status.json").read_text())
    finally:
        supervisor.terminate()
        supervisor.wait(20)
    assert (status["phase"], status["reason"]) == ("dead", f"{failure.value.what}: {failure.value.cause}")
    assert path.exists() == (plant in (as_link, of_another_user)), "what is not ours is not removed"
    assert not (folder / "ray.log").exists()
    assert not (folder / "gateway.log").exists()


def test_parents_that_nobody_else_can_write(tmp_path):
    """A parent that only the user's own group may write is none of another user's, and the host's root is nobody's."""
    tmp_path.chmod(0o2775)
    private_folders.make_private(tmp_path / "own")
    argv = ["unshare", "--user", "--map-root-user", sys.executable, "-c"]
    if subprocess.run([*argv, ""], check=False).returncode:
        pytest.skip("no namespaces of users here")
    asks = "from raydebug.settings.files import is_strangers as ask; print(ask(65534), ask(4321))"
    assert subprocess.check_output([*argv, asks], text=True) == "False True\n"


def test_make_refuses_a_planted_link(tmp_path):
    """A state folder that somebody planted as a link to another place is refused, and nothing is written there."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "clusters").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RaydebugError, match="is not private to you"):
        private_folders.make_private(tmp_path / "clusters")
    assert list((tmp_path / "elsewhere").iterdir()) == []
