"""One DAP conversation over one connection: requests get their responses, events queue up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable
from typing import Any

from raydebug.dap import wire
from raydebug.dap.keepalive import notice_loss
from raydebug.dap.tap import Tap
from raydebug.dap.wire import Message

OnAnswer = Callable[[Message | None], object]
READ_BYTES = 256 * 1024
# asyncio makes room for 256 KiB before each recv(), memory that malloc fetches from the kernel and gives back each
# time: 41 us a message where 64 KiB cost 11 us. Source: CPython 3.11 asyncio/selector_events.py:755, `max_size`.
RECEIVE_BYTES = 64 * 1024


class RequestFailed(Exception):
    """The other side answered a request with a failure; `body` is its response's body."""

    def __init__(self, command: str, message: str, body: Message) -> None:
        super().__init__(message)
        self.command = command
        self.body = body


class ConnectionLost(Exception):
    """The connection ended while somebody waited on it."""


class DapSession:
    """A conversation that we lead: we send requests, the other side answers and sends events.

    Args:
        reader, writer: the connection.
        on_event: called with every event as it arrives; without it, events wait in `events`.
        on_end: called once when the connection has ended.
        decoder: bytes already read from the connection may sit in it.
        first_seq: number of our first request.
        take_at_once: returns the response that some bytes are, whole and unparsed, or None. What it returns goes to
            whoever has asked in the moment in which it arrives.
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
        take_at_once: Callable[[bytes], Message | None] | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._on_end = on_end
        self._decoder = decoder or wire.Decoder()
        self._seq = itertools.count(first_seq)
        self._waiting: dict[int, asyncio.Future[Message] | OnAnswer] = {}
        self.events: asyncio.Queue[Message | None] = asyncio.Queue()
        self.ended = False
        self.failure: OSError | None = None  # why the connection broke, where it did not just end
        answer_at_once(writer)
        self._take_at_once = take_at_once
        self._tap = Tap(writer, self._answered) if take_at_once is not None else None
        self._task = asyncio.ensure_future(self._read())

    @classmethod
    async def connect(cls, host: str, port: int, *, timeout_s: float = 5.0, **options: Any) -> DapSession:
        """Open a connection to host:port.

        Raises:
            OSError: nothing answers there.
        """
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
        notice_loss(reader, writer)
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

    def send_raw(self, command: str, arguments: wire.RawJson, on_answer: OnAnswer) -> None:
        """Send a request whose arguments nobody has parsed.

        Args:
            command: of the request.
            arguments: of the request.
            on_answer: called with the response, whose body may be unparsed too; with None when the session ends first.
        """
        seq = next(self._seq)
        if self.ended:
            asyncio.get_running_loop().call_soon(on_answer, None)
            return
        self._waiting[seq] = on_answer
        self._writer.write(wire.raw_request(seq, command, arguments))

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
        if isinstance(body, wire.RawJson):
            body = body.parsed()
        if not answer.get("success"):
            raise RequestFailed(command, str(answer.get("message") or f"'{command}' failed"), body)
        return body

    async def next_event(self, *names: str, timeout_s: float | None = None) -> Message:
        """Return the next event with one of these names (any, when none is given); others are passed over.

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
                if self._tap is not None and not self._decoder.has_begun:
                    self._tap.nothing_waits()
        except OSError as error:
            self.failure = error
        except wire.WireError:
            pass  # a broken connection and a broken message end the session alike
        finally:
            self._end()

    def _take(self, message: Message) -> None:
        kind = message.get("type")
        if kind == "response":
            waiting = self._waiting.pop(message.get("request_seq", -1), None)
            if isinstance(waiting, asyncio.Future):
                if not waiting.done():
                    waiting.set_result(message)
            elif waiting is not None:  # in its turn, as whoever awaits a future
                asyncio.get_running_loop().call_soon(waiting, message)
        elif kind == "event":
            if self._on_event is not None:
                self._on_event(message)
            else:
                self.events.put_nowait(message)
        elif kind == "request":  # a reverse request (runInTerminal, startDebugging): we offer none
            self._writer.write(wire.encode(wire.refusal(next(self._seq), message, "not supported")))

    def _answered(self, data: bytes) -> bool:
        """Give a response that can be handed on as it is to whoever has asked; say whether the bytes were one."""
        assert self._take_at_once is not None
        message = self._take_at_once(data)
        if message is None:
            return False
        waiting = self._waiting.get(message["request_seq"])
        if waiting is None or isinstance(waiting, asyncio.Future):
            return False
        del self._waiting[message["request_seq"]]
        waiting(message)
        return True

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._writer.close()
        for waiting in self._waiting.values():
            if not isinstance(waiting, asyncio.Future):
                asyncio.get_running_loop().call_soon(waiting, None)
            elif not waiting.done():
                waiting.set_exception(ConnectionLost("the session ended"))
                waiting.exception()  # nobody may be waiting any more; that is no error of its own
        self._waiting.clear()
        self.events.put_nowait(None)
        if self._on_end is not None:
            self._on_end()


def answer_at_once(writer: asyncio.StreamWriter) -> None:
    """Make a connection quick for small messages: with Nagle's algorithm each request costs 44 ms."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(writer.transport, "max_size"):
        writer.transport.max_size = RECEIVE_BYTES
