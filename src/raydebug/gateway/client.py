"""A debugger client on the clients' port: it authenticates, gets one pause, and speaks DAP to its process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from raydebug.dap import READ_BYTES
from raydebug.gateway import client_requests, logs
from raydebug.gateway.board import Board, Pause
from raydebug.gateway.client_requests import LOOK, Refused
from raydebug.gateway.forwarding import Connection, Forwarder
from raydebug.gateway.listener import Pieces
from raydebug.gateway.path_map import PathMap
from raydebug.gateway.pause_requests import PauseRequests
from raydebug.gateway.root_session import ROOT, TARGET, RootSession
from raydebug.gateway.throttle import AuthThrottle
from raydebug.protocol import messages, wire
from raydebug.protocol.messages import COPIES
from raydebug.protocol.wire import Message

AUTHENTICATION_TIMEOUT_S = 5.0
MAX_UNPROVEN_BYTES = 4 * 1024


@dataclass
class Services:
    """What all clients of a gateway share."""

    token: str  # the cluster's
    board: Board
    pause_requests: PauseRequests
    throttle: AuthThrottle
    roots: dict[str, RootSession] = field(default_factory=dict)  # of editors, by id


class Client:
    """One DAP conversation with a debugger.

    Args:
        services: shared by all clients.
        reader, writer: the connection.
        on_proven: called once when the client has shown the token.
        has_proved: it has proved that it holds the token, and need not send it.
    """

    def __init__(
        self,
        services: Services,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_proven: Callable[[], None],
        *,
        has_proved: bool,
    ) -> None:
        self._services = services
        self._board = services.board
        self._reader = reader
        self._to = Connection(reader, writer, self._cut_off)
        on_continued: Callable[[Pause], None] = lambda pause: logs.audit("resume", self.title, pause)  # noqa: E731
        self._forwarder = Forwarder(self._to, services.board, on_continued)
        self._on_proven = on_proven
        self._has_proved = has_proved
        self._proven = False
        self._configured = False
        self._starts_sessions = False
        self._attaching: asyncio.Task[None] | None = None
        self._root: RootSession | None = None  # what the client is, after `attach` with target "all"
        self._opened_by: RootSession | None = None
        self.name = "a client"

    @property
    def title(self) -> str:
        """Name the client for the log."""
        return logs.name_client(self.name, self._to.peer)

    async def serve(self, first: bytes) -> None:
        """Answer the client until it leaves."""
        try:
            await self._converse(first)
        except wire.WireError as error:
            self._to.say(f"raydebug: {error}")
            await self._to.let_read()
        except (OSError, TimeoutError):
            pass  # the connection broke, or the client did not attach in time
        finally:
            self._leave()

    async def _converse(self, data: bytes) -> None:
        decoder = wire.Decoder(max_body_bytes=MAX_UNPROVEN_BYTES)
        deadline = asyncio.get_running_loop().time() + AUTHENTICATION_TIMEOUT_S
        pieces = Pieces()
        left = MAX_UNPROVEN_BYTES  # bytes that it may still send without the token
        while data:
            for message in decoder.feed(data):
                if message.get("type") == "request" and not await self._take(message):
                    return
                await self._forwarder.have_room()
            if self._proven:
                decoder.max_body_bytes = wire.MAX_BODY_BYTES
            else:
                left -= len(data)
                if left <= 0:
                    raise wire.WireError(f"more than {MAX_UNPROVEN_BYTES} bytes before the token")
                if decoder.has_begun:
                    await pieces.wait()
            async with asyncio.timeout_at(None if self._proven else deadline):
                data = await self._reader.read(READ_BYTES if self._proven else left)

    # Requests

    async def _take(self, message: Message) -> bool:
        """Answer one request; False ends the conversation."""
        try:
            return self._answer_request(message, *client_requests.read(message))
        except Refused as refused:
            if refused.code == client_requests.WRONG_TOKEN:
                await self._services.throttle.delay_answer(self.title, self._to.peer)
            self._to.refuse(message, refused)
            return True

    def _answer_request(self, message: Message, command: str, arguments: Message) -> bool:
        if self._proven and command != "attach" and COPIES in arguments:
            self._forwarder.paths.replace_copies(arguments.pop(COPIES))
            self._name_file()
        if command == "initialize":
            self.name = str(arguments.get("clientName") or "a client")[:80]
            self._starts_sessions = arguments.get("supportsStartDebuggingRequest") is True
            self._to.answer(message, client_requests.capabilities())
        elif command == "attach":
            self._attach(message, arguments)
        elif command == "disconnect":
            self._to.answer(message)
            return False
        elif not self._proven:
            raise Refused("auth.first", f"'{command}' before 'attach'", "send 'attach' with the token")
        elif self._root is not None:
            self._root.take(message)
        elif command == "configurationDone":
            self._to.answer(message)
            self._configured = True
            self._show_stop()
        elif command in client_requests.FORWARDED:
            self._forwarder.forward(message, command, dict(arguments), self._board.pause_of(self))
        else:
            raise Refused("request.unknown", f"'{command}' is not offered here", "leave it out")
        return True

    def _attach(self, message: Message, arguments: Message) -> None:
        if not self._has_proved and not arguments.get("token"):
            logs.audit("refuse", self.title, stranger=self._to.peer, reason=client_requests.MISSING_TOKEN)
            raise client_requests.missing_token()
        if not self._has_proved and not wire.is_same(self._services.token, arguments.get("token")):
            raise client_requests.wrong_token()
        self._proven = True
        self._on_proven()
        if self._board.pause_of(self) is not None or self._root is not None or self._attaching is not None:
            raise Refused("pause.busy", "this client is attached already", "open a second connection")
        self._forwarder.paths = PathMap.of(arguments)
        target = str(arguments.get("target", "next"))
        if target == TARGET:
            self._become_root(message, arguments)
        else:
            self._join_root(arguments.get(ROOT))
            self._attaching = asyncio.ensure_future(self._attach_to(message, target, bool(arguments.get("steal"))))

    def _join_root(self, root_id: object) -> None:
        """End when the root session ends that made the editor open this session."""
        if root_id is None:
            return
        self._opened_by = self._services.roots.get(str(root_id))
        if self._opened_by is None:
            fix = 'start the session with "target": "all" again, or attach to the pause by its id alone'
            raise Refused("attach.parent-ended", "the session that opened this one has ended", fix)
        self._opened_by.children.add(self.lost)

    def _become_root(self, message: Message, arguments: Message) -> None:
        if not self._starts_sessions:
            text = "this client does not offer startDebugging, so that no session of a pause could be opened in it"
            targets = '"target": "3" (an id of `raydebug paused`), or "target": "next" for the next one'
            raise Refused("attach.no-child-sessions", text, f"attach to one pause: {targets}")
        self._root = RootSession(self._to, self._board, arguments, self._to.own_address)
        self._services.roots[self._root.id] = self._root
        logs.audit("watch", self.title, job=arguments.get("job"), ranks=arguments.get("ranks"))
        self._to.answer(message)
        self._to.send(wire.event(0, "initialized"))

    async def _attach_to(self, message: Message, target: str, steal: bool) -> None:
        try:
            if target.startswith((messages.PID, messages.WORKER)):
                pause = await self._services.pause_requests.pause(target, self.title, self._to.say, steal=steal)
                if self._board.holder(pause) is not None:
                    pause = self._find(pause.id, steal=steal)
            elif target == "next":
                pause = await self._board.next_waiting()
            else:
                pause = self._find(target, steal=steal)
        except Refused as refused:
            self._attaching = None
            logs.audit("refuse", self.title, target=target, reason=refused.code)
            self._to.refuse(message, refused)
            return
        self._board.assign(pause, self)
        self._name_file()
        logs.audit("attach", self.title, pause)
        self._to.answer(message, {"pause": self._board.describe(pause)})
        self._to.send(wire.event(0, "initialized"))
        self._show_stop()  # some clients send `configurationDone` right after `attach`

    def _name_file(self) -> None:
        """Have the folder that the paused process runs in come first."""
        if (pause := self._board.pause_of(self)) is not None:
            self._forwarder.paths.to_client(str(pause.record.get("file")))

    def _find(self, pause_id: str, *, steal: bool) -> Pause:
        pause = self._board.get(pause_id)
        if pause is None:
            if (why := self._board.why_gone(pause_id)) is not None:
                raise Refused("pause.ended", f"pause {pause_id} {why}", LOOK)
            raise Refused("pause.unknown", f"there is no pause '{pause_id[:40]}'", LOOK)
        holder = self._board.holder(pause)
        if holder is not None:
            held = f"{holder.name} has held pause {pause_id} for {self._board.held_s(pause):.0f} s"
            if not steal:
                raise Refused("pause.busy", held, "detach there, or take it over with --steal")
            logs.audit("steal", self.title, pause, of=holder.name)
            holder.lost("another client took this pause over")
        return pause

    # Called by the process's events

    def show(self, pause: Pause) -> None:
        """Report a pause that was assigned after the client had resumed its last one."""
        logs.audit("attach", self.title, pause)
        self._show_stop()

    def forward(self, event: Message) -> None:
        """Forward an event of the process."""
        if self._configured:
            self._forwarder.send_event(event)

    def lost(self, reason: str) -> None:
        """Report that the pause or the process is gone, and end."""
        self._to.say(f"raydebug: {reason}")
        self._to.send(wire.event(0, "terminated", {"reason": reason}))
        self._leave()

    def _show_stop(self) -> None:
        pause = self._board.pause_of(self)
        if self._configured and pause is not None and pause.stopped is not None:
            self._to.send(wire.event(0, "stopped", {**pause.stopped, "pause": self._board.describe(pause)}))

    # The end

    def _cut_off(self) -> None:
        logs.audit("refuse", self.title, self._board.pause_of(self), reason="it does not read what it asks for")
        self._leave()

    def _leave(self) -> None:
        """Release the pause and close; the thread stays suspended for the next client."""
        if self._attaching is not None:
            self._attaching.cancel()
        self._forwarder.cancel()
        if self._opened_by is not None:
            self._opened_by.children.discard(self.lost)
        if self._root is not None and self._services.roots.pop(self._root.id, None) is not None:
            self._root.end()
        pause = self._board.release(self)
        if pause is not None:
            logs.audit("detach", self.title, pause)
        self._to.close()
