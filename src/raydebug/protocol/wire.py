r"""A connection of a process and the gateway: DAP framing, the handshake's proofs (both pure), and TCP keepalive.

Source: https://microsoft.github.io/debug-adapter-protocol/overview#base-protocol

The handshake proves mutually that both hold the cluster's token, without sending it:

    process -> gateway   hello   {nonce, proof = HMAC(token, "hello" + its nonce)}
    gateway -> process   proof   {nonce, proof = HMAC(token, "gateway" + both nonces)}
    process -> gateway   proof   {proof = HMAC(token, "process" + both nonces), purpose, process: ProcessRecord}
    gateway -> process   welcome {}

After that the connection is what its purpose says: pydevd's, the control channel, or that of one snapshot. The proof in
the first packet shows that its sender holds the token, so the gateway can close other connections at once; a replayed
packet is useless, because the second proof covers the gateway's own nonce.

>>> encode({"seq": 1, "type": "request", "command": "threads"})
b'Content-Length: 46\r\n\r\n{"seq":1,"type":"request","command":"threads"}'
>>> Decoder().feed(encode({"seq": 1}) + encode({"seq": 2}))
[{'seq': 1}, {'seq': 2}]
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]

MAX_HEADER_BYTES = 8 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
NONCE_BYTES = 32
AS_HELLO, AS_GATEWAY, AS_PROCESS = "hello", "gateway", "process"  # roles of the proofs
HEAD_BYTES = 512  # of an oversized message: the number of its request is in them

_ENCODER = json.JSONEncoder(separators=(",", ":"), default=str)  # json.dumps() would create one for each message


class WireError(ValueError):
    """Bytes that are no DAP message; the text says why. The connection must be closed."""


def encode(message: Message) -> bytes:
    """Return one message as bytes, with its header."""
    body = _ENCODER.encode(message).encode("ascii")
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Decoder:
    """Collects bytes and gives out whole messages.

    Args:
        max_header_bytes: longest header accepted, in bytes.
        max_body_bytes: longest message body accepted, in bytes.
        on_oversized: called with length and first bytes of a longer body, which is skipped; returns a message
            in its place. Without it a longer body is an error.
    """

    def __init__(
        self,
        *,
        max_header_bytes: int = MAX_HEADER_BYTES,
        max_body_bytes: int = MAX_BODY_BYTES,
        on_oversized: Callable[[int, bytes], Message] | None = None,
    ) -> None:
        self.max_header_bytes = max_header_bytes
        self.max_body_bytes = max_body_bytes
        self._on_oversized = on_oversized
        self._buffer = bytearray()
        self._body_bytes: int | None = None
        self._head = b""  # of a body that is passed over
        self._passed_bytes = 0

    @property
    def has_begun(self) -> bool:
        """Whether a message has begun to arrive and its end is still to come."""
        return bool(self._buffer) or self._body_bytes is not None

    @property
    def missing_bytes(self) -> int:
        """How many bytes of the message that has begun are still to come, as far as its header says."""
        return max(1, (self._body_bytes or 0) - len(self._buffer))

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes and return every message that they complete.

        Raises:
            WireError: the bytes can never become a message.
        """
        self._buffer += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        if self._body_bytes is None:
            end = self._buffer.find(b"\r\n\r\n", 0, self.max_header_bytes + 4)
            if end < 0:
                if len(self._buffer) > self.max_header_bytes:
                    raise WireError(f"header longer than {self.max_header_bytes} bytes")
                return None
            self._body_bytes = self._length(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
        if self._body_bytes > self.max_body_bytes and self._on_oversized is not None:
            return self._pass_over(self._body_bytes, self._on_oversized)
        if len(self._buffer) < self._body_bytes:
            return None
        body = bytes(self._buffer[: self._body_bytes])
        del self._buffer[: self._body_bytes]
        self._body_bytes = None
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise WireError(f"body is not JSON: {type(error).__name__}") from error
        if not isinstance(message, dict):
            raise WireError("body is not a JSON object")
        return message

    def _pass_over(self, length: int, on_oversized: Callable[[int, bytes], Message]) -> Message | None:
        if not self._passed_bytes and len(self._buffer) < HEAD_BYTES:
            return None
        if not self._passed_bytes:
            self._head = bytes(self._buffer[:HEAD_BYTES])
        taken = min(len(self._buffer), length - self._passed_bytes)
        del self._buffer[:taken]
        self._passed_bytes += taken
        if self._passed_bytes < length:
            return None
        self._passed_bytes, self._body_bytes = 0, None
        return on_oversized(length, self._head)

    def _length(self, header: bytes) -> int:
        values = []
        for line in header.split(b"\r\n"):
            name, colon, value = line.partition(b":")
            if not colon:
                raise WireError("header line without a colon")
            if name.strip().lower() == b"content-length":
                values.append(value.strip())
        if len(values) != 1:
            raise WireError(f"{len(values)} Content-Length headers instead of 1")
        if not values[0].isdigit() or len(values[0]) > 12:  # int() would take signs, blanks, underscores
            raise WireError("Content-Length is not a number")
        length = int(values[0])
        if length > self.max_body_bytes and self._on_oversized is None:
            raise WireError(f"body of {length} bytes is over the limit of {self.max_body_bytes}")
        return length


def request(seq: int, command: str, arguments: Message | None = None) -> Message:
    """Return a request."""
    return {"seq": seq, "type": "request", "command": command, "arguments": arguments or {}}


def response(seq: int, to: Message, body: Message | None = None) -> Message:
    """Return the successful response to the request `to`."""
    return {"seq": seq, "type": "response", "request_seq": to.get("seq", 0), "command": to.get("command", ""),
            "success": True, "body": body or {}}  # fmt: skip


def refusal(seq: int, to: Message, message: str, body: Message | None = None) -> Message:
    """Return the failed response to the request `to`, with the reason for people."""
    return {"seq": seq, "type": "response", "request_seq": to.get("seq", 0), "command": to.get("command", ""),
            "success": False, "message": message, "body": body or {"error": {"id": 1, "format": message}}}  # fmt: skip


def event(seq: int, name: str, body: Message | None = None) -> Message:
    """Return an event."""
    return {"seq": seq, "type": "event", "event": name, "body": body or {}}


def new_nonce() -> str:
    """Return a fresh nonce as hexadecimal text."""
    return os.urandom(NONCE_BYTES).hex()


def is_nonce(text: str) -> bool:
    """Return whether a text has the form of a nonce."""
    return len(text) == 2 * NONCE_BYTES and text.isascii() and text.isalnum()


def is_same(expected: str, given: object) -> bool:
    """Compare two proofs or tokens in constant time; `given` may be any JSON value, lone surrogates included."""
    return isinstance(given, str) and hmac.compare_digest(expected.encode(), given.encode(errors="surrogatepass"))


def proof(token: str, role: str, dialler_nonce: str, gateway_nonce: str = "") -> str:
    """Return the proof of one role for two nonces; in the first packet of who dials there is only its own."""
    text = "\0".join(("raydebug dial-in 1", role, dialler_nonce, gateway_nonce))
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


# A silence of 10 s goes unnoticed. A dead peer is detected after 22 s: probes after 10 s and every 4 s.
IDLE_BEFORE_PROBE_S, BETWEEN_PROBES_S, PROBES = 10, 4, 3


def enable_keepalive(connection: socket.socket) -> None:
    """Make the kernel end a TCP connection whose peer has not answered for 22 s."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux has all of them
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_BEFORE_PROBE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, BETWEEN_PROBES_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
