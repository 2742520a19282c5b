"""A loopback port that forwards one client without a token to one pause, for `raydebug listen`.

A client of this port debugs the process, so the port accepts one client only, and only from a process of this user.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from raydebug.cluster.port_owner import is_ours
from raydebug.console.session import GatewayAddress
from raydebug.dap import READ_BYTES
from raydebug.editors.adapter import Relay
from raydebug.protocol import wire

HOST = "127.0.0.1"
POLL_PERIOD_S = 1.0
HELLO_TIMEOUT_S, MAX_HELLO_BYTES = 5.0, 64 * 1024
HEADER = b"content-"  # of DAP; a web page can send all that follows its own first line
TAKEN = b"raydebug listen: another client is attached here\r\n"
FOREIGN = b"raydebug listen: this port is for the user who opened it\r\n"


class Listener:
    """One port, one pause, one client.

    Args:
        address: the gateway.
        target: a pause's id, or `next`.
        say: receives a line for each event.
        is_over: returns whether the pause has ended; called while no client is attached.
    """

    def __init__(
        self,
        address: GatewayAddress,
        target: str,
        *,
        say: Callable[[str], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._address = address
        self._target = target
        self._say = say
        self._is_over = is_over
        self._taken = False
        self._done = asyncio.Event()

    async def open(self, port: int) -> int:
        """Listen, and return the port.

        Raises:
            OSError: the port is taken.
        """
        self._server = await asyncio.start_server(self._accept, HOST, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def run(self) -> bool:
        """Wait until the client has disconnected, or the pause has ended; return whether there was a client."""
        while not self._done.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._done.wait(), POLL_PERIOD_S)
            if not self._taken and await asyncio.to_thread(self._is_over):
                break
        self._server.close()
        return self._taken

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_ours(writer):  # where nobody can tell, `raydebug listen` has warned about it
            self._say("a connection of another user was refused")
            await _turn_away(writer, FOREIGN)
            return
        first = await _first_bytes(reader)
        if not first:  # a port scan, a web page, another protocol: not the one client
            writer.close()
            return
        if self._taken:
            self._say("a second client was refused")
            await _turn_away(writer, TAKEN)
            return
        self._taken = True
        self._say("a client is attached")
        try:
            await Relay(reader, writer, lambda _: self._address, self._target, first).run()
        finally:
            self._done.set()


async def _first_bytes(reader: asyncio.StreamReader) -> bytes:
    """Return what a connection begins with, up to a whole `initialize` of DAP; nothing if it begins with all else."""
    decoder, data = wire.Decoder(max_body_bytes=MAX_HELLO_BYTES), b""
    with contextlib.suppress(OSError, TimeoutError, wire.WireError):
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            while more := await reader.read(READ_BYTES):
                data += more
                if data[: len(HEADER)].lower() != HEADER[: len(data)]:
                    break
                for message in decoder.feed(more):
                    is_hello = (message.get("type"), message.get("command")) == ("request", "initialize")
                    return data if is_hello and isinstance(message.get("arguments", {}), dict) else b""
    return b""


async def _turn_away(writer: asyncio.StreamWriter, text: bytes) -> None:
    with contextlib.suppress(OSError):
        writer.write(text)
        await writer.drain()
    writer.close()
