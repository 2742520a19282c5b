"""What goes to one client: numbered, in DAP's forms, and never more than it reads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable

from raydebug.dap import wire
from raydebug.dap.session import READ_BYTES, answer_at_once
from raydebug.dap.tap import Tap
from raydebug.dap.wire import Message
from raydebug.gateway.refusals import Refused

MAX_UNSENT_BYTES = 32 * 1024 * 1024  # to a client that does not read what it asks for: then it is cut off
LAST_WORDS_S, MAX_DROPPED_BYTES = 0.5, 1024 * 1024


class Connection:
    """The way back to a client.

    Args:
        reader, writer: of its connection.
        on_deaf: called before a client is cut off that reads nothing at all.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_deaf: Callable[[], None]) -> None:
        self._reader = reader
        self._writer = writer
        self._on_deaf = on_deaf
        self._seq = itertools.count(1)
        answer_at_once(writer)

    @property
    def peer(self) -> object:
        """The client's address."""
        return self._writer.get_extra_info("peername")

    @property
    def own_address(self) -> tuple[str, int]:
        """Where the client has come in: host and port."""
        host, port = (self._writer.get_extra_info("sockname") or ("127.0.0.1", 0))[:2]
        return host, port

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes or goes."""
        return self._writer.is_closing() or self._reader.at_eof()

    @property
    def unsent_bytes(self) -> int:
        """What it was sent and has not read, but for what its kernel keeps for it."""
        return self._writer.transport.get_write_buffer_size()

    def tap(self, take: Callable[[bytes], bool]) -> Tap:
        """Offer what the client sends to `take` before the stream gets it."""
        return Tap(self._writer, take)

    def answer(self, message: Message, body: Message | None = None) -> None:
        """Send the response to a request."""
        self.send(wire.response(0, message, body))

    def refuse(self, message: Message, refused: Refused) -> None:
        """Send the failed response to a request, with the reason."""
        text = str(refused)
        error = {"id": 1, "format": text, "showUser": True, "code": refused.code, "fix": refused.fix}
        self.send(wire.refusal(0, message, text, {"error": error}))

    def say(self, text: str) -> None:
        """Let the client's user read a line."""
        self.send(wire.event(0, "output", {"category": "important", "output": f"{text}\n"}))

    def send(self, message: Message) -> None:
        """Send a message, with the next number."""
        if self._reads():
            self._writer.write(wire.encode({**message, "seq": next(self._seq)}))

    def send_raw(self, message: Message, body: wire.RawJson) -> None:
        """Send the response to a request, with a body that is JSON text already."""
        if self._reads():
            self._writer.write(wire.raw_response(next(self._seq), message, body))

    def _reads(self) -> bool:
        if self._writer.is_closing():
            return False
        if self.unsent_bytes > MAX_UNSENT_BYTES:
            self._on_deaf()
            self._writer.transport.abort()
            return False
        return True

    async def drain(self) -> None:
        """Wait until the client has read enough of what it was sent."""
        await self._writer.drain()

    async def let_read(self) -> None:
        """Let the client read the last words: a close with input unread resets the connection, and they are lost."""
        dropped = 0
        with contextlib.suppress(OSError, TimeoutError):
            self._writer.write_eof()
            async with asyncio.timeout(LAST_WORDS_S):
                while dropped < MAX_DROPPED_BYTES and (data := await self._reader.read(READ_BYTES)):
                    dropped += len(data)

    def close(self) -> None:
        """End the connection, once what is on its way has been sent."""
        self._writer.close()
