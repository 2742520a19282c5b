"""What is remembered of clusters, and the cluster that one can be inside of."""

from __future__ import annotations

import pytest

from raydebug.cluster import state
from raydebug.cluster.find import find_cluster, load_cluster
from raydebug.cluster.kinds import kind_of
from raydebug.errors import RaydebugError


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


def test_bad_name_is_shown_on_one_line():
    """A name that cannot be a folder is refused, with what cannot be seen in it made visible."""
    with pytest.raises(RaydebugError) as failure:
        load_cluster("a\nfix: rm -rf /\x1b[2J")
    assert failure.value.what == r"'a\nfix: rm -rf /\x1b[2J' cannot be a cluster's name"


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
    with pytest.raises(RaydebugError, match="cannot write its state"), state.only_one("mine"):
        pass


def test_lock_of_a_name():
    """A name whose `up` is at work cannot be brought up a second time; the lock goes with its holder."""
    with state.only_one("x"), pytest.raises(RaydebugError, match="another `raydebug up`"), state.only_one("x"):
        pass
    with state.only_one("x"):
        pass


def test_cluster_around_us(tmp_path, monkeypatch):
    """In a Dev Container the environment names the cluster; it is reached there, and not ended from there."""
    token = tmp_path / "token"
    token.write_text("t" * 64)
    monkeypatch.setenv("RAYDEBUG_DASHBOARD", "http://head:8265")
    monkeypatch.setenv("RAYDEBUG_DOOR", "gateway:5678")
    assert find_cluster("default") is None, "without a token's file it is no cluster of ours"
    monkeypatch.setenv("RAYDEBUG_TOKEN_PATH", str(token))
    found = load_cluster()
    assert (found.dashboard, found.gateway_host, found.gateway_port) == ("http://head:8265", "gateway", 5678)
    assert (found.token, found.kind) == ("t" * 64, "joined")
    with pytest.raises(RaydebugError, match="not ended from inside"):
        kind_of(found).take_down()
