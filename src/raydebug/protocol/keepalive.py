"""TCP keepalive of all connections between processes, gateway and clients. Standard library only."""

from __future__ import annotations

import socket

# A silence of 10 s goes unnoticed. A dead peer is detected after 22 s: probes after 10 s and every 4 s.
IDLE_BEFORE_PROBE_S, BETWEEN_PROBES_S, PROBES = 10, 4, 3


def enable_keepalive(connection: socket.socket) -> None:
    """Make the kernel end a TCP connection whose peer has not answered for 22 s."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux has all of them
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_BEFORE_PROBE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, BETWEEN_PROBES_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
