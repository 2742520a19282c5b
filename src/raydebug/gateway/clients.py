"""A debugger that comes by the clients' port: proves itself, takes one pause, speaks DAP to its process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from typing import Any

from raydebug.dap import wire
from raydebug.dap.session import READ_BYTES
from raydebug.dap.wire import Message
from raydebug.gateway.pauses import Pause, Pauses
from raydebug.worker import handshake

log = logging.getLogger("raydebug.gateway")

AUTHENTICATION_TIMEOUT_S = 5.0
MAX_UNPROVEN_BYTES = 4 * 1024
MAX_UNSENT_BYTES = 64 * 1024 * 1024
# What a client may ask of pydevd; nothing else is handed on. `terminate` and the like stay out: a debugger that
# leaves must not take a training worker with it.
HANDED_ON = frozenset(
    {
        *("threads", "stackTrace", "scopes", "variables", "evaluate", "setVariable", "setExpression", "source"),
        *("completions", "exceptionInfo", "modules", "next", "stepIn", "stepOut", "stepInTargets", "continue"),
        *("pause", "goto", "gotoTargets", "setBreakpoints", "setFunctionBreakpoints", "setExceptionBreakpoints"),
    }
)
SUPPORTED = (
    *("supportsConfigurationDoneRequest", "supportsConditionalBreakpoints", "supportsHitConditionalBreakpoints"),
    *("supportsFunctionBreakpoints", "supportsLogPoints", "supportsEvaluateForHovers", "supportsClipboardContext"),
    *("supportsSetVariable", "supportsSetExpression", "supportsCompletionsRequest", "supportsExceptionInfoRequest"),
    *("supportsModulesRequest", "supportsDelayedStackTraceLoading", "supportsValueFormattingOptions"),
)
RESUMING = frozenset({"continue", "next", "stepIn", "stepOut", "goto"})


class Refused(Exception):
    """An attach that cannot be; `code` and `fix` are for the client's error message."""

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.code = code
        self.fix = fix


class Client:
    """One DAP conversation with a debugger.

    Args:
        token: the cluster's token.
        pauses: where it finds the pause that it asks for.
        decoder: holds the bytes that were read to tell DAP from HTTP.
    """

    def __init__(
        self,
        token: str,
        pauses: Pauses,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_proven: Any = None,
    ) -> None:
        self._token = token
        self._pauses = pauses
        self._reader = reader
        self._writer = writer
        self._seq = itertools.count(1)
        self._on_proven = on_proven or (lambda: None)
        self._attaching: asyncio.Task[None] | None = None
        self._configured = False
        self.proven = False
        self.pause: Pause | None = None
        self.name = "a client"

    async def serve(self, first: bytes) -> None:
        """Answer the client until it leaves."""
        decoder = wire.Decoder(max_body_bytes=MAX_UNPROVEN_BYTES)
        deadline = asyncio.get_running_loop().time() + AUTHENTICATION_TIMEOUT_S
        data = first
        try:
            while data:
                for message in decoder.feed(data):
                    if message.get("type") == "request" and not self._take(message):
                        return
                await self._writer.drain()
                if self.proven:
                    decoder.max_body_bytes = wire.MAX_BODY_BYTES
                async with asyncio.timeout_at(None if self.proven else deadline):
                    data = await self._reader.read(READ_BYTES)
        except wire.WireError as error:
            self._send(wire.event(0, "output", {"category": "important", "output": f"raydebug: {error}\n"}))
        except TimeoutError:
            pass  # nobody attached in time
        finally:
            self._leave()

    # Requests

    def _take(self, message: Message) -> bool:
        """Answer one request; False ends the conversation."""
        command = message.get("command")
        if command == "initialize":
            self.name = str((message.get("arguments") or {}).get("clientName") or "a client")[:80]
            self._answer(message, self._capabilities())
        elif command == "attach":
            self._attach(message)
        elif command == "disconnect":
            self._answer(message)
            return False
        elif not self.proven:
            self._refuse(message, Refused("auth.first", f"'{command}' before 'attach'", "send 'attach' with the token"))
        elif command == "configurationDone":
            self._answer(message)
            self._configured = True
            self._show_stop()
        elif command in HANDED_ON:
            self._hand_on(message)
        else:
            self._refuse(message, Refused("request.unknown", f"'{command}' is not offered here", "leave it out"))
        return True

    def _capabilities(self) -> Message:
        filters = [{"filter": "uncaught", "label": "Uncaught Exceptions", "default": True}]
        return {**dict.fromkeys(SUPPORTED, True), "exceptionBreakpointFilters": filters}

    def _attach(self, message: Message) -> None:
        arguments = message.get("arguments") or {}
        if not handshake.same(self._token, arguments.get("token")):
            log.warning("client refused: wrong token")
            refused = Refused(
                "auth.wrong-token", "the token is not this cluster's", "take the token file of `raydebug ps`"
            )
            self._refuse(message, refused)
            return
        self.proven = True
        self._on_proven()
        if self.pause is not None or self._attaching is not None:
            self._refuse(message, Refused("pause.busy", "this client is attached already", "open a second connection"))
            return
        self._attaching = asyncio.ensure_future(self._attach_to(message, str(arguments.get("target", "next"))))

    async def _attach_to(self, message: Message, target: str) -> None:
        try:
            steal = bool((message.get("arguments") or {}).get("steal"))
            pause = await self._pauses.next_waiting() if target == "next" else self._find(target, steal=steal)
        except Refused as refused:
            self._attaching = None
            self._refuse(message, refused)
            return
        self.follow(pause)
        log.info("attached: pause %s by %s", pause.id, self.name)
        self._answer(message, {"pause": pause.describe()})
        self._send(wire.event(0, "initialized"))

    def _find(self, pause_id: str, *, steal: bool) -> Pause:
        pause = self._pauses.get(pause_id)
        if pause is None:
            reason = self._pauses.why_ended(pause_id)
            look = "list the pauses with `raydebug paused`"
            if reason is None:
                raise Refused("pause.unknown", f"there is no pause '{pause_id}'", look)
            raise Refused("pause.ended", f"pause {pause_id} has ended: {reason}", look)
        if pause.client is not None:
            held = f"{pause.client.name} holds pause {pause_id} since {time.time() - pause.client_since:.0f} s"
            if not steal:
                raise Refused("pause.busy", held, "let go there, or take it over with --steal")
            pause.client.lost("another client took this pause over")
        return pause

    def _hand_on(self, message: Message) -> None:
        pause = self.pause
        if pause is None or pause.process.ended:
            self._refuse(
                message, Refused("pause.gone", "the process has ended", "list the pauses with `raydebug paused`")
            )
            return
        command, arguments = str(message["command"]), dict(message.get("arguments") or {})
        if command == "setExceptionBreakpoints":  # post-mortem pauses need it, whatever a client prefers
            arguments["filters"] = sorted({*arguments.get("filters", []), "uncaught"})
        if command in RESUMING:
            arguments.setdefault("threadId", pause.thread_id)
            if command == "continue":
                arguments["singleThread"] = True
            pause.stopped = None
        future = pause.process.session.send(command, arguments)
        future.add_done_callback(lambda done: self._hand_back(message, pause, done))

    def _hand_back(self, message: Message, pause: Pause, done: asyncio.Future[Message]) -> None:
        if done.cancelled() or done.exception() is not None:
            if message.get("command") in RESUMING:  # it went on, and to its end before it could say so
                self._answer(message)
                return
            self._refuse(
                message, Refused("pause.gone", "the process has ended", "list the pauses with `raydebug paused`")
            )
            return
        answer = done.result()
        if answer.get("success") and message.get("command") == "continue":
            pause.process.let_go(pause, "it was continued")
        self._send({**answer, "seq": 0, "request_seq": message.get("seq", 0)})

    # What the process reports

    def follow(self, pause: Pause) -> None:
        """Make a pause this client's."""
        if self.pause is not None and self.pause.client is self:
            self.pause.client = None
        self.pause = pause
        pause.client = self
        pause.client_since = time.time()
        if self not in pause.process.clients:
            pause.process.clients.append(self)

    def take_next(self, pause: Pause) -> bool:
        """Take a new pause of the same process, when this client has let go of its last one."""
        if self.pause is None or self._pauses.get(self.pause.id) is not None:
            return False
        self.follow(pause)
        self._show_stop()
        return True

    def forward(self, message: Message) -> None:
        """Hand an event on to the client."""
        if self._configured:
            self._send({**message, "seq": 0})

    def lost(self, reason: str) -> None:
        """Tell the client that its process is gone, and end."""
        self._send(wire.event(0, "output", {"category": "important", "output": f"raydebug: {reason}\n"}))
        self._send(wire.event(0, "terminated", {"reason": reason}))
        self._leave()

    def _show_stop(self) -> None:
        pause = self.pause
        if self._configured and pause is not None and pause.stopped is not None:
            self._send(wire.event(0, "stopped", {**pause.stopped, "pause": pause.describe()}))

    # The connection

    def _answer(self, message: Message, body: Message | None = None) -> None:
        self._send(wire.response(0, message, body))

    def _refuse(self, message: Message, refused: Refused) -> None:
        text = str(refused)
        error = {"id": 1, "format": text, "showUser": True, "code": refused.code, "fix": refused.fix}
        self._send(wire.refusal(0, message, text, {"error": error}))

    def _send(self, message: Message) -> None:
        if self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:  # it does not read what it asks for
            self._leave()
            return
        self._writer.write(wire.encode({**message, "seq": next(self._seq)}))

    def _leave(self) -> None:
        """Let go of the pause; its thread stays where it is, for the next client."""
        if self._attaching is not None:
            self._attaching.cancel()
        pause, self.pause = self.pause, None
        if pause is not None:
            with contextlib.suppress(ValueError):
                pause.process.clients.remove(self)
            if pause.client is self:
                pause.client = None
                self._pauses.changed()
                log.info("let go: pause %s by %s", pause.id, self.name)
        self._writer.close()
