"""Ports of a cluster: those that were named, those that it had, the defaults, or any that is free."""

from __future__ import annotations

import os
import socket

import pytest

from raydebug.cluster import state, up
from raydebug.errors import RaydebugError

PUBLISHED = ("dashboard", "gateway")


@pytest.fixture
def nothing_taken(monkeypatch):
    """A machine on which every port is free."""
    monkeypatch.setattr(up, "is_free", lambda port, host="": True)


def test_defaults_and_what_was_before(nothing_taken):
    """Without a word the first cluster has the default ports, the next one others, and each keeps what it had."""
    assert up.choose_ports({}, {}, (), PUBLISHED) == {"dashboard": 8265, "gateway": 5678}
    second = up.choose_ports({}, {}, (8265, 5678), PUBLISHED)
    assert all(20000 <= port < 32000 for port in second.values())
    assert up.choose_ports({}, second, (8265, 5678), PUBLISHED) == second


def test_zero_is_any_free_port(nothing_taken):
    """0 never takes the default port: two that start at once by 0 do not meet there."""
    asked = {"dashboard": 0, "gateway": 0}
    chosen = up.choose_ports(asked, {}, (), PUBLISHED)
    assert all(20000 <= port < 32000 for port in chosen.values())
    assert up.choose_ports(asked, chosen, (), PUBLISHED) == chosen, "the same again after a restart"


def test_named_port_is_that_or_none():
    """A port that was named is taken or refused with its owner, never replaced."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(RaydebugError, match=f"port {port} for the dashboard is taken") as failure:
            up.choose_ports({"dashboard": port}, {}, (), PUBLISHED)
        assert f"(pid {os.getpid()}, user " in failure.value.cause
    assert up.choose_ports({"dashboard": port}, {}, (), PUBLISHED)["dashboard"] == port


def test_named_port_that_needs_root(monkeypatch):
    """A port on which only root may listen is not called taken."""

    class Users(socket.socket):
        def bind(self, address):
            if address[1] < 1024:
                raise PermissionError(13, "Permission denied")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Users)
    with pytest.raises(RaydebugError, match="port 81 is not for this user") as failure:
        up.choose_ports({"dashboard": 81}, {}, (), PUBLISHED)
    assert (failure.value.cause, failure.value.exit_code) == ("a port below 1024 needs root", 2)


def test_part_of_the_range(monkeypatch):
    """RAYDEBUG_TEST_PORTS leaves a part of the range, also when it is set after the import: tests run at once."""
    monkeypatch.setenv("RAYDEBUG_TEST_PORTS", "23000-23100")
    assert set(up.choose_ports({}, {}, (8265, 5678)).values()) < set(range(23000, 23100))


def test_named_port_of_another_cluster(nothing_taken):
    """A named port that another cluster, or another part of this one, has is refused, though nobody listens there."""
    with pytest.raises(RaydebugError, match="port 9000 for the gateway is taken") as failure:
        up.choose_ports({"gateway": 9000}, {}, (9000,), PUBLISHED)
    assert failure.value.cause.startswith("another cluster of yours has it")
    with pytest.raises(RaydebugError, match="port 9000 for the gateway is taken") as failure:
        up.choose_ports({"dashboard": 9000, "gateway": 9000}, {}, (), PUBLISHED)
    assert failure.value.cause == "another part of this cluster has it"
    chosen = up.choose_ports({"gateway": 8265}, {}, (), PUBLISHED)
    assert chosen["gateway"] == 8265, "no default and no remembered port comes before a named one"


def test_named_port_of_a_running_cluster(tmp_path):
    """A cluster that runs with another port than the named one is not returned as if it had that one."""
    running = state.Cluster(
        "mine", "", "local", tmp_path, tmp_path, "", {"dashboard": 1, "gateway": 2}, 1, 0, "", "", 0
    )
    up.refuse_other_ports(up.UpOptions(dashboard_port=1, gateway_port=0), running)
    with pytest.raises(RaydebugError) as failure:
        up.refuse_other_ports(up.UpOptions(dashboard_port=9000), running)
    assert str(failure.value) == (
        "error: cluster 'mine' runs already, and its dashboard has another port than 9000\n"
        "cause: it has port 1, chosen when it was started\n"
        "fix: leave --dashboard-port out, or `raydebug down --name mine` first"
    )
