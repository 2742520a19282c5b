"""Finds a peer that vanished without a word: a laptop that sleeps, a cable that is cut, a host that lost power.

Two means of the kernel are needed. Where nothing is under way, it asks the silent peer whether it is there (keepalive).
Where something is under way, it does not ask: it sends that again, by default for a quarter of an hour.

Source: tcp(7), SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT; Linux net/ipv4/tcp_timer.c,
`tcp_keepalive_timer`: with TCP_USER_TIMEOUT set, a probe unanswered at that age ends the connection.
"""

from __future__ import annotations

import asyncio
import errno
import socket

# A cut of 10 s passes unnoticed; a peer is given up before it was silent for 30 s: asked after 12 s and after 18 s,
# given up at 24 s, or once it has acknowledged nothing of what it was sent for 20 s.
IDLE_BEFORE_PROBE_S, BETWEEN_PROBES_S, PROBES = 12, 6, 3
UNACKNOWLEDGED_MS = 20_000
OUT_OF_REACH = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""How a connection ends whose peer is not there: the `errno` of its OSError."""


def notice_loss(writer: asyncio.StreamWriter, *, unacknowledged_ms: int = UNACKNOWLEDGED_MS) -> None:
    """Let the kernel end a connection whose other side is gone.

    Args:
        writer: the connection; what is no TCP connection stays as it is.
        unacknowledged_ms: give the peer up when what was sent to it is not acknowledged for this long. So is one that
            reads nothing of what it has asked for: its task stays paused.
    """
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_BEFORE_PROBE_S),
        ("TCP_KEEPINTVL", BETWEEN_PROBES_S),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", unacknowledged_ms),
    ):
        if hasattr(socket, name):  # Linux has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
