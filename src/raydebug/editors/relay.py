"""Hands one client's DAP on to a gateway, and adds the token, which the client need not have.

The client is at stdin and stdout, or at a connection; the gateway at its port for clients.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from raydebug.console.session import Door
from raydebug.dap import wire
from raydebug.dap.keepalive import OUT_OF_REACH, notice_loss
from raydebug.dap.session import READ_BYTES, answer_at_once
from raydebug.dap.wire import Message
from raydebug.errors import RaydebugError

CONNECT_TIMEOUT_S = 5.0
# All else that the gateway can do follows as the event `capabilities`, once it is known which gateway it is.
AT_FIRST = {"supportsConfigurationDoneRequest": True}


class Relay:
    """One client's way to a gateway.

    Args:
        reader, writer: the client.
        find_door: tells by the arguments of the client's `attach` where the gateway is; may raise RaydebugError.
        target: the pause to attach to, whatever the client asks for; None leaves it to the client.
        first: what was read from the client already.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        find_door: Callable[[Message], Door],
        target: str | None = None,
        first: bytes = b"",
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._find_door = find_door
        self._target = target
        self._first = first
        self._hello: Message = {}
        self._token = ""
        self._gateway: asyncio.StreamWriter | None = None
        self._back: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Hand on until either side leaves; what was paused stays paused."""
        going = asyncio.ensure_future(self._hand_on())
        try:
            await going
        except (OSError, wire.WireError):
            pass  # the client is gone, or speaks something else
        finally:
            if self._gateway is not None:
                self._gateway.close()
            if self._back is not None:
                with contextlib.suppress(OSError, wire.WireError, asyncio.CancelledError):
                    await self._back
            self._writer.close()

    # Client to gateway

    async def _hand_on(self) -> None:
        async for message in _messages(self._reader, self._first):
            command = message.get("command") if message.get("type") == "request" else None
            if self._gateway is not None:
                self._gateway.write(wire.encode(self._with_token(message) if command == "attach" else message))
                await self._gateway.drain()
                continue
            if command == "initialize":
                self._hello = message
                self._send(wire.response(0, message, dict(AT_FIRST)))
            elif command == "attach":
                await self._open(message)
            elif command == "disconnect":
                self._send(wire.response(0, message))
                return
            elif command is not None:
                self._send(wire.refusal(0, message, f"'{command}' before 'attach'"))
            await self._writer.drain()

    async def _open(self, attach: Message) -> None:
        arguments = attach.get("arguments")
        try:
            door = self._find_door(arguments if isinstance(arguments, dict) else {})
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, gateway = await asyncio.open_connection(door.host, door.port)
        except RaydebugError as failure:
            self._refuse(attach, failure.what, failure.cause, failure.fix, failure.code)
            return
        except (OSError, TimeoutError) as error:
            cause = f"the connection failed: {error or 'no answer in 5 s'}"
            fix = "look with `raydebug ps`, start the cluster with `raydebug up`"
            self._refuse(attach, "the gateway does not answer", cause, fix, "gateway.unreachable")
            return
        answer_at_once(gateway)
        notice_loss(reader, gateway)
        self._token, self._gateway = door.token, gateway
        hello = self._hello or wire.request(0, "initialize")
        gateway.write(wire.encode(hello) + wire.encode(self._with_token(attach)))
        self._back = asyncio.ensure_future(self._hand_back(reader))

    def _with_token(self, attach: Message) -> Message:
        arguments = attach.get("arguments")
        fixed = {} if self._target is None else {"target": self._target}
        with_token = {**(arguments if isinstance(arguments, dict) else {}), **fixed, "token": self._token}
        return {**attach, "arguments": with_token}

    # Gateway to client

    async def _hand_back(self, reader: asyncio.StreamReader) -> None:
        told = False  # that it is over
        why = "the gateway closed the session"
        try:
            async for message in _messages(reader):
                if message.get("command") == "initialize" and message.get("type") == "response":
                    self._send(wire.event(0, "capabilities", {"capabilities": message.get("body") or {}}))
                else:
                    self._send(_without_token(message))
                told = told or message.get("event") == "terminated" or message.get("command") == "disconnect"
                await self._writer.drain()
        except OSError as error:
            if error.errno in OUT_OF_REACH:
                why = f"the gateway is out of reach: {error.strerror}; the task stays paused"
        except wire.WireError:
            pass
        finally:
            with contextlib.suppress(OSError):
                if not told:
                    self._send(wire.event(0, "terminated", {"reason": why}))
                self._reader.feed_eof()

    def _send(self, message: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(wire.encode(message))

    def _refuse(self, request: Message, what: str, cause: str, fix: str, code: str) -> None:
        text = f"{what}: {cause}; {fix}"
        error = {"id": 1, "format": text, "showUser": True, "code": code, "fix": fix}
        self._send(wire.refusal(0, request, text, {"error": error}))


async def _messages(reader: asyncio.StreamReader, first: bytes = b"") -> AsyncIterator[Message]:
    decoder = wire.Decoder()
    data = first or await reader.read(READ_BYTES)
    while data:
        for message in decoder.feed(data):
            yield message
        data = await reader.read(READ_BYTES)


def _without_token(message: Message) -> Message:
    """Return a message as the client may have it: what starts another session goes without the token."""
    if message.get("event") == "debugpyAttach":
        return {**message, "body": _dropped(message.get("body"))}
    if message.get("command") == "startDebugging" and message.get("type") == "request":
        arguments = message.get("arguments") or {}
        return {**message, "arguments": {**arguments, "configuration": _dropped(arguments.get("configuration"))}}
    return message


def _dropped(configuration: object) -> Message:
    given = configuration if isinstance(configuration, dict) else {}
    return {name: value for name, value in given.items() if name != "token"}
