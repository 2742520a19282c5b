"""The gateway's two ports: one for processes that dial in, one for clients (DAP and HTTP told apart by first bytes)."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import OrderedDict
from dataclasses import dataclass

from raydebug.dap.keepalive import notice_loss
from raydebug.gateway import web
from raydebug.gateway.asked import Asked
from raydebug.gateway.clients import AUTHENTICATION_TIMEOUT_S, MAX_UNPROVEN_BYTES, Client
from raydebug.gateway.control import Control
from raydebug.gateway.dial_ins import DialIns
from raydebug.gateway.expiry import LIMIT_S, Expiry
from raydebug.gateway.pauses import Pauses
from raydebug.gateway.tries import WrongTries

log = logging.getLogger("raydebug.gateway")

MAX_UNPROVEN = 64
HTTP_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ")
HINT = b"raydebug gateway: this port speaks DAP and HTTP; attach with `raydebug attach`.\r\n"


@dataclass(frozen=True)
class Ports:
    """Where the gateway listens; port 0 takes any free one."""

    host: str
    client_port: int
    dial_host: str
    dial_port: int


class Gateway:
    """The door to every pause of one cluster."""

    def __init__(self, token: str, pause_limit_s: float = LIMIT_S) -> None:
        self._token = token
        self.pauses = Pauses()
        self.control = Control()
        self.asked = Asked(self.control, self.pauses)
        self._tries = WrongTries()
        self._web = web.Web(token, self.pauses, self.control, self.asked, self._tries)
        self.dial_ins = DialIns(token, self.pauses, self.control)
        self._expiry = Expiry(self.pauses, pause_limit_s)
        self._unproven: OrderedDict[asyncio.StreamWriter, None] = OrderedDict()

    async def start(self, ports: Ports) -> Ports:
        """Listen, and return the ports as they are.

        Raises:
            OSError: a port is taken.
        """
        clients = await asyncio.start_server(self._accept_client, ports.host, ports.client_port, backlog=512)
        dials = await asyncio.start_server(self.dial_ins.accept, ports.dial_host, ports.dial_port, backlog=512)
        self._servers = (clients, dials)
        self._expiring = asyncio.ensure_future(self._expiry.watch())
        client_port, dial_port = (s.sockets[0].getsockname()[1] for s in self._servers)
        log.info("listening: clients on %s:%d, processes on %s:%d", ports.host, client_port, ports.dial_host, dial_port)
        return Ports(ports.host, client_port, ports.dial_host, dial_port)

    async def _accept_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._unproven[writer] = None
        if len(self._unproven) > MAX_UNPROVEN:  # the oldest goes: whoever has a token shows it in milliseconds
            oldest, _ = self._unproven.popitem(last=False)
            oldest.transport.abort()

        def proven() -> None:
            self._unproven.pop(writer, None)

        try:
            notice_loss(reader, writer)
            async with asyncio.timeout(AUTHENTICATION_TIMEOUT_S):
                first = await reader.read(MAX_UNPROVEN_BYTES)
            if first.startswith(HTTP_METHODS):
                await self._web.serve(first, reader, writer)
            elif first[:1] in (b"C", b"c"):  # Content-Length, Content-Type
                client = Client(self._token, self.pauses, self.asked, reader, writer, self._tries, on_proven=proven)
                await client.serve(first)
            elif first:
                writer.write(HINT)
        except (OSError, TimeoutError):
            pass  # gone, or silent for too long
        finally:
            proven()
            writer.close()


async def serve(token: str, ports: Ports, pause_limit_s: float = LIMIT_S) -> None:
    """Run a gateway until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gateway = Gateway(token, pause_limit_s)
    await gateway.start(ports)
    await stop.wait()
