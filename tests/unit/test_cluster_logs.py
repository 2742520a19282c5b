"""`raydebug logs` of a cluster on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydebug.cluster import kind as base
from raydebug.cluster import kinds
from raydebug.cluster.growing_log import GrowingLog
from raydebug.cluster.kinds import LocalKind
from raydebug.cluster.state import Cluster


@pytest.fixture
def kind(tmp_path: Path) -> LocalKind:
    return LocalKind(Cluster("c", "", "local", tmp_path, tmp_path, "", {}, 1, 0, "breakpoint", "core", 0.0))


def test_growing_log(tmp_path: Path) -> None:
    """A log is read with its rotated files, over a rotation, in whole lines; at the end, a part of a line too."""
    path = tmp_path / "gateway.log"
    (tmp_path / "gateway.log.1").write_text("one\n")
    log = GrowingLog(path)
    assert list(log.read(to_end=False)) == ["one"]
    path.write_bytes(b"two\nth")
    assert list(log.read(to_end=False)) == ["two"]
    with path.open("ab") as file:
        file.write(b"ree\xff\nfour")
    path.rename(tmp_path / "gateway.log.1")
    path.write_text("five\nsix")
    assert list(log.read(to_end=False)) == ["three\ufffd", "four", "five"]
    assert list(log.read(to_end=True)) == ["six"]


def test_follow_a_local_cluster(
    kind: LocalKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`logs -f` shows lines as they come, until the cluster has ended; without -f, those that are there."""
    (tmp_path / "ray.log").write_text("started\n")
    assert kind.show_logs(None, follow=False) == 0
    assert capsys.readouterr().out == "head | started\n"

    def is_alive() -> bool:
        looks.append(capsys.readouterr().out)
        with (tmp_path / "ray.log").open("a") as log:
            log.write(f"look {len(looks)}\n")
        return len(looks) < 3

    looks: list[str] = []
    monkeypatch.setattr(kind, "is_alive", is_alive)
    monkeypatch.setattr(base, "FOLLOW_EVERY_S", 0.0)
    kind.show_logs("head", follow=True)
    assert looks == ["", "head | started\nhead | look 1\n", "head | look 2\n"]
    assert capsys.readouterr().out == "head | look 3\n"


def test_services(kind: LocalKind) -> None:
    """A cluster on this machine has the logs of two services; one in containers has three."""
    assert kind.services == ("head", "gateway")
    assert kinds.ComposeKind.services == kinds.ByHandKind.services == ("head", "worker", "gateway")
