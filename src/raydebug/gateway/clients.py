"""A debugger that comes by the clients' port: proves itself, takes one pause, speaks DAP to its process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable

from raydebug.dap import wire
from raydebug.dap.session import READ_BYTES, ConnectionLost, RequestFailed
from raydebug.dap.tap import Tap
from raydebug.dap.wire import Message
from raydebug.gateway import audit, refusals, requests, unparsed
from raydebug.gateway.asked import PID, WORKER, Asked
from raydebug.gateway.connection import Connection
from raydebug.gateway.parent import TARGET, Parent
from raydebug.gateway.paths import PathMap
from raydebug.gateway.pauses import Pause, Pauses
from raydebug.gateway.refusals import LOOK, Refused
from raydebug.gateway.sources import read_source
from raydebug.gateway.tries import WrongTries
from raydebug.worker import handshake

AUTHENTICATION_TIMEOUT_S = 5.0
MAX_UNPROVEN_BYTES = 4 * 1024
# Of a client that does not read what it asks for, further requests wait.
MAX_IN_FLIGHT = 16
LOOK_FOR_END_S = 1.0


class Client:
    """One DAP conversation with a debugger.

    Args:
        token: the cluster's token.
        pauses: where it finds the pause that it asks for.
        asked: stops processes that work.
        reader, writer: the connection.
        tries: counts wrong tokens.
        on_proven: called once when it has shown the token.
    """

    def __init__(
        self,
        token: str,
        pauses: Pauses,
        asked: Asked,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        tries: WrongTries,
        on_proven: Callable[[], None] = lambda: None,
    ) -> None:
        self._token = token
        self._pauses = pauses
        self._asked = asked
        self._reader = reader
        self._to = Connection(reader, writer, self._cut_off)
        self._tries = tries
        self._on_proven = on_proven
        self._attaching: asyncio.Task[None] | None = None
        self._configured = False
        self._starts_sessions = False
        self._parent: Parent | None = None
        self._paths = PathMap([])
        self._in_flight = 0
        self._answered = asyncio.Event()
        self._reading: set[asyncio.Task[None]] = set()
        self._guessed: tuple[Message, Refused] | None = None
        self.proven = False
        self.pause: Pause | None = None
        self.name = "a client"

    @property
    def title(self) -> str:
        """Name the client for the log."""
        return audit.title_of(self.name, self._to.peer)

    async def serve(self, first: bytes) -> None:
        """Answer the client until it leaves."""
        try:
            await self._converse(first)
        except wire.WireError as error:
            self._to.say(f"raydebug: {error}")
            await self._to.let_read()
        except (OSError, TimeoutError):
            pass  # gone, or it did not attach in time
        finally:
            self._leave()

    async def _converse(self, data: bytes) -> None:
        decoder = wire.Decoder(max_body_bytes=MAX_UNPROVEN_BYTES)
        tap: Tap | None = None
        deadline = asyncio.get_running_loop().time() + AUTHENTICATION_TIMEOUT_S
        left = MAX_UNPROVEN_BYTES  # bytes that it may still send without the token
        while data:
            for message in decoder.feed(data):
                if message.get("type") == "request" and not self._take(message):
                    return
                if self._guessed is not None:
                    await self._tries.answer_late()
                    self._to.refuse(*self._guessed)
                    self._guessed = None
                await self._have_room()
            if self.proven:
                decoder.max_body_bytes = wire.MAX_BODY_BYTES
                tap = tap or self._to.tap(self._pass_on)
                if not decoder.has_begun:
                    tap.nothing_waits()
            else:
                left -= len(data)
                if left <= 0:
                    raise wire.WireError(f"more than {MAX_UNPROVEN_BYTES} bytes before the token")
            async with asyncio.timeout_at(None if self.proven else deadline):
                data = await self._reader.read(READ_BYTES if self.proven else left)

    async def _have_room(self) -> None:
        """Wait until the client has read enough of what it has asked for: its further requests stay in its socket."""
        while self._in_flight >= MAX_IN_FLIGHT and not self._to.has_ended:
            self._answered.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), LOOK_FOR_END_S)
        await self._to.drain()

    # Requests

    def _take(self, message: Message) -> bool:
        """Answer one request; False ends the conversation."""
        try:
            return self._answer_request(message, *requests.read(message))
        except Refused as refused:
            if refused.code == refusals.WRONG_TOKEN:
                self._guessed = (message, refused)  # answered when its time has come
            else:
                self._to.refuse(message, refused)
            return True

    def _answer_request(self, message: Message, command: str, arguments: Message) -> bool:
        if command == "initialize":
            self.name = str(arguments.get("clientName") or "a client")[:80]
            self._starts_sessions = arguments.get("supportsStartDebuggingRequest") is True
            self._to.answer(message, requests.capabilities())
        elif command == "attach":
            self._attach(message, arguments)
        elif command == "disconnect":
            self._to.answer(message)
            return False
        elif not self.proven:
            raise refusals.not_proven(command)
        elif self._parent is not None:
            self._parent.take(message)
        elif command == "configurationDone":
            self._to.answer(message)
            self._configured = True
            self._show_stop()
        elif command in requests.HANDED_ON:
            self._hand_on(message, command, dict(arguments))
        else:
            raise refusals.unknown(command)
        return True

    def _attach(self, message: Message, arguments: Message) -> None:
        if not handshake.same(self._token, arguments.get("token")):
            audit.note("refuse", self.title, reason="wrong token")
            raise refusals.wrong_token()
        self.proven = True
        self._on_proven()
        if self.pause is not None or self._parent is not None or self._attaching is not None:
            raise Refused("pause.busy", "this client is attached already", "open a second connection")
        self._paths = PathMap.of(arguments)
        target = str(arguments.get("target", "next"))
        if target == TARGET:
            self._become_parent(message, arguments)
        else:
            self._attaching = asyncio.ensure_future(self._attach_to(message, target, bool(arguments.get("steal"))))

    def _become_parent(self, message: Message, arguments: Message) -> None:
        own = self._to.own_address
        self._parent = Parent(self._to, self._pauses, arguments, own, starts_sessions=self._starts_sessions)
        audit.note("watch", self.title, job=arguments.get("job"), ranks=arguments.get("ranks"))
        self._to.answer(message)
        self._to.send(wire.event(0, "initialized"))

    async def _attach_to(self, message: Message, target: str, steal: bool) -> None:
        try:
            if target.startswith((PID, WORKER)):
                pause = await self._asked.pause(target, self.title, self._to.say, steal=steal)
                if pause.client is not None:
                    pause = self._find(pause.id, steal=steal)
            else:
                pause = await self._pauses.next_waiting() if target == "next" else self._find(target, steal=steal)
        except Refused as refused:
            self._attaching = None
            audit.note("refuse", self.title, target=target, reason=refused.code)
            self._to.refuse(message, refused)
            return
        self.follow(pause)
        audit.note("attach", self.title, pause)
        self._to.answer(message, {"pause": pause.describe()})
        self._to.send(wire.event(0, "initialized"))
        self._show_stop()  # to a client that sent all at once, its configuration behind its `attach`

    def _find(self, pause_id: str, *, steal: bool) -> Pause:
        pause = self._pauses.get(pause_id)
        if pause is None:
            reason = self._pauses.why_ended(pause_id)
            if reason is None:
                raise Refused("pause.unknown", f"there is no pause '{pause_id[:40]}'", LOOK)
            raise Refused("pause.ended", f"pause {pause_id} has ended: {reason}", LOOK)
        if pause.client is not None:
            held = f"{pause.client.name} holds pause {pause_id} since {time.time() - pause.client_since:.0f} s"
            if not steal:
                raise Refused("pause.busy", held, "let go there, or take it over with --steal")
            audit.note("steal", self.title, pause, of=pause.client.name)
            pause.client.lost("another client took this pause over")
        return pause

    def _hand_on(self, message: Message, command: str, arguments: Message) -> None:
        pause = self.pause
        if pause is None or pause.process.ended:
            raise refusals.process_gone()
        if command == "source" and (path := self._paths.file_of(requests.source_reference(arguments))):
            self._read_source(message, pause, path)
            return
        self._paths.translate_arguments(arguments)
        if command == "setExceptionBreakpoints":  # post-mortem pauses need it, whatever a client prefers
            arguments["filters"] = sorted({*arguments.get("filters", ()), "uncaught"})
        if command in requests.RESUMING:
            arguments.setdefault("threadId", pause.thread_id)
            if command == "continue":
                arguments["singleThread"] = True
            pause.stopped = None
        future = pause.process.session.send(command, arguments)
        self._in_flight += 1
        future.add_done_callback(lambda done: self._hand_back(message, pause, _answer_of(done)))

    def _pass_on(self, data: bytes) -> bool:
        """Hand a question on without a look inside; say whether the bytes were one for which there is room."""
        pause = self.pause
        if pause is None or pause.process.ended or self._in_flight >= MAX_IN_FLIGHT or self._to.unsent_bytes:
            return False
        message = unparsed.question(data)
        if message is None or (self._paths and message["command"] in unparsed.NAMING_FILES):
            return False
        self._in_flight += 1
        on_answer = functools.partial(self._hand_back, message, pause)
        pause.process.session.send_raw(message["command"], message["arguments"], on_answer)
        return True

    def _hand_back(self, message: Message, pause: Pause, answer: Message | None) -> None:
        self._in_flight -= 1
        self._answered.set()
        if answer is None:
            if message.get("command") in requests.RESUMING:  # it went on, and to its end before it could say so
                self._to.answer(message)
                return
            self._to.refuse(message, refusals.process_gone())
            return
        if answer.get("success") and message.get("command") == "continue":
            audit.note("resume", self.title, pause)
            pause.process.let_go(pause, "it was continued")
        if isinstance(answer.get("body"), wire.RawJson):
            self._to.send_raw(message, answer["body"])
            return
        body = self._paths.translate_body(answer.get("body"))
        self._to.send({**answer, "body": body, "seq": 0, "request_seq": message.get("seq", 0)})

    def _read_source(self, message: Message, pause: Pause, path: str) -> None:
        async def read() -> None:
            try:
                self._to.answer(message, await read_source(pause, path))
            except (RequestFailed, ConnectionLost, TimeoutError, LookupError) as error:
                fix = "stop the thread first, then open the file again"
                self._to.refuse(
                    message, Refused("source.unreadable", str(error) or f"{path} was not read in time", fix)
                )

        task = asyncio.ensure_future(read())
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    # What the process reports

    def follow(self, pause: Pause) -> None:
        """Make a pause this client's."""
        if self.pause is not None:
            pause.first = self.pause.first
            if self.pause.client is self:
                self.pause.client = None
        self.pause = pause
        pause.client, pause.promised = self, False
        pause.client_since = time.time()
        if self not in pause.process.clients:
            pause.process.clients.append(self)

    def waits_for_next(self) -> bool:
        """Say whether it has let its pause run and waits for the next one of that process."""
        return self.pause is not None and self._pauses.get(self.pause.id) is None

    def take_next(self, pause: Pause) -> bool:
        """Take a new pause of the same process, when this client has let go of its last one."""
        if not self.waits_for_next():
            return False
        self.follow(pause)
        audit.note("attach", self.title, pause)
        self._show_stop()
        return True

    def forward(self, message: Message) -> None:
        """Hand an event on to the client."""
        if self._configured:
            self._to.send({**message, "body": self._paths.translate_body(message.get("body")), "seq": 0})

    def lost(self, reason: str) -> None:
        """Tell the client that its process is gone, and end."""
        self._to.say(f"raydebug: {reason}")
        self._to.send(wire.event(0, "terminated", {"reason": reason}))
        self._leave()

    def _show_stop(self) -> None:
        pause = self.pause
        if self._configured and pause is not None and pause.stopped is not None:
            self._to.send(wire.event(0, "stopped", {**pause.stopped, "pause": pause.describe()}))

    # The end

    def _cut_off(self) -> None:
        audit.note("refuse", self.title, self.pause, reason="it does not read what it asks for")
        self._leave()

    def _leave(self) -> None:
        """Let go of the pause; its thread stays where it is, for the next client."""
        for task in [self._attaching, *self._reading]:
            if task is not None:
                task.cancel()
        if self._parent is not None:
            self._parent.end()
        pause, self.pause = self.pause, None
        if pause is not None:
            with contextlib.suppress(ValueError):
                pause.process.clients.remove(self)
            audit.note("detach", self.title, pause)
            if pause.client is self:
                pause.client = None
                self._pauses.changed()
        self._to.close()


def _answer_of(done: asyncio.Future[Message]) -> Message | None:
    return None if done.cancelled() or done.exception() is not None else done.result()
