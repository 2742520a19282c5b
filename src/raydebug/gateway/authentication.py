"""Authentication: the handshake with processes that dial in, and the delay of answers to wrong tokens."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from typing import Any

from raydebug.gateway import logs
from raydebug.gateway.listener import Pieces
from raydebug.protocol import handshake, messages, wire
from raydebug.protocol.wire import Message

MAX_HEADER_BYTES, MAX_HELLO_BYTES, MAX_PROOF_BYTES = 256, 1024, 16 * 1024
MAX_HELLOS = 10_000  # nonces kept against replay
FREE_TRIES = 10  # a mistyped or stale token is an accident
WITHIN_S = 60.0
DELAY_S = 1.0


class AuthThrottle:
    """Delays answers to wrong tokens after FREE_TRIES in a minute; the right token is never delayed.

    One count for all clients, because all of them come from the same loopback address.
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=FREE_TRIES + 1)

    def delay_s(self) -> float:
        """Count a wrong token, and return the delay of its answer in seconds."""
        now = time.monotonic()
        self._times.append(now)
        return DELAY_S if len(self._times) > FREE_TRIES and now - self._times[0] < WITHIN_S else 0.0

    async def delay_answer(self, client: str, peer: object) -> None:
        """Count a wrong token, write it to the audit log, and wait before the answer.

        Args:
            client: who sent it (`logs.name_client`).
            peer: its address.
        """
        logs.audit("refuse", client, stranger=peer, reason="wrong token")
        await asyncio.sleep(self.delay_s())


class ProcessAuthentication:
    """The gateway's side of the handshake (protocol/handshake.py) with a process that dials in.

    Args:
        token: the cluster's token.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        self._hellos: deque[str] = deque(maxlen=MAX_HELLOS)  # nonces of accepted first packets

    async def receive_hello(self, connection: socket.socket) -> str:
        """Return the nonce of a first packet that was made with the token and was not sent before.

        Raises:
            ConnectionError: the packet is wrong, or the connection ended.
            WireError: it is no message.
        """
        hello = await _receive(connection, messages.HELLO, MAX_HELLO_BYTES)
        nonce = hello.get("nonce")
        if not isinstance(nonce, str) or not handshake.is_nonce(nonce):
            raise await _refuse(connection, "no nonce")
        if not handshake.same(handshake.hello_proof(self._token, nonce), hello.get("proof")):
            raise await _refuse(connection, "wrong token")
        if nonce in self._hellos:
            raise await _refuse(connection, "its first packet was sent before")
        self._hellos.append(nonce)
        return nonce

    async def prove(self, connection: socket.socket, process_nonce: str) -> tuple[str, Any]:
        """Prove the gateway to a process and the process to the gateway; return the purpose and the process's record.

        Raises:
            ConnectionError: the proof is wrong, or the connection ended.
            WireError: it is no message.
        """
        nonce = handshake.new_nonce()
        proof = handshake.gateway_proof(self._token, process_nonce, nonce)
        await _send(connection, messages.PROOF, {"nonce": nonce, "proof": proof})
        answer = await _receive(connection, messages.PROOF, MAX_PROOF_BYTES)
        if not handshake.same(handshake.process_proof(self._token, process_nonce, nonce), answer.get("proof")):
            raise await _refuse(connection, "wrong token")
        await _send(connection, messages.WELCOME, {})
        return str(answer.get("purpose")), answer.get("process")


async def _receive(connection: socket.socket, name: str, max_bytes: int) -> Message:
    decoder = wire.Decoder(max_header_bytes=MAX_HEADER_BYTES, max_body_bytes=max_bytes)
    loop, pieces = asyncio.get_running_loop(), Pieces()
    while data := await loop.sock_recv(connection, 4096):
        for message in decoder.feed(data):  # the process sends its next message only after our response
            if message.get("event") != name:
                raise ConnectionRefusedError(f"{message.get('event')!r} instead of {name!r}")
            body = message.get("body")
            return body if isinstance(body, dict) else {}
        await pieces.wait()
    raise ConnectionResetError("closed before it proved itself")


async def _send(connection: socket.socket, name: str, body: Message) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, wire.encode(wire.event(1, name, body)))


async def _refuse(connection: socket.socket, reason: str) -> ConnectionRefusedError:
    """Send the reason to the peer, and return the error to raise."""
    await _send(connection, messages.REFUSED, {"reason": reason})
    return ConnectionRefusedError(reason)
