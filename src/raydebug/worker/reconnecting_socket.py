"""A socket for pydevd that reconnects: while a thread is suspended it outlives the gateway and a broken network.

pydevd treats the end of its connection as the end of the debugger and resumes every thread. This socket connects again
under pydevd's reader instead.

Source: debugpy 1.8.22, the calls that pydevd makes of its socket: pydevd_comm.py (ReaderThread, WriterThread),
pydevd_net_command.py:107 (a message is two `sendall`, header and body), pydevd.py:1529 and 2680.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable

from raydebug import worker
from raydebug.protocol import variables, wire
from raydebug.worker.dial_in import NoGateway, proven_connection

RECONNECT_TIMEOUT_S = 1.0
DEFAULT_PATIENCE_S = 3600.0  # how long a pause waits for a gateway that cannot be reached
READ_BYTES = 64 * 1024
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 1.0
UNACKNOWLEDGED_MS = 20_000


def patience_s() -> float:
    """Return how long a pause of this process waits for a gateway that cannot be reached."""
    with contextlib.suppress(ValueError):
        return float(os.environ.get(variables.PATIENCE, ""))
    return DEFAULT_PATIENCE_S


class Backoff:
    """The waits between attempts to reach a gateway: exponential up to a second, within a limit.

    The limit counts from the first attempt that failed (`since`, of time.monotonic()).
    """

    def __init__(self, limit_s: float, since: float) -> None:
        self._limit_s, self._since = limit_s, since
        self._wait_s = FIRST_WAIT_S

    @property
    def has_ended(self) -> bool:
        """Whether the limit is reached."""
        return time.monotonic() - self._since >= self._limit_s

    @property
    def is_long(self) -> bool:
        """Whether the user should be informed."""
        return self._wait_s >= LONGEST_WAIT_S

    def wait(self, closed: threading.Event) -> None:
        """Wait until the next attempt, or until the event is set."""
        # Jitter: many processes have lost the same gateway.
        closed.wait(self._wait_s * (0.5 + os.urandom(1)[0] / 510))
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)


class ReconnectingSocket:
    """The part of a socket that pydevd uses.

    Args:
        connection: the first connection, proven.
        end_unless_needed: called when the connection is lost; False reconnects, because a thread is suspended.
    """

    def __init__(self, connection: socket.socket, *, end_unless_needed: Callable[[ReconnectingSocket], bool]) -> None:
        self._connection: socket.socket | None = connection
        self._end_unless_needed = end_unless_needed
        self._patience_s = patience_s()
        self._whole = b""  # whole messages for pydevd: the next connection must not continue half a message
        self._rest = b""
        self._header = b""
        self._closed = threading.Event()
        self._answers = False  # something has come over this connection
        self._lost_at = 0.0
        self.ended = False
        _detect_loss(connection)

    # What pydevd calls

    def settimeout(self, _timeout_s: float | None) -> None:
        """Wait without limit, as pydevd asks."""
        if self._connection is not None:
            self._connection.settimeout(None)

    def recv(self, size: int) -> bytes:
        """Return bytes from the gateway; none when the connection has ended for good."""
        while not self._whole:
            data = self._receive()
            if data:
                self._answers = True
                messages = self._rest + data
                end = end_of_whole_messages(messages)
                self._whole, self._rest = messages[:end], messages[end:]
            elif not self._reconnect():
                return b""
        data, self._whole = self._whole[:size], self._whole[size:]
        return data

    def sendall(self, data: bytes) -> None:
        """Send one message; without a connection it is dropped, and announcements are replayed after the reconnect."""
        if not self._header and data.startswith(b"Content-Length: ") and data.endswith(b"\r\n\r\n"):
            self._header = data
            return
        message, self._header = self._header + data, b""
        connection = self._connection
        if connection is None:
            return
        try:
            connection.sendall(message)
        except OSError:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # the reader notices, and reconnects

    def shutdown(self, how: int) -> None:
        """End the connection on pydevd's behalf."""
        self._closed.set()
        if self._connection is not None:
            self._connection.shutdown(how)

    def close(self) -> None:
        """Close the connection on pydevd's behalf."""
        self.ended = True
        self._closed.set()
        if self._connection is not None:
            self._connection.close()

    # A lost connection

    def _receive(self) -> bytes:
        try:
            return b"" if self._connection is None else self._connection.recv(READ_BYTES)
        except OSError:
            return b""

    def _reconnect(self) -> bool:
        """Dial until a gateway answers; False if no thread is suspended any more, or the limit is reached."""
        lost, self._connection = self._connection, None
        if lost is not None:
            lost.close()
        self._rest = b""
        said = False
        if self._answers:
            self._lost_at, self._answers = time.monotonic(), False
        else:  # accepted and closed again: not at once
            self._closed.wait(LONGEST_WAIT_S)
        backoff = Backoff(self._patience_s, self._lost_at)
        while not self._closed.is_set() and not self._end_unless_needed(self):
            try:
                connection = proven_connection(timeout_s=RECONNECT_TIMEOUT_S)
            except NoGateway as error:
                if backoff.has_ended:
                    worker.log(f"resumes: the gateway did not come back within {self._patience_s:.0f} s: {error}")
                    break
                if not said and backoff.is_long:
                    worker.log(f"stays paused, and is listed again when the gateway answers: {error}")
                    said = True
                backoff.wait(self._closed)
                continue
            _detect_loss(connection)
            self._connection = connection
            return True
        self.ended = True
        return False


def end_of_whole_messages(data: bytes) -> int:
    r"""Return how many of these bytes are whole messages.

    >>> end_of_whole_messages(b"Content-Length: 2\r\n\r\n{}Content-Length: 9\r\n\r\n{")
    23
    """
    end = 0
    while (body := data.find(b"\r\n\r\n", end) + 4) > 3:
        length = int(data[end:body].partition(b":")[2])
        if body + length > len(data):
            break
        end = body + length
    return end


def _detect_loss(connection: socket.socket) -> None:
    """Make the kernel end a connection whose peer is silent, or has not acknowledged data for 20 s."""
    connection.settimeout(None)
    wire.enable_keepalive(connection)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
