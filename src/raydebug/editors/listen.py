"""A port for one client that knows nothing of tokens: relays it to one pause. `raydebug listen` runs it.

Whoever reaches this port debugs the process, so it is on loopback, takes one client, and only a process of this user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from raydebug.console.session import Door
from raydebug.dap.session import READ_BYTES
from raydebug.editors import peers
from raydebug.editors.relay import Relay

HOST = "127.0.0.1"
LOOK_PERIOD_S = 1.0
TAKEN = b"raydebug listen: another client is attached here\r\n"
FOREIGN = b"raydebug listen: this port is for the user who opened it\r\n"


class Listener:
    """One port, one pause, one client.

    Args:
        door: the gateway.
        target: a pause's id, or `next`.
        say: told what happens.
        is_over: asked while nobody is attached whether the pause has ended.
    """

    def __init__(
        self, door: Door, target: str, *, say: Callable[[str], None], is_over: Callable[[], bool] = lambda: False
    ) -> None:
        self._door = door
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
        """Wait until the client has left, or the pause has ended without one; say whether there was a client."""
        while not self._done.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._done.wait(), LOOK_PERIOD_S)
            if not self._taken and await asyncio.to_thread(self._is_over):
                break
        self._server.close()
        return self._taken

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not _is_ours(writer):
            self._say("a connection of another user was refused")
            await _turn_away(writer, FOREIGN)
            return
        try:
            first = await reader.read(READ_BYTES)
        except OSError:
            first = b""
        if not first:  # a port scan says nothing, and must not use up the one client
            writer.close()
            return
        if self._taken:
            self._say("a second client was refused")
            await _turn_away(writer, TAKEN)
            return
        self._taken = True
        self._say("a client is attached")
        try:
            await Relay(reader, writer, lambda _: self._door, self._target, first).run()
        finally:
            self._done.set()


def _is_ours(writer: asyncio.StreamWriter) -> bool:
    if not peers.can_tell():
        return True  # said when the port was opened
    peer, own = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
    return peers.uid_of(peer[:2], own[:2]) == os.getuid()


async def _turn_away(writer: asyncio.StreamWriter, text: bytes) -> None:
    with contextlib.suppress(OSError):
        writer.write(text)
        await writer.drain()
    writer.close()
