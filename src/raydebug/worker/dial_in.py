"""Dial in: connect to the gateway and prove to each other the possession of the cluster's token."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

from raydebug.protocol import handshake, messages, variables, wire
from raydebug.protocol.wire import Message
from raydebug.worker import records

DIAL_TIMEOUT_S = 3.0
DEFAULT_PATIENCE_S = 3600.0  # how long a pause waits for a gateway that cannot be reached

_instance = os.urandom(8).hex()  # identifies this process: a process id may be used again
_dials = itertools.count(1)  # of this process, for sessions with pydevd


class NoGateway(Exception):
    """There is no gateway to dial; the text says why."""


class Unreachable(NoGateway):
    """The gateway cannot be reached now, or its proof is missing: a later attempt may succeed.

    A refusal is no reason to give up: another program may hold the gateway's port while the gateway restarts.
    """


def patience_s() -> float:
    """Return how long a pause of this process waits for a gateway that cannot be reached."""
    with contextlib.suppress(ValueError):
        return float(os.environ.get(variables.PATIENCE, ""))
    return DEFAULT_PATIENCE_S


def proven_connection(purpose: str = messages.PAUSE, *, timeout_s: float = DIAL_TIMEOUT_S) -> socket.socket:
    """Connect to the gateway; each side proves to the other that it holds the token.

    Args:
        purpose: PAUSE for a session with pydevd, CONTROL for the control channel.
        timeout_s: limit for connecting and for each response.

    Raises:
        Unreachable: it cannot be reached, or did not prove itself.
        NoGateway: its address or the token cannot be read.
    """
    address = os.environ.get(variables.GATEWAY, "")
    host, _, port = address.rpartition(":")
    token, mine = read_token(), handshake.new_nonce()
    about = {"nonce": mine, "proof": handshake.hello_proof(token, mine), "version": 2}
    hello = wire.encode(wire.event(1, messages.HELLO, about))  # ready before the gateway looks for it
    try:
        connection = socket.create_connection((host, int(port)), timeout=timeout_s)
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
    answer = _receive(connection, messages.PROOF)
    theirs = str(answer.get("nonce", ""))
    if not handshake.is_nonce(theirs) or not handshake.same(
        handshake.gateway_proof(token, mine, theirs), answer.get("proof")
    ):
        raise Unreachable("what answers there does not hold this cluster's token")
    proof = handshake.process_proof(token, mine, theirs)
    process = {**records.describe_process(), "instance": _instance}
    if purpose == messages.PAUSE:  # a gateway that still holds an earlier connection of this process drops it
        process["dials"] = next(_dials)
    body = {"proof": proof, "purpose": purpose, "process": process}
    connection.sendall(wire.encode(wire.event(2, messages.PROOF, body)))
    _receive(connection, messages.WELCOME)


def _receive(connection: socket.socket, name: str) -> Message:
    """Read exactly one message: the bytes after it belong to pydevd."""
    header = b""
    while not header.endswith(b"\r\n\r\n"):
        header += _exactly(connection, 1)
        if len(header) > 256:
            raise wire.WireError("not the gateway's protocol")
    decoder = wire.Decoder(max_body_bytes=4096)
    decoder.feed(header)
    while True:
        messages = decoder.feed(_exactly(connection, 1))
        if messages:
            break
    event, body = messages[0].get("event"), messages[0].get("body")
    if not isinstance(body, dict):
        raise wire.WireError("not the gateway's protocol")
    if event != name:
        raise Unreachable(f"the gateway refused: {ascii(body.get('reason', event))[:80]}")
    return body


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = connection.recv(count)
    if not data:
        raise OSError("it closed the connection")
    return data


def _become_another_process() -> None:
    global _instance, _dials
    _instance, _dials = os.urandom(8).hex(), itertools.count(1)


os.register_at_fork(after_in_child=_become_another_process)
