"""Distinguishes a dead head from an unreachable one: an idle connection ends with its peer, not with the network."""

from __future__ import annotations

import contextlib
import socket
import time

CONNECT_TIMEOUT_S = 0.5
TRIES, BETWEEN_TRIES_S = 2, 0.3


class Lifeline:
    """One idle connection to the head's GCS.

    Ray's own processes wait 60 s for a dead GCS (RAY_gcs_rpc_server_reconnect_timeout_s, 2.60.0), and without
    Redis a new one knows nothing of them. When the GCS ends, the kernel of its host ends this connection at once; when
    the network is cut or the head is paused nothing arrives, and the node waits.

    Args:
        address: host:port of the GCS.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._peer = (host, int(port))
        self._idle: socket.socket | None = None

    def is_cut(self) -> bool:
        """Return whether the GCS has ended. Called often; takes up to 1.3 s if the connection has just ended."""
        if self._idle is None:
            self._idle = self._connect()
            return False
        try:
            ended = self._idle.recv(4096) == b""
        except BlockingIOError:
            return False
        except OSError:
            ended = True
        if not ended:  # gRPC's greeting
            return False
        self._idle.close()
        # gRPC also ends a connection that is silent for two minutes: then a new one succeeds.
        for attempt in range(TRIES):
            time.sleep(BETWEEN_TRIES_S * attempt)
            self._idle = self._connect()
            if self._idle is not None:
                return False
        return True

    def _connect(self) -> socket.socket | None:
        with contextlib.suppress(OSError):
            connection = socket.create_connection(self._peer, timeout=CONNECT_TIMEOUT_S)
            connection.setblocking(False)  # with a timeout `recv` would block, and silence would look like an end
            self._peer = connection.getpeername()[:2]  # a dead head has no name in DNS, and the lookup may take long
            return connection
        return None
