"""A loopback port that forwards one client without a token to one pause, for `raydebug listen`.

A client of this port debugs the process, so the port accepts one client only, and only from a process of this user.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import sys
from collections.abc import Callable
from pathlib import Path

from raydebug.console.session import GatewayAddress
from raydebug.dap import READ_BYTES
from raydebug.editors.adapter import Relay

HOST = "127.0.0.1"
POLL_PERIOD_S = 1.0
TAKEN = b"raydebug listen: another client is attached here\r\n"
FOREIGN = b"raydebug listen: this port is for the user who opened it\r\n"
# Linux, Documentation/networking/proc_net_tcp.rst: sl, local_address, rem_address, st, queues, timer, retransmits, uid,
# timeout, inode. An address is hexadecimal, in words of the machine's byte order. A socket that its process has closed
# is listed with uid 0 and inode 0.
TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9


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
        if not _is_ours(writer):
            self._say("a connection of another user was refused")
            await _turn_away(writer, FOREIGN)
            return
        try:
            first = await reader.read(READ_BYTES)
        except OSError:
            first = b""
        if not first:  # a port scan sends nothing and must not count as the one client
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


def _is_ours(writer: asyncio.StreamWriter) -> bool:
    if not can_tell():
        return True  # `raydebug listen` has warned about it
    peer, own = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
    return uid_of(peer[:2], own[:2]) == os.getuid()


async def _turn_away(writer: asyncio.StreamWriter, text: bytes) -> None:
    with contextlib.suppress(OSError):
        writer.write(text)
        await writer.drain()
    writer.close()


def can_tell() -> bool:
    """Return whether this system reports the user of a connection."""
    return TABLES[4].is_file()


def uid_of(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the user of the process at the other end of a connection within this machine.

    Args:
        peer: the other end's address and port.
        own: this end's.

    Returns:
        None if no open socket of this machine is that end.
    """
    table = TABLES[ipaddress.ip_address(peer[0]).version]
    wanted = (_as_listed(peer), _as_listed(own))
    for line in table.read_text(encoding="ascii").splitlines()[1:]:
        columns = line.split()
        if (columns[_LOCAL], columns[_REMOTE]) == wanted and columns[_INODE] != "0":
            return int(columns[_UID])
    return None


def _as_listed(address: tuple[str, int]) -> str:
    packed = ipaddress.ip_address(address[0]).packed
    words = [packed[i : i + 4] for i in range(0, len(packed), 4)]
    shown = "".join((word[::-1] if sys.byteorder == "little" else word).hex() for word in words)
    return f"{shown}:{address[1]:04x}".upper()
