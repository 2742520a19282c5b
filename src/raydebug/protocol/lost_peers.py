"""A peer can be lost without an end of the connection: a sleeping laptop, a cut cable, a host without power.

TCP keepalive covers idle connections only. With unacknowledged data the kernel retransmits for a quarter of an hour
instead. TCP_USER_TIMEOUT would shorten that, but it also ends connections whose peer is alive and does not read for a
while, such as a client behind `| less`. So we poll the kernel's state of the connection (TCP_INFO).

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

from raydebug.protocol import wire

UNACKNOWLEDGED_S = 20.0  # with keepalive's 22 s: any lost peer is detected within 30 s
POLL_S = 1.0
UNANSWERED_ZERO_WINDOW_PROBES = 2  # a live peer with a full receive buffer still ACKs window probes
OUT_OF_REACH = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""The `errno` of the OSError that ends a connection to a lost peer."""

_INFO_BYTES = 104
_PROBES_AT, _UNACKED_AT, _LAST_ACK_AT = 3, 24, 56


class PeerState(NamedTuple):
    """The kernel's view of the peer."""

    unacknowledged: int  # packets
    unanswered_probes: int  # of a window of zero
    silent_s: float  # since the peer's last acknowledgement


def peer_state(sock: socket.socket) -> PeerState:
    """Return the kernel's view of the peer of a connection."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    unacknowledged, silent_ms = (struct.unpack_from("=I", info, at)[0] for at in (_UNACKED_AT, _LAST_ACK_AT))
    return PeerState(unacknowledged, info[_PROBES_AT], silent_ms / 1000)


def watch_peer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, unacknowledged_s: float = UNACKNOWLEDGED_S
) -> None:
    """End a TCP connection when its peer is lost: reads then raise an OSError of OUT_OF_REACH.

    Other connections than TCP stay unchanged.
    """
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    wire.enable_keepalive(sock)
    unanswered_since: float | None = None

    def poll() -> None:
        nonlocal unanswered_since
        if writer.is_closing():
            return
        try:
            peer = peer_state(sock)
        except OSError:
            return  # closed meanwhile
        now = time.monotonic()
        if peer.unacknowledged or peer.unanswered_probes >= UNANSWERED_ZERO_WINDOW_PROBES:
            unanswered_since = unanswered_since or now
            if min(peer.silent_s, now - unanswered_since) >= unacknowledged_s:
                reader.set_exception(OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
                writer.transport.abort()
                return
        else:
            unanswered_since = None
        asyncio.get_running_loop().call_later(POLL_S, poll)

    if hasattr(socket, "TCP_INFO"):
        poll()
