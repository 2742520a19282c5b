"""The idle connection by which a node tells a head that is gone from one out of reach (entrypoints/lifeline.py)."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "entrypoints"))
import lifeline

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def gcs():
    """A port that greets, as gRPC does, and says nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def watched(server) -> tuple[lifeline.Lifeline, socket.socket]:
    line = lifeline.Lifeline(f"127.0.0.1:{server.getsockname()[1]}")
    assert not line.is_cut()
    accepted, _ = server.accept()
    accepted.sendall(b"greeting")
    return line, accepted


@pytest.mark.alone
def test_silence_is_no_end(gcs):
    """A head that says nothing for longer than a connect may take is not gone, and is not dialled anew."""
    line, accepted = watched(gcs)
    until = time.monotonic() + 3 * lifeline.CONNECT_TIMEOUT_S
    while time.monotonic() < until:
        started = time.monotonic()
        assert not line.is_cut()
        assert time.monotonic() - started < lifeline.CONNECT_TIMEOUT_S / 2, "it is asked ten times a second"
        time.sleep(0.05)
    gcs.settimeout(0.2)
    with pytest.raises(TimeoutError):
        gcs.accept()
    accepted.close()


def test_ended_by_a_head_that_lives(gcs):
    """gRPC ends a connection that is idle for minutes: a new one succeeds, and the head is not gone."""
    line, accepted = watched(gcs)
    assert not line.is_cut()
    accepted.close()
    assert not line.is_cut()
    gcs.accept()[0].close()


def test_head_is_gone(gcs):
    """When the head's process ends, the connection ends, and no new one succeeds."""
    line, accepted = watched(gcs)
    assert not line.is_cut()
    gcs.close()
    accepted.close()
    assert line.is_cut()
