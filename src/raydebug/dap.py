"""One DAP conversation over one TCP connection: requests get their responses, events are queued or handled at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable
from typing import Any

from raydebug.protocol import wire
from raydebug.protocol.client_handshake import MAX_BYTES, ClientHandshake, is_whole
from raydebug.protocol.lost_peers import watch_peer
from raydebug.protocol.wire import Message

READ_BYTES = 256 * 1024
# asyncio allocates 256 KiB for each recv(), which malloc gets from the kernel and returns each time: 41 us a message
# instead of 11 us with 64 KiB. Source: CPython 3.11 asyncio/selector_events.py:755, `max_size`.
RECEIVE_BYTES = 64 * 1024
PROOF_TIMEOUT_S = 5.0


class RequestFailed(Exception):
    """The other side answered a request with a failure; `body` is its response's body."""

    def __init__(self, command: str, message: str, body: Message) -> None:
        super().__init__(message)
        self.command = command
        self.body = body


class ConnectionLost(Exception):
    """The connection ended before a response or an event arrived."""


class DapSession:
    """The client side of a DAP conversation.

    Args:
        on_event: called with every event as it arrives; without it, events wait in `events`.
        on_end: called once when the connection has ended.
        decoder: may contain bytes that were already read from the connection.
        first_seq: number of the first request.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        on_event: Callable[[Message], object] | None = None,
        on_end: Callable[[], object] | None = None,
        decoder: wire.Decoder | None = None,
        first_seq: int = 1,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._on_end = on_end
        self._decoder = decoder or wire.Decoder()
        self._seq = itertools.count(first_seq)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self.events: asyncio.Queue[Message | None] = asyncio.Queue()
        self.ended = False
        self.failure: OSError | None = None  # why the connection broke; None if it was closed
        reduce_latency(writer)
        self._task = asyncio.ensure_future(self._read())

    @classmethod
    async def connect(
        cls, host: str, port: int, *, timeout_s: float = 5.0, token: str = "", **options: Any
    ) -> DapSession:
        """Open a connection to host:port.

        With a token, a gateway has to prove that it holds it, as we do; without one nothing is proved.

        Raises:
            NotProven: what listens there does not hold the token.
            OSError: nothing listens there, or the connection timed out.
        """
        async with asyncio.timeout(timeout_s):
            reader, writer = await (open_proven(host, port, token) if token else asyncio.open_connection(host, port))
        watch_peer(reader, writer)
        return cls(reader, writer, **options)

    def send(self, command: str, arguments: Message | None = None) -> asyncio.Future[Message]:
        """Send a request at once and return the future of its whole response message (also a failed one)."""
        seq = next(self._seq)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        if self.ended:
            future.set_exception(ConnectionLost(f"the session ended before '{command}'"))
            return future
        self._waiting[seq] = future
        self._writer.write(wire.encode(wire.request(seq, command, arguments)))
        return future

    async def request(
        self, command: str, arguments: Message | None = None, *, timeout_s: float | None = 30.0
    ) -> Message:
        """Send a request and return the body of its response.

        Raises:
            RequestFailed: the other side refused.
            ConnectionLost: the connection ended first.
            TimeoutError: no answer within timeout_s seconds.
        """
        async with asyncio.timeout(timeout_s):
            answer = await self.send(command, arguments)
        body: Message = answer.get("body") or {}
        if not answer.get("success"):
            raise RequestFailed(command, str(answer.get("message") or f"'{command}' failed"), body)
        return body

    async def next_event(self, *names: str, timeout_s: float | None = None) -> Message:
        """Return the next event with one of these names (any, when none is given); others are skipped.

        Raises:
            ConnectionLost: the connection ended first.
            TimeoutError: none came within timeout_s seconds.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                message = await self.events.get()
                if message is None:
                    self.events.put_nowait(None)
                    raise ConnectionLost("the session ended")
                if not names or message.get("event") in names:
                    return message

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await self._task
        self._end()

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(READ_BYTES):
                for message in self._decoder.feed(data):
                    self._take(message)
        except OSError as error:
            self.failure = error
        except wire.WireError:
            pass  # a broken message ends the session too
        finally:
            self._end()

    def _take(self, message: Message) -> None:
        kind = message.get("type")
        if not isinstance(message.get("body", {}), dict):
            message["body"] = {}
        if kind == "response":
            seq = message.get("request_seq")
            waiting = self._waiting.pop(seq, None) if isinstance(seq, int) else None
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        elif kind == "event":
            if self._on_event is not None:
                self._on_event(message)
            else:
                self.events.put_nowait(message)
        elif kind == "request":  # a reverse request (runInTerminal, startDebugging): not supported
            self._writer.write(wire.encode(wire.refusal(next(self._seq), message, "not supported")))

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost("the session ended"))
                waiting.exception()  # mark it as retrieved: its waiter may have been cancelled
        self._waiting.clear()
        self.events.put_nowait(None)
        if self._on_end is not None:
            self._on_end()


async def open_proven(host: str, port: int, token: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to a gateway; each side proves to the other that it holds the token, which is not sent.

    Raises:
        NotProven: what listens there does not hold the token.
        OSError: nothing listens there.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        handshake, answer = ClientHandshake(token), b""
        writer.write(handshake.hello)
        async with asyncio.timeout(PROOF_TIMEOUT_S):
            while not is_whole(answer) and (data := await reader.read(MAX_BYTES - len(answer))):
                answer += data
        writer.write(handshake.prove(answer))
    except BaseException:
        writer.close()
        raise
    return reader, writer


def reduce_latency(writer: asyncio.StreamWriter) -> None:
    """Reduce the latency of small messages: with Nagle's algorithm each request takes 44 ms."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(writer.transport, "max_size"):
        writer.transport.max_size = RECEIVE_BYTES
