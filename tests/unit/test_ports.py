"""Ports of a cluster: those that were named, those that it had, the defaults, or any that is free."""

from __future__ import annotations

import os
import socket

import pytest

from raydebug.cluster import up
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


def test_part_of_the_range(monkeypatch):
    """RAYDEBUG_TEST_PORTS leaves a part of the range, also when it is set after the import: tests run at once."""
    monkeypatch.setenv("RAYDEBUG_TEST_PORTS", "23000-23100")
    assert set(up.choose_ports({}, {}, (8265, 5678)).values()) < set(range(23000, 23100))
