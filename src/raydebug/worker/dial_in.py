"""Dial in: connect to the gateway, and prove to each other the possession of the token."""

from __future__ import annotations

import contextlib
import encodings.ascii
import encodings.idna  # noqa: F401 - getaddrinfo and open() import these at the first call, where no fork waits for it
import itertools
import os
import socket
from typing import Any

from raydebug.protocol import messages, variables, wire
from raydebug.protocol.wire import Message
from raydebug.worker import records

DIAL_TIMEOUT_S = 3.0

_secret = os.urandom(16).hex()  # of this process: a process id may be used again, and no other process has this
_dials = itertools.count(1)  # of this process, for sessions with pydevd


class NoGateway(Exception):
    """There is no gateway to dial; the text says why."""


class Unreachable(NoGateway):
    """The gateway cannot be reached now, or its proof is missing: a later attempt may succeed.

    A refusal is no reason to give up: another program may hold the gateway's port while the gateway restarts.
    """


def _checked(name: str) -> Any:
    def method(self: OwnSocket, *arguments: Any) -> Any:
        self._check()
        return getattr(socket.socket, name)(self, *arguments)

    return method


class OwnSocket(socket.socket):
    """A connection of ours, by a number that the program may close and get again for a file of its own.

    A program that becomes a daemon closes all descriptors. What is not this connection any more is neither written to,
    nor read, nor closed.
    """

    __slots__ = ("_file",)

    def __init__(self, connection: socket.socket) -> None:
        timeout_s = connection.gettimeout()
        super().__init__(fileno=connection.detach())
        self.settimeout(timeout_s)
        self._file = self._file_now()

    def _file_now(self) -> tuple[int, int]:
        status = os.fstat(self.fileno())
        return status.st_dev, status.st_ino

    def _check(self) -> None:
        if self.fileno() >= 0:
            try:
                is_ours = self._file_now() == self._file
            except OSError:
                is_ours = False
            if not is_ours:
                self.detach()
                raise ConnectionResetError("the program has closed the descriptor of this connection")

    recv, send, sendall, shutdown = (_checked(name) for name in ("recv", "send", "sendall", "shutdown"))

    def close(self) -> None:
        """Close it, unless its number is that of another file."""
        with contextlib.suppress(OSError):
            self._check()
        super().close()


def proven_connection(purpose: str = messages.PAUSE, *, timeout_s: float = DIAL_TIMEOUT_S) -> socket.socket:
    """Connect to the gateway; each side proves to the other that it holds the token.

    Args:
        purpose: PAUSE for a session with pydevd, CONTROL for the control channel, SNAPSHOT to hand over a snapshot.
        timeout_s: limit for connecting and for each response.

    Raises:
        Unreachable: it cannot be reached, or did not prove itself.
        NoGateway: its address or the token cannot be read.
    """
    address = os.environ.get(variables.GATEWAY, "")
    host, _, port = address.rpartition(":")
    token, mine = read_token(), wire.new_nonce()
    about = {"nonce": mine, "proof": wire.proof(token, wire.AS_HELLO, mine)}
    hello = wire.encode(wire.event(1, messages.HELLO, about))  # ready before the gateway looks for it
    try:
        connection = OwnSocket(socket.create_connection((host, int(port)), timeout=timeout_s))
    except ValueError as error:
        raise NoGateway(f"no gateway at {address}: {error}") from error
    except OSError as error:
        raise Unreachable(f"no gateway at {address}: {error}") from error
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # evaluate: 44 ms -> 0.3 ms
        connection.sendall(hello)
        connection.set_inheritable(False)
        _prove_each_other(connection, token, mine, purpose)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError | wire.WireError):
            raise Unreachable(f"the gateway at {address} broke off: {error}") from error
        raise
    return connection


def read_token() -> str:
    """Return the cluster's token.

    Raises:
        NoGateway: the token file cannot be read.
    """
    path = os.environ.get(variables.TOKEN_PATH, "")
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError) as error:
        raise NoGateway(f"the token file cannot be read: {error}") from error


def _prove_each_other(connection: socket.socket, token: str, mine: str, purpose: str) -> None:
    answer = receive(connection, messages.PROOF)
    theirs = str(answer.get("nonce", ""))
    expected = wire.proof(token, wire.AS_GATEWAY, mine, theirs)
    if not wire.is_nonce(theirs) or not wire.is_same(expected, answer.get("proof")):
        raise Unreachable("what answers there does not hold this cluster's token")
    process = {**records.describe_process(), "secret": _secret}
    if purpose == messages.PAUSE:  # sessions of one process with pydevd do not number their requests alike
        process["dials"] = next(_dials)
    body = {"proof": wire.proof(token, wire.AS_PROCESS, mine, theirs), "purpose": purpose, "process": process}
    connection.sendall(wire.encode(wire.event(2, messages.PROOF, body)))
    receive(connection, messages.WELCOME)


def receive(connection: socket.socket, name: str) -> Message:
    """Read exactly one message: the bytes after it belong to pydevd.

    Raises:
        OSError, WireError: the connection has ended, or this is no message of the gateway's.
        Unreachable: it is another message.
    """
    decoder, messages = wire.Decoder(max_header_bytes=256, max_body_bytes=4096), list[Message]()
    while not messages:
        data = connection.recv(decoder.missing_bytes)
        if not data:
            raise OSError("it closed the connection")
        messages = decoder.feed(data)
    event, body = messages[0].get("event"), messages[0].get("body")
    if not isinstance(body, dict):
        raise wire.WireError("not the gateway's protocol")
    if event != name:
        raise Unreachable(f"the gateway refused: {ascii(body.get('reason', event))[:80]}")
    return body


def _become_another_process() -> None:
    global _secret, _dials
    _secret, _dials = os.urandom(16).hex(), itertools.count(1)


os.register_at_fork(after_in_child=_become_another_process)
