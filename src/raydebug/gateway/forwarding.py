"""Forwards a client's requests to the process of its pause, and the responses and events back to the client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from raydebug.dap import ConnectionLost, RequestFailed
from raydebug.gateway import requests
from raydebug.gateway.board import Board, Pause
from raydebug.gateway.connection import Connection
from raydebug.gateway.path_mappings import PathMap
from raydebug.protocol.wire import Message

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
            raise requests.process_gone()
        process = pause.process
        if command == "source" and (path := self.paths.file_of(requests.source_reference(arguments))):
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
        if command in requests.RESUMING:
            arguments.setdefault("threadId", pause.thread_id)
            if command == "continue":
                arguments["singleThread"] = True
            resumed = self._board.of_thread(process, arguments["threadId"])
            if resumed is None:  # given the id of a frame, pydevd ends the session and the thread runs on
                raise requests.not_paused(arguments["threadId"])
        stop = resumed.stopped if resumed is not None else None
        future = process.session.send(command, arguments)
        self._in_flight += 1

        def answered(done: asyncio.Future[Message]) -> None:
            answer = None if done.cancelled() or done.exception() is not None else done.result()
            if resumed is not None and answer is not None and answer.get("success"):
                self._note_resumed(resumed, stop, command)
            self._hand_back(message, answer)

        future.add_done_callback(answered)

    def send_event(self, event: Message) -> None:
        """Send an event of the process to the client."""
        self._to.send({**event, "body": self.paths.translate_body(event.get("body")), "seq": 0})

    def cancel(self) -> None:
        """Cancel the requests that take several requests to the process."""
        for task in self._tasks:
            task.cancel()

    def _note_resumed(self, pause: Pause, stop: Message | None, command: str) -> None:
        if command == "continue":
            self._on_continued(pause)
        self._board.resumed(pause, stop, reason="it was continued" if command == "continue" else None)

    def _hand_back(self, message: Message, answer: Message | None) -> None:
        self._in_flight -= 1
        self._answered.set()
        if answer is None:
            if message.get("command") in requests.RESUMING:  # it resumed, and ended before it could respond
                self._to.answer(message)
                return
            self._to.refuse(message, requests.process_gone())
            return
        body = self.paths.translate_body(answer.get("body"))
        self._to.send({**answer, "body": body, "seq": 0, "request_seq": message.get("seq", 0)})

    def _answer_later(self, message: Message, ask: Callable[[], Awaitable[Message]]) -> None:
        async def answer() -> None:
            try:
                self._to.answer(message, await ask())
            except (RequestFailed, ConnectionLost, TimeoutError) as error:
                self._to.refuse(message, requests.failed(str(error) or "there was no response in time"))
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
