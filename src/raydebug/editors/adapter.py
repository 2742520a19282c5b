"""A debug adapter on stdin and stdout: forwards an editor's DAP messages to the gateway, once each has proved itself.

`raydebug adapter` runs it, and VS Code runs this file by its path (`debugAdapterPath`). The configuration names only
the cluster (`"cluster": "default"`): it contains no address and no token, and stays valid when the cluster is replaced.
One with `"snapshot": "last"` (a file, or a run) opens what a crash left, and needs no cluster.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # run by its path: import from the folder of the package, not from this one
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from raydebug.cluster.find import choose_name, load_cluster
from raydebug.console.session import GatewayAddress
from raydebug.dap import READ_BYTES, open_proven, reduce_latency
from raydebug.errors import RaydebugError, UsageError
from raydebug.protocol import wire
from raydebug.protocol.client_handshake import NotProven
from raydebug.protocol.lost_peers import OUT_OF_REACH, watch_peer
from raydebug.protocol.messages import COPIES
from raydebug.protocol.wire import Message
from raydebug.render import suggest_for, suggested

if TYPE_CHECKING:
    from raydebug.snapshot.session import SnapshotSession

CONNECT_TIMEOUT_S = 5.0
NAMED = ("attach", "setBreakpoints", "configurationDone")  # once `attach` has waited there may be new copies
# The gateway is known only after `attach`; its other capabilities follow as a `capabilities` event.
INITIAL_CAPABILITIES = {"supportsConfigurationDoneRequest": True}


def find_address(arguments: Message) -> GatewayAddress:
    """Return the gateway of the cluster that the arguments of an `attach` name.

    Raises:
        RaydebugError: no such cluster, or its token or its record cannot be read.
    """
    name = choose_name(str(arguments.get("cluster") or ""))
    suggest_for(name)
    cluster = load_cluster(name)
    try:
        return GatewayAddress.of(cluster)
    except ValueError as error:  # of the port: a token that cannot be read is a RaydebugError already
        raise RaydebugError(
            f"the record of cluster '{cluster.name}' has no address of a gateway",
            cause=str(error),
            fix=f"remove the folder {cluster.folder}, and start or join the cluster again",
            code="cluster.bad-record",
        ) from error


def serve(snapshot: str | None = None) -> None:
    """Speak DAP on stdin and stdout until either side disconnects; a snapshot is opened in place of what is asked.

    Raises:
        UsageError: one of them is no pipe, socket or terminal, which asyncio could not wait for.
    """
    for name, number in (("standard input", 0), ("standard output", 1)):
        with contextlib.suppress(OSError):  # it is closed
            mode = os.fstat(number).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number):
                continue
        raise UsageError(
            f"{name} is no pipe", cause="`raydebug adapter` speaks DAP with the editor that starts it",
            fix="let the editor start it: docs/02-attach.md", code="adapter.no-pipe",
        )  # fmt: skip
    asyncio.run(_serve(snapshot))


async def _serve(snapshot: str | None) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    await Relay(reader, writer, find_address, snapshot=snapshot).run()


class Relay:
    """Forwards the messages of one client to a gateway, and back.

    Args:
        reader, writer: the client.
        find_address: returns the gateway for the arguments of the client's `attach`; may raise RaydebugError.
        snapshot: a file or a run that every `attach` opens; None: what the request names.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        find_address: Callable[[Message], GatewayAddress],
        snapshot: str | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._find_address = find_address
        self._snapshot = snapshot
        self._session: SnapshotSession | None = None
        self._hello: Message = {}
        self._copies: Callable[[], list[Message]] = list
        self._gateway: asyncio.StreamWriter | None = None
        self._backward: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Forward until either side disconnects; paused threads stay paused."""
        try:
            await self._forward()
        except (OSError, wire.WireError):
            pass  # the client is gone, or does not speak DAP
        finally:
            if self._gateway is not None:
                self._gateway.close()
            if self._backward is not None:
                with contextlib.suppress(OSError, wire.WireError, asyncio.CancelledError):
                    await self._backward
            self._writer.close()

    # Client to gateway

    async def _forward(self) -> None:
        async for message in _messages(self._reader):
            command = message.get("command") if message.get("type") == "request" else None
            if self._gateway is not None:
                self._gateway.write(wire.encode(self._named(message) if command in NAMED else message))
                await self._gateway.drain()
                continue
            if command == "initialize":
                self._hello = message
                self._send(wire.response(0, message, dict(INITIAL_CAPABILITIES)))
            elif command in ("attach", "launch") and (named := self._snapshot or _snapshot_of(message)):
                self._open_snapshot(message, named)
            elif self._session is not None and command is not None:
                for answer in self._session.answer(message):
                    self._send(answer)
            elif command == "attach":
                await self._open(message)
            elif command == "disconnect":
                self._send(wire.response(0, message))
            elif command is not None:
                self._send(wire.refusal(0, message, f"'{command}' before 'attach'"))
            await self._writer.drain()
            if command == "disconnect":
                return

    def _open_snapshot(self, attach: Message, named: str) -> None:
        from raydebug.snapshot.load import choose_snapshot, find_snapshots, read_document
        from raydebug.snapshot.session import SnapshotSession  # with the console: 100 ms that a pause does not need

        try:
            self._session = SnapshotSession(read_document(choose_snapshot(find_snapshots(named), named).path))
        except RaydebugError as failure:
            self._refuse(attach, failure.what, failure.cause, failure.fix, failure.code)
            return
        for answer in self._session.answer(attach):
            self._send(answer)

    async def _open(self, attach: Message) -> None:
        arguments = attach.get("arguments")
        try:
            address = self._find_address(arguments if isinstance(arguments, dict) else {})
            self._copies = address.copies
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, gateway = await open_proven(address.host, address.port, address.token)
        except RaydebugError as failure:
            self._refuse(attach, failure.what, failure.cause, failure.fix, failure.code)
            return
        except NotProven as error:
            self._refuse(attach, "no gateway that can be trusted answers", str(error), error.fix, error.code)
            return
        except (OSError, TimeoutError) as error:
            cause = f"the connection failed: {error or 'no answer in 5 s'}"
            fix = "look with `raydebug ps`, start the cluster with `raydebug up`"
            self._refuse(attach, "the gateway does not answer", cause, fix, "gateway.unreachable")
            return
        reduce_latency(gateway)
        watch_peer(reader, gateway)
        self._gateway = gateway
        hello = self._hello or wire.request(0, "initialize")
        gateway.write(wire.encode(hello) + wire.encode(self._named(attach)))
        self._backward = asyncio.ensure_future(self._forward_back(reader))

    def _named(self, request: Message) -> Message:
        """Return a request for the gateway, with our copies, without a token that the editor knows."""
        arguments, copies = request.get("arguments"), self._copies()
        given = {**(arguments if isinstance(arguments, dict) else {}), **({COPIES: copies} if copies else {})}
        if request["command"] == "attach":
            given.pop("token", None)
        return {**request, "arguments": given}

    # Gateway to client

    async def _forward_back(self, reader: asyncio.StreamReader) -> None:
        end_sent = False
        why = "the gateway closed the session"
        try:
            async for message in _messages(reader):
                if message.get("command") == "initialize" and message.get("type") == "response":
                    self._send(wire.event(0, "capabilities", {"capabilities": message.get("body") or {}}))
                else:
                    self._send(message)
                end_sent = end_sent or message.get("event") == "terminated" or message.get("command") == "disconnect"
                await self._writer.drain()
        except OSError as error:
            if error.errno in OUT_OF_REACH:
                why = f"the gateway is out of reach: {error.strerror}; the task stays paused"
        except wire.WireError:
            pass
        finally:
            with contextlib.suppress(OSError):
                if not end_sent:
                    self._send(wire.event(0, "terminated", {"reason": why}))
                self._reader.feed_eof()

    def _send(self, message: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(wire.encode(message))

    def _refuse(self, request: Message, what: str, cause: str, fix: str, code: str) -> None:
        fix = suggested(fix)
        text = f"{what}: {cause}; {fix}"
        error = {"id": 1, "format": text, "showUser": True, "code": code, "fix": fix}
        self._send(wire.refusal(0, request, text, {"error": error}))


def _snapshot_of(attach: Message) -> str:
    arguments = attach.get("arguments")
    return str(arguments.get("snapshot") or "") if isinstance(arguments, dict) else ""


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    decoder = wire.Decoder()
    while data := await reader.read(READ_BYTES):
        for message in decoder.feed(data):
            yield message


if __name__ == "__main__":
    serve()
