"""The connection to one client, and its requests, which are forwarded to the process of its pause."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable

from raydebug.dap import READ_BYTES, ConnectionLost, RequestFailed, reduce_latency
from raydebug.gateway import client_requests
from raydebug.gateway.board import Board, Pause
from raydebug.gateway.client_requests import Refused
from raydebug.gateway.path_map import PathMap
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
        if self._writer.is_closing() or self._is_closing:
            return
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._on_unread()
            self._writer.transport.abort()
            return
        self._writer.write(wire.encode({**message, "seq": next(self._seq)}))

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


MAX_IN_FLIGHT = 16  # further requests of a client that does not read its responses wait
CHECK_FOR_END_S = 1.0


class Forwarder:
    """The requests of one client that are in flight.

    Args:
        to: the client's connection.
        board: the cluster's pauses.
        on_continued: called with a pause whose thread the client has resumed with `continue`.
    """

    def __init__(self, to: Connection, board: Board, on_continued: Callable[[Pause], None]) -> None:
        self._to = to
        self._board = board
        self._on_continued = on_continued
        self.paths = PathMap([])
        self._in_flight = 0
        self._answered = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def have_room(self) -> None:
        """Wait until the client has read its responses; its further requests stay in its socket."""
        while self._in_flight >= MAX_IN_FLIGHT and not self._to.has_ended:
            self._answered.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), CHECK_FOR_END_S)
        await self._to.drain()

    def forward(self, message: Message, command: str, arguments: Message, pause: Pause | None) -> None:
        """Send a request to the process of the client's pause.

        Raises:
            Refused: there is no such process, or the thread to resume is not paused.
        """
        if pause is None or pause.process.ended:
            raise client_requests.process_gone()
        process = pause.process
        if command == "source" and (path := self.paths.file_of(client_requests.source_reference(arguments))):
            self._answer_later(message, lambda: read_source(pause, path))
            return
        if command == "pause":
            thread_id = arguments.get("threadId")
            self._answer_later(message, lambda: process.pause_thread(thread_id))
            return
        self.paths.translate_arguments(arguments)
        if command == "setExceptionBreakpoints":  # post-mortem pauses need it, whatever a client prefers
            arguments["filters"] = sorted({*arguments.get("filters", ()), "uncaught"})
        resumed: Pause | None = None
        if command in client_requests.RESUMING:
            arguments.setdefault("threadId", pause.thread_id)
            if command == "continue":
                arguments["singleThread"] = True
            resumed = self._board.of_thread(process, arguments["threadId"])
            if resumed is None:  # given the id of a frame, pydevd ends the session and the thread runs on
                fix = "resume a thread that `stopped` has named, or leave the threadId out"
                cause = f"thread {arguments['threadId']} of the process is not paused"
                raise Refused("request.not-paused", cause, fix)
        stop = resumed.stopped if resumed is not None else None
        future = process.session.send(command, arguments)
        self._in_flight += 1

        def answered(done: asyncio.Future[Message]) -> None:
            answer = None if done.cancelled() or done.exception() is not None else done.result()
            if resumed is not None and answer is not None and answer.get("success"):
                if command == "continue":
                    self._on_continued(resumed)
                self._board.resumed(resumed, stop, reason="it was continued" if command == "continue" else None)
            self._hand_back(message, answer)

        future.add_done_callback(answered)

    def send_event(self, event: Message) -> None:
        """Send an event of the process to the client."""
        self._to.send({**event, "body": self.paths.translate_body(event.get("body")), "seq": 0})

    def cancel(self) -> None:
        """Cancel the requests that take several requests to the process."""
        for task in self._tasks:
            task.cancel()

    def _hand_back(self, message: Message, answer: Message | None) -> None:
        self._in_flight -= 1
        self._answered.set()
        if answer is None:
            if message.get("command") in client_requests.RESUMING:  # it resumed, and ended before it could respond
                self._to.answer(message)
                return
            self._to.refuse(message, client_requests.process_gone())
            return
        body = self.paths.translate_body(answer.get("body"))
        self._to.send({**answer, "body": body, "seq": 0, "request_seq": message.get("seq", 0)})

    def _answer_later(self, message: Message, ask: Callable[[], Awaitable[Message]]) -> None:
        async def answer() -> None:
            try:
                self._to.answer(message, await ask())
            except (RequestFailed, ConnectionLost, TimeoutError) as error:
                cause, fix = str(error) or "there was no response in time", "stop the thread first, then ask again"
                self._to.refuse(message, Refused("request.failed", cause, fix))
            finally:
                self._in_flight -= 1
                self._answered.set()

        self._in_flight += 1
        task = asyncio.ensure_future(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def read_source(pause: Pause, path: str) -> Message:
    """Return the body of the response to `source` for a file that exists only in the cluster.

    pydevd returns a file only for a reference of its own, so the suspended frame reads it.

    Raises:
        RequestFailed: the file cannot be read there.
        ConnectionLost: the process ended.
        TimeoutError: the thread runs, or is busy.
    """
    frame = await pause.process.top_frame(pause.thread_id)
    text = await pause.process.session.request(
        "evaluate",
        {
            "expression": f"''.join(__import__('linecache').getlines({path!r}))",
            "frameId": frame.get("id"),
            "context": "clipboard",  # the only context whose values pydevd does not cut
            "format": {"rawString": True},
        },
    )
    content = str(text.get("result", ""))
    if not content:
        raise RequestFailed("source", f"{path} cannot be read in the cluster", {})
    return {"content": content, "mimeType": "text/x-python"}
