"""The connection to the gateway as pydevd sees it: while a thread stands it outlives the gateway and a cut network.

pydevd takes the end of its connection for the end of the debugger and lets every thread go. Here its reader finds a new
connection instead, and never learns of it.

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

READ_BYTES = 64 * 1024
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 1.0
# A peer that says nothing more is given up after this; a shorter cut of the network passes unnoticed.
IDLE_BEFORE_PROBE_S, BETWEEN_PROBES_S, PROBES = 12, 6, 3
UNACKNOWLEDGED_MS = 20_000


class Line:
    """What pydevd has for a socket.

    Args:
        connection: the first connection, proven.
        dial: makes another one, or raises OSError with the reason why not.
        end_unless_needed: called when the connection is lost; False keeps the line, because a thread stands.
        patience_s: how long a thread that stands waits for a gateway.
        say: writes a line to the job's log.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        dial: Callable[[], socket.socket],
        end_unless_needed: Callable[[Line], bool],
        patience_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._connection: socket.socket | None = connection
        self._dial = dial
        self._end_unless_needed = end_unless_needed
        self._patience_s = patience_s
        self._say = say
        self._whole = b""  # messages to hand to pydevd: never half a one, or the next connection would go on amid it
        self._rest = b""
        self._header = b""
        self._closed = threading.Event()
        self._answers = False  # something has come over this connection
        self._lost_at = 0.0
        self.ended = False
        notice_loss(connection)

    # What pydevd calls

    def settimeout(self, _timeout_s: float | None) -> None:
        """Wait without limit, as pydevd asks."""
        if self._connection is not None:
            self._connection.settimeout(None)

    def recv(self, size: int) -> bytes:
        """Return bytes from the gateway; none when the line has ended."""
        while not self._whole:
            data = self._receive()
            if data:
                self._answers = True
                messages = self._rest + data
                end = end_of_whole_messages(messages)
                self._whole, self._rest = messages[:end], messages[end:]
            elif not self._connect_again():
                return b""
        data, self._whole = self._whole[:size], self._whole[size:]
        return data

    def sendall(self, data: bytes) -> None:
        """Send one message; without a connection it is lost, and what matters of it is told to the next gateway."""
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
                connection.shutdown(socket.SHUT_RDWR)  # the reader notices, and finds another

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

    def _connect_again(self) -> bool:
        """Dial until a gateway answers; False when nothing stands here any more, or nobody answered for too long."""
        lost, self._connection = self._connection, None
        if lost is not None:
            lost.close()
        self._rest = b""
        wait_s, told = FIRST_WAIT_S, False
        if self._answers:
            self._lost_at, self._answers = time.monotonic(), False
        else:  # taken, and dropped again: not at once once more
            self._closed.wait(LONGEST_WAIT_S)
        while not self._closed.is_set() and not self._end_unless_needed(self):
            try:
                connection = self._dial()
            except OSError as error:
                if time.monotonic() - self._lost_at >= self._patience_s:
                    self._say(f"goes on, for no debugger came back within {self._patience_s:.0f} s: {error}")
                    break
                if not told and wait_s >= LONGEST_WAIT_S:
                    self._say(f"stays paused, and is listed again when the gateway answers: {error}")
                    told = True
                # Many processes lost the same gateway: they come back one after the other.
                self._closed.wait(wait_s * (0.5 + os.urandom(1)[0] / 510))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                continue
            notice_loss(connection)
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


def notice_loss(connection: socket.socket) -> None:
    """Let the kernel end a connection whose other side has said nothing for about 20 seconds."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_BEFORE_PROBE_S),
        ("TCP_KEEPINTVL", BETWEEN_PROBES_S),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS),
    ):
        if hasattr(socket, name):  # Linux has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
