"""`raydebug logs` of a cluster on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydebug.cluster import kind as base
from raydebug.cluster import kinds
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.growing_log import GrowingLog
from raydebug.cluster.kinds import LocalKind
from raydebug.cluster.state import Cluster, Remote


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


def test_follow_a_log_whose_lines_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a joined cluster's log each line is shown once as it grows, also of one that is cut at its beginning."""
    joined = Cluster(
        "c",
        "",
        "joined",
        tmp_path,
        tmp_path,
        "",
        remote=Remote("http://h:1", "h:2", str(tmp_path / "t"), head="h", job="j"),
    )
    (tmp_path / "t").write_text("0" * 64)
    logs = ["tick\n", "tick\ntick\nlo", "tick\ntick\nlost\ntick\n", "lost\ntick\ntick\n"]
    kind = kinds.JoinedKind(joined)
    monkeypatch.setattr(kinds, "FOLLOW_EVERY_S", 0.0)
    monkeypatch.setattr(kinds, "REMEMBERED", 10)
    monkeypatch.setattr(Dashboard, "job_logs", lambda *_: logs.pop(0))
    monkeypatch.setattr(kind, "why_gateway_down", lambda: None if logs[1:] else "it has ended")
    kind.show_logs(None, follow=True)
    assert capsys.readouterr().out.split("gateway | ")[1:] == [
        f"{line}\n" for line in ("tick", "tick", "lost", "tick", "tick")
    ]
