"""Whom the containers of a cluster run as."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from raydebug.cluster.compose.container_user import UNUSED_IDS, choose_user, first_unused, has_account, ids_of_processes
from raydebug.errors import RaydebugError

NOBODYS = 61183  # the last of the range


def as_user(monkeypatch: pytest.MonkeyPatch, uid: int, gid: int) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(os, "getgid", lambda: gid)


def owned_by(monkeypatch: pytest.MonkeyPatch, uid: int, gid: int) -> Path:
    """Return a folder that seems to belong to this user."""
    facts = os.stat_result((0o40755, 0, 0, 0, uid, gid, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda self: facts)
    return Path("project")


def test_a_user_is_the_containers_user(tmp_path, monkeypatch):
    """A caller who is not root gets containers of their own uid and gid."""
    as_user(monkeypatch, 1007, 100)
    assert choose_user("default", tmp_path) == (1007, 100)


@pytest.mark.parametrize(("owner", "expected"), [((1007, 100), (1007, 100)), ((1007, 0), (1007, 1007))])
def test_roots_containers_run_as_the_projects_owner(monkeypatch, owner, expected):
    """Root's containers run as the owner of the project, never with root's group."""
    as_user(monkeypatch, 0, 0)
    assert choose_user("default", owned_by(monkeypatch, *owner)) == expected


def test_unused_id_for_a_project_of_root(monkeypatch):
    """With a project of root's the id has no account and no process, is the same each time, and differs by name."""
    as_user(monkeypatch, 0, 0)
    project = owned_by(monkeypatch, 0, 0)
    uid, gid = choose_user("default", project)
    assert uid == gid
    assert uid in UNUSED_IDS
    assert not has_account(uid)
    assert uid not in ids_of_processes()
    assert choose_user("default", project) == (uid, gid)
    assert choose_user("other", project) != (uid, gid)


def test_taken_ids_are_passed_over():
    """An id with an account or a process is passed over, across the end of the range; with none left it is an error."""
    first = first_unused("default", lambda one: False)
    second = first_unused("default", lambda one: one == first)
    assert second == (first + 1 if first != UNUSED_IDS[-1] else UNUSED_IDS[0])
    assert first_unused("default", lambda one: one != UNUSED_IDS[0]) == UNUSED_IDS[0]
    with pytest.raises(RaydebugError) as failure:
        first_unused("default", lambda one: True)
    assert str(failure.value) == (
        "error: there is no unused user id for the containers\n"
        "cause: accounts or processes of this machine have all of 60706 to 61183\n"
        "fix: give the project's folder to a user of its own: `chown -R USER .`; the containers run as its owner then"
    )


def test_what_counts_as_taken():
    """Root has an account; the uid of a running process is seen."""
    assert has_account(0)
    assert not has_account(NOBODYS)
    assert os.getuid() in ids_of_processes()


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts a process of another user")
def test_id_of_a_process_without_an_account():
    """A uid without an account counts as taken while a process runs with it, as in another container."""
    with subprocess.Popen(["cat"], user=NOBODYS, stdin=subprocess.PIPE) as other:
        taken = NOBODYS in ids_of_processes()
        other.communicate(timeout=60)
    assert taken
    assert NOBODYS not in ids_of_processes()
