"""The gateway's side of the handshakes: with its clients, and with the processes that dial in."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections import deque
from typing import Any

from raydebug.gateway import logs
from raydebug.gateway.listener import Pieces
from raydebug.gateway.throttle import AuthThrottle
from raydebug.protocol import client_handshake, messages, wire
from raydebug.protocol.wire import Message

MAX_FIRST_BYTES = 16 * 1024
MAX_HEADER_BYTES, MAX_HELLO_BYTES, MAX_PROOF_BYTES = 256, 1024, 16 * 1024
MAX_HELLOS = 10_000  # nonces kept against replay


class ClientAuthentication:
    """The gateway's side of the handshake (protocol/client_handshake.py) with one of raydebug's own clients."""

    def __init__(self, token: str, throttle: AuthThrottle) -> None:
        self._token, self._throttle = token, throttle

    async def prove(self, connection: socket.socket, first: bytes) -> bytes:
        """Prove the gateway to a client and the client to the gateway; return what the client sent after its proof.

        Raises:
            ConnectionError: a proof is wrong, or the connection ended.
        """
        loop, mine = asyncio.get_running_loop(), wire.new_nonce()
        theirs, proof = (*client_handshake.words(first), "", "")[:2]
        expected = wire.proof(self._token, client_handshake.AS_HELLO, theirs)
        if not wire.is_nonce(theirs) or not wire.is_same(expected, proof):
            await self._refuse(connection)
        own = wire.proof(self._token, client_handshake.AS_GATEWAY, theirs, mine)
        answer = b""
        await loop.sock_sendall(connection, client_handshake.line(mine, own))
        while client_handshake.END not in answer and len(answer) < MAX_FIRST_BYTES:
            data = await loop.sock_recv(connection, MAX_FIRST_BYTES)
            if not data:
                raise ConnectionResetError("closed before it proved itself")
            answer += data
        step, _, rest = answer.partition(client_handshake.END)
        proof = "".join(client_handshake.words(step))
        if not wire.is_same(wire.proof(self._token, client_handshake.AS_CLIENT, theirs, mine), proof):
            await self._refuse(connection)
        return rest

    async def _refuse(self, connection: socket.socket) -> None:
        peer = connection.getpeername()
        await self._throttle.delay_answer(logs.name_client("raydebug", peer), peer)
        await asyncio.get_running_loop().sock_sendall(connection, client_handshake.line(client_handshake.REFUSED))
        raise ConnectionRefusedError("wrong token")


class ProcessAuthentication:
    """The gateway's side of the handshake (protocol/wire.py) with a process that dials in."""

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
        if not isinstance(nonce, str) or not wire.is_nonce(nonce):
            raise await _refuse(connection, "no nonce")
        if not wire.is_same(wire.proof(self._token, wire.AS_HELLO, nonce), hello.get("proof")):
            raise await _refuse(connection, "wrong token")
        if nonce in self._hellos:
            raise await _refuse(connection, "its first packet was sent before")
        self._hellos.append(nonce)
        return nonce

    async def prove(self, connection: socket.socket, process_nonce: str) -> tuple[str, dict[str, Any]]:
        """Prove the gateway to a process and the process to the gateway; return the purpose and the process's record.

        Raises:
            ConnectionError: the proof is wrong, the process has no secret, or the connection ended.
            WireError: it is no message.
        """
        nonce = wire.new_nonce()
        proof = wire.proof(self._token, wire.AS_GATEWAY, process_nonce, nonce)
        await _send(connection, messages.PROOF, {"nonce": nonce, "proof": proof})
        answer = await _receive(connection, messages.PROOF, MAX_PROOF_BYTES)
        expected = wire.proof(self._token, wire.AS_PROCESS, process_nonce, nonce)
        if not wire.is_same(expected, answer.get("proof")):
            raise await _refuse(connection, "wrong token")
        process = answer.get("process")
        if not isinstance(process, dict) or not (secret := str(process.pop("secret", ""))):
            raise await _refuse(connection, "it has no secret of its own")
        await _send(connection, messages.WELCOME, {})
        # The instance, which lists show, follows from a secret: only the process itself can dial in under it again.
        process["instance"] = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return str(answer.get("purpose")), process


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
