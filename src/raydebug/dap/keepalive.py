"""Finds a peer that vanished without a word: a laptop that sleeps, a cable that is cut, a host that lost power.

Where nothing is under way the kernel asks a silent peer whether it is there (keepalive). Where something is under way
it does not ask: it sends that again, for a quarter of an hour. TCP_USER_TIMEOUT would end that, and with it every peer
that is there and does not read for a while, such as a client behind `| less`. So we look at what the kernel knows
(TCP_INFO).

Source: tcp(7); Linux 6.18 net/ipv4/tcp_timer.c (`tcp_keepalive_timer`, `tcp_probe_timer`), include/uapi/linux/tcp.h
`struct tcp_info`; held by tests/unit/test_keepalive.py.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import time
from typing import NamedTuple

# A cut of 10 s passes unnoticed; a peer is given up before it was silent for 30 s: asked after 10 s and every 4 s, it
# is given up at 22 s, or once it has acknowledged nothing of what it was sent for 20 s.
IDLE_BEFORE_PROBE_S, BETWEEN_PROBES_S, PROBES = 10, 4, 3
UNACKNOWLEDGED_S = 20.0
LOOK_EVERY_S = 1.0
UNANSWERED_PROBES = (
    2  # of a peer that does not read: whether it does so now is asked too, and a peer that is there answers
)
OUT_OF_REACH = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""How a connection ends whose peer is not there: the `errno` of its OSError."""

_INFO_BYTES = 104
_PROBES_AT, _UNACKED_AT, _LAST_ACK_AT = 3, 24, 56


class Answers(NamedTuple):
    """What the kernel knows of the other side.

    Args:
        unacknowledged: packets that it has not acknowledged.
        unanswered_probes: how often it was asked in vain whether it reads again.
        silent_s: since its last acknowledgement.
    """

    unacknowledged: int
    unanswered_probes: int
    silent_s: float


def answers_of(sock: socket.socket) -> Answers:
    """Return what the kernel knows of the other side of a connection."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    unacknowledged, silent_ms = (struct.unpack_from("=I", info, at)[0] for at in (_UNACKED_AT, _LAST_ACK_AT))
    return Answers(unacknowledged, info[_PROBES_AT], silent_ms / 1000)


def notice_loss(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, unacknowledged_s: float = UNACKNOWLEDGED_S
) -> None:
    """End a connection whose other side is gone: who reads from it gets an OSError of OUT_OF_REACH.

    Args:
        reader: of the connection.
        writer: of the same; what is no TCP connection stays as it is.
        unacknowledged_s: give the peer up when what was sent to it is not acknowledged for this long.
    """
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux has all of them
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_BEFORE_PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, BETWEEN_PROBES_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    if hasattr(socket, "TCP_INFO"):
        _Watch(reader, writer, sock, unacknowledged_s).look()


class _Watch:
    """Looks at one connection until it ends."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sock: socket.socket, limit_s: float
    ) -> None:
        self._reader, self._writer, self._sock, self._limit_s = reader, writer, sock, limit_s
        self._waits_since: float | None = None  # for an acknowledgement

    def look(self) -> None:
        if self._writer.is_closing():
            return
        try:
            answers = answers_of(self._sock)
        except OSError:
            return  # closed meanwhile
        now = time.monotonic()
        if answers.unacknowledged or answers.unanswered_probes >= UNANSWERED_PROBES:
            self._waits_since = self._waits_since or now
            if min(answers.silent_s, now - self._waits_since) >= self._limit_s:
                self._give_up()
                return
        else:
            self._waits_since = None
        asyncio.get_running_loop().call_later(LOOK_EVERY_S, self.look)

    def _give_up(self) -> None:
        self._reader.set_exception(OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
        self._writer.transport.abort()
