"""The connection to one client: numbers the messages to it, and limits how much it may leave unread."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable

from raydebug.dap import READ_BYTES, reduce_latency
from raydebug.gateway.requests import Refused
from raydebug.protocol import wire
from raydebug.protocol.wire import Message

MAX_UNSENT_BYTES = 32 * 1024 * 1024  # then the connection of a client that does not read is aborted
LAST_MESSAGES_S, MAX_DROPPED_BYTES = 0.5, 1024 * 1024


class Connection:
    """The connection to a client.

    Args:
        reader, writer: of the connection.
        on_unread: called before the connection of a client that does not read is aborted.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_unread: Callable[[], None]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_unread = on_unread
        self._is_closing = False
        self._seq = itertools.count(1)
        reduce_latency(writer)

    @property
    def peer(self) -> object:
        """The client's address."""
        return self._writer.get_extra_info("peername")

    @property
    def own_address(self) -> tuple[str, int]:
        """The local host and port of the connection."""
        host, port = (self._writer.get_extra_info("sockname") or ("127.0.0.1", 0))[:2]
        return host, port

    @property
    def has_ended(self) -> bool:
        """Whether the connection is closed in one direction."""
        return self._writer.is_closing() or self._reader.at_eof()

    @property
    def unsent_bytes(self) -> int:
        """Bytes sent to the client that the kernel has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    def answer(self, message: Message, body: Message | None = None) -> None:
        """Send the response to a request."""
        self.send(wire.response(0, message, body))

    def refuse(self, message: Message, refused: Refused) -> None:
        """Send the failed response to a request, with the reason."""
        cause = str(refused)
        text = f"{cause}; {refused.fix}"  # some editors show `message`, others `format`
        error = {"id": 1, "format": text, "showUser": True, "code": refused.code, "cause": cause, "fix": refused.fix}
        self.send(wire.refusal(0, message, text, {"error": error}))

    def say(self, text: str) -> None:
        """Show a line to the client's user."""
        self.send(wire.event(0, "output", {"category": "important", "output": f"{text}\n"}))

    def send(self, message: Message) -> None:
        """Send a message, with the next number."""
        if self._may_send():
            self._writer.write(wire.encode({**message, "seq": next(self._seq)}))

    def _may_send(self) -> bool:
        if self._writer.is_closing() or self._is_closing:
            return False
        if self.unsent_bytes > MAX_UNSENT_BYTES:
            self._on_unread()
            self._writer.transport.abort()
            return False
        return True

    async def drain(self) -> None:
        """Wait until the client has read enough of its messages."""
        await self._writer.drain()

    async def let_read(self) -> None:
        """Let the client read the last messages: closing with unread input resets the connection and discards them."""
        dropped, self._is_closing = 0, True
        with contextlib.suppress(OSError, TimeoutError):
            self._writer.write_eof()
            async with asyncio.timeout(LAST_MESSAGES_S):
                while dropped < MAX_DROPPED_BYTES and (data := await self._reader.read(READ_BYTES)):
                    dropped += len(data)

    def close(self) -> None:
        """Close the connection after all messages have been sent."""
        self._writer.close()
