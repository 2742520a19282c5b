"""What is remembered of clusters, and the cluster that one can be inside of."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import select
import subprocess
import sys

import pytest

import runs
from raydebug import process
from raydebug.cli import launch, options, up
from raydebug.cluster import local, locks, private_folders, state
from raydebug.cluster import up as cluster_up
from raydebug.cluster.compose import engine, lifecycle
from raydebug.cluster.compose.engine import Container
from raydebug.cluster.find import choose_name, cluster_at, find_cluster, load_cluster
from raydebug.cluster.kinds import ComposeKind, kind_of
from raydebug.cluster.up import UpOptions, choosing_ports, remembered_ports
from raydebug.errors import RaydebugError, UsageError
from raydebug.runs.folder import RunFolder


@pytest.fixture(autouse=True)
def private_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_token_is_private_and_fresh():
    """A token is 256 bits, for its owner alone, and never written through a file or a link that lies there."""
    folder = state.make_folder("x")
    victim = folder / "victim"
    victim.write_text("mine")
    (folder / "token").symlink_to(victim)
    first = state.make_token(folder).read_text()
    assert (len(first), victim.read_text()) == (64, "mine")
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    assert state.clusters_dir().stat().st_mode & 0o777 == 0o700
    assert state.make_token(folder).read_text() != first


def test_damaged_record():
    """A record that cannot be read is an error that names the folder to remove."""
    folder = state.make_folder("broken")
    (folder / "cluster.json").write_text('{"name": 1')
    with pytest.raises(RaydebugError) as failure:
        load_cluster("broken")
    assert failure.value.fix == f"remove the folder {folder}"


@pytest.mark.parametrize("name", ["a\nfix: rm -rf /\x1b[2J", "$(x)", "; x", "`x`", "../other", "-v", "a b", ""])
def test_bad_name_is_shown_on_one_line(name):
    """S27: a name that cannot be a folder is refused, with what cannot be seen in it made visible."""
    with pytest.raises(RaydebugError) as failure:
        load_cluster(name)
    assert failure.value.what == f"{name!r} cannot be a cluster's name"


def test_state_that_cannot_be_written(tmp_path, monkeypatch):
    """A state folder that cannot be made or written is three lines with its path, not a fault of raydebug's own."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(RaydebugError) as failure:
        state.make_folder("mine")
    assert str(failure.value) == (
        "error: raydebug cannot write its state\n"
        f"cause: {tmp_path / 'file' / 'raydebug' / 'clusters'}: Not a directory\n"
        "fix: make the folder yours, or name another one: XDG_STATE_HOME=DIR"
    )
    assert failure.value.exit_code == 2
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (state.clusters_dir(make=True) / "mine.lock").mkdir()
    with pytest.raises(RaydebugError, match="cannot write its state"), locks.only_one("mine"):
        pass


def test_lock_of_a_name():
    """A name whose `up` is at work cannot be brought up a second time; the lock goes with its holder."""
    with locks.only_one("x"), pytest.raises(RaydebugError, match="another `raydebug up`"), locks.only_one("x"):
        pass
    with locks.only_one("x"):
        pass


def test_file_system_without_locks(monkeypatch):
    """A state folder that cannot be locked is named, and is not taken for another `up` at work."""

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    for wait in (False, True):
        with pytest.raises(RaydebugError) as failure, locks.only_one("mine", wait=wait):
            pass
        assert failure.value.code == "state.no-locks"
        assert failure.value.cause == f"{state.clusters_dir() / 'mine.lock'}: No locks available"
        assert "XDG_STATE_HOME" in failure.value.fix


def test_cluster_around_us(tmp_path, monkeypatch):
    """In a Dev Container the environment names the cluster; it is reached there, and not ended from there."""
    token = tmp_path / "token"
    token.write_text("t" * 64)
    monkeypatch.setenv("RAYDEBUG_DASHBOARD", "http://head:8265")
    monkeypatch.setenv("RAYDEBUG_GATEWAY_CLIENTS", "gateway:5678")
    assert find_cluster("default") is None, "without a token's file it is no cluster of ours"
    monkeypatch.setenv("RAYDEBUG_TOKEN_PATH", str(token))
    found = load_cluster()
    assert (found.dashboard, found.gateway_host, found.gateway_port) == ("http://head:8265", "gateway", 5678)
    assert (found.token, found.kind) == ("t" * 64, "joined")
    with pytest.raises(RaydebugError, match="not ended from inside"):
        kind_of(found).take_down()


BROKEN = ('{"name": 1', "[]", "null", '{"folder": "/x", "temp_dir": "/x", "ports": []}', "\udc80")


@pytest.mark.parametrize("text", BROKEN)
def test_broken_record_of_another_name(text, capsys):
    """A record that cannot be read stops no cluster of another name: its ports are left out, with a warning."""
    record = state.make_folder("broken") / "cluster.json"
    record.write_text(text, errors="surrogateescape")
    foreign = state.clusters_dir() / "Not.A.Name"
    foreign.mkdir()
    (foreign / "cluster.json").write_text("{}")
    (state.make_folder("folder") / "cluster.json").mkdir()
    with choosing_ports("mine") as taken:
        assert taken == []
    said = capsys.readouterr().err.splitlines()
    assert sorted(line.partition(",")[0] for line in said) == [
        "warning: the record of cluster 'broken' cannot be read",
        "warning: the record of cluster 'folder' cannot be read",
    ]
    assert sorted(state.known_names()) == ["broken", "folder"]
    with pytest.raises(RaydebugError, match="there is no cluster 'mine'"):
        load_cluster("mine")


def test_damaged_ports_and_status():
    """Remembered ports and a status that cannot be read count as none."""
    made = cluster("mine")
    (made.folder / "ports.json").write_text("[1]")
    (made.folder / "status.json").write_text("[]")
    assert remembered_ports(made.folder) == {}
    assert state.read_status(made)["phase"] == "starting"


def cluster(name: str, **fields: object) -> state.Cluster:
    """Return a cluster that is recorded."""
    folder = state.make_folder(name)
    ports = {"dashboard": 1, "gateway": 2}
    made = state.Cluster(name, "id", "local", folder, folder / "t", sys.executable, ports, 1, 0, "off", "core", 0.0)
    made = dataclasses.replace(made, **fields)
    state.save_cluster(made)
    return made


@pytest.mark.parametrize(
    ("there", "given", "variable", "read", "run"),
    [
        ([], None, None, "default", "default"),
        (["a"], None, None, "a", "a"),
        (["a", "of-a-run", "joined"], None, None, "default", "a"),
        (["joined"], None, None, "joined", "default"),
        (["of-a-run"], None, None, "of-a-run", "default"),
        (["ended"], None, None, "ended", "default"),
        (["a", "default"], None, None, "default", "default"),
        (["a", "b"], None, None, "default", "these run: a, b"),
        (["a"], None, "b", "b", "b"),
        (["a"], "c", "b", "c", "c"),
    ],
)
def test_cluster_that_a_verb_is_for(there, given, variable, read, run, monkeypatch):
    """--name, RAYDEBUG_CLUSTER, `default`, the only one; a verb that runs takes it only if `up` has started it."""
    monkeypatch.setattr(local, "is_alive", lambda cluster: cluster.name != "ended")
    for name in there:
        far = {"kind": "joined", "remote": state.Remote("http://head:8265", "", "")} if name == "joined" else {}
        state.save_cluster(dataclasses.replace(cluster(name), owner=7 if name == "of-a-run" else 0, **far))
    if variable:
        monkeypatch.setenv("RAYDEBUG_CLUSTER", variable)
    assert choose_name(given) == read
    refused = pytest.raises(UsageError, match=run) if "these run" in run else contextlib.nullcontext()
    with refused:
        assert choose_name(given, options.is_started) == run


def test_verbs_say_which_cluster_they_take():
    """`run` says which cluster it takes, `down` takes none by itself; without a choice the names are listed."""
    cluster("a", supervisor_pid=os.getpid(), supervisor_birth=process.birth_of(os.getpid()))
    assert "on cluster 'a', the only one that `up` has started" in runs.raydebug("run", "--", "no-such-program").stderr
    ended = runs.raydebug("down").stderr
    assert "there is no cluster 'default'\ncause: these run: a" in ended
    cluster("b")
    assert "these run: a, b" in runs.raydebug("paused").stderr


@pytest.mark.parametrize("verb", [["paused"], ["ps", "--processes"], ["job", "list"], ["break", "list"], ["stacks"]])
def test_token_that_is_gone(verb):
    """Where the token's file is gone, every verb that needs it says so in three lines, with its name."""
    made = cluster("mine")
    done = runs.raydebug(*verb, "--name", "mine")
    assert (done.returncode, done.stderr.splitlines()[-3:]) == (
        2,
        [
            "error: the token of cluster 'mine' cannot be read",
            f"cause: {made.token_file}: No such file or directory",
            "fix: `raydebug down --name mine`, then `raydebug up --name mine` makes a new one",
        ],
    )


def test_reading_makes_no_folder(tmp_path, monkeypatch):
    """What only reads works where the state folder cannot be made, and makes none where it could."""
    assert (find_cluster("mine"), state.known_names()) == (None, [])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert (find_cluster("mine"), state.known_names()) == (None, [])
    assert cluster_at("127.0.0.1:1").dashboard == "http://127.0.0.1:1"


HOLDER = "import sys; from raydebug.cluster.locks import Use\nwith Use('mine'): print(flush=True); sys.stdin.read()"


def test_use_of_a_cluster():
    """Only the last user of a cluster may end it; one that is killed uses it no longer; others wait, and say so."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    with locks.Use("mine") as use:
        assert not use.is_last()
        holder.kill()
        holder.communicate()
        assert use.is_last()
        waiting = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        assert waiting.stdout is not None
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == b"cluster 'mine' is being ended: waiting for it\n"
        assert select.select([waiting.stdout], [], [], 0.5)[0] == []
    assert waiting.communicate(timeout=30)[0] == b"\n"


@pytest.mark.parametrize(
    ("owner", "ends"), [(4711, True), (0, False)], ids=["nobody has taken it over", "`up` has taken it over"]
)
def test_last_run_ends_its_cluster(owner, ends, monkeypatch, capsys):
    """The last `run` that uses a cluster of a `run` ends it, unless `up` has taken it over; another one leaves it."""
    ended: list[str] = []
    monkeypatch.setattr("raydebug.cluster.local.take_down", lambda one: ended.append(one.name))
    started = cluster("mine", owner=4711)
    state.save_cluster(dataclasses.replace(started, owner=owner))
    with locks.Use("mine") as first, locks.Use("mine") as second:
        launch._leave(started, second)
        assert ended == []
        assert capsys.readouterr().err == "cluster 'mine' ends with the last `run` that uses it\n"
        launch._leave(started, first)
    assert ended == (["mine"] if ends else [])


def test_stopped_containers_keep_their_record(monkeypatch):
    """A local cluster does not take the name, nor the record, of a cluster in containers whose head is stopped."""
    monkeypatch.setattr(ComposeKind, "_containers", lambda self: [])  # as an engine says; this test needs none
    made = cluster("mine", kind="compose")
    state.make_token(made.folder)
    for start in (local.bring_up, lambda options: up._bring_up(options, "local")):
        with pytest.raises(RaydebugError, match="'mine' is there, of the kind compose"):
            start(UpOptions(name="mine"))
    assert state.read_record("mine") == made
    assert made.token_file.exists()


@pytest.mark.parametrize("phase", ["starting Ray", "up"])
def test_a_cluster_that_is_still_starting(monkeypatch, phase):
    """`up` of a cluster that another `up` has begun waits until it is up."""
    made, waited = cluster("mine", kind="local"), []
    monkeypatch.setattr(cluster_up, "find_cluster", lambda _: made)
    monkeypatch.setattr(local, "is_alive", lambda _: True)
    monkeypatch.setattr(state, "read_status", lambda _: {"phase": phase})
    monkeypatch.setattr(cluster_up, "wait_until_up", lambda name, *_, **__: waited.append(name))
    assert local.bring_up(UpOptions(name="mine")) == (made, False)
    assert waited == ([] if phase == "up" else ["mine"])


@pytest.mark.parametrize("value", ["1h", "nan", "-1"])
def test_a_limit_that_is_no_number(monkeypatch, value):
    """A time limit of pauses that the gateway could not read is refused before anything starts."""
    monkeypatch.setenv("PAUSE_LIMIT_S", value)
    with pytest.raises(UsageError, match=f"PAUSE_LIMIT_S={value} is not a number of seconds"):
        local._plan(UpOptions(name="mine"), "", None)


@pytest.mark.parametrize("name", ["../../x", "/x", "..", "a/b", "a\0b"])
def test_a_job_whose_name_is_a_path(name):
    """A dashboard's name of a job leads to no folder outside of the runs'."""
    with pytest.raises(OSError, match="is no name of a folder"):
        RunFolder(name)


def test_a_local_cluster_keeps_its_record(monkeypatch):
    """Containers do not take the name, nor the record, of a cluster of another kind."""
    monkeypatch.setattr(engine, "connect_to_change", lambda: None)
    made = cluster("mine", kind="local")
    state.save_cluster(made)
    with pytest.raises(RaydebugError, match="'mine' is there, of the kind local"):
        lifecycle.bring_up(UpOptions(name="mine"))
    assert state.read_record("mine") == made


def test_logs_of_a_failed_start_outlive_it():
    """Logs of a cluster that failed are kept, the end of each, when its own folders are removed."""
    made = cluster("mine")
    made.ray_logs.mkdir(parents=True)
    (made.ray_logs / "dashboard.log").write_text("x" * state.KEPT_LOG_BYTES + "the end")
    (made.folder / "ray.log").write_text("Exception: The current node timed out")
    kept = state.keep_logs(made)
    private_folders.remove_private(made.temp_dir)
    state.forget(made)
    assert (kept / "ray.log").read_text() == "Exception: The current node timed out"
    assert (kept / "ray" / "dashboard.log").read_text().endswith("xthe end")
    assert (kept / "ray" / "dashboard.log").stat().st_size == state.KEPT_LOG_BYTES
    assert kept.stat().st_mode & 0o777 == 0o700


class EngineOfOne:
    """An engine with one container, which has ended."""

    def containers(self, project: str) -> list[Container]:
        return [Container("1", f"{project}-head-1", "head", "exited", "", 1, "")]

    def last_words(self, container: Container) -> str:
        return "why"

    def log_end(self, container: Container) -> bytes:
        return b"first\nwhy\n"


def test_logs_of_containers_outlive_them():
    """A start of containers that failed keeps their logs, as a local one does, and names the place."""
    made = cluster("mine", kind="compose")
    with pytest.raises(RaydebugError, match="raydebug-mine-head-1 did not start") as failure:
        lifecycle.wait_until_ready(EngineOfOne(), made, lambda _: None)
    kept = state.kept_logs("mine")
    assert failure.value.fix == f"read the logs in {kept}"
    assert (kept / "raydebug-mine-head-1.log").read_text() == "first\nwhy\n"
