"""`python -m raydebug.gateway`: the gateway process, started by `raydebug up`.

It has a port for processes that dial in, one for clients (DAP and HTTP, by the first bytes), and its background tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import weakref
from pathlib import Path
from typing import Any

from raydebug.dap import ConnectionLost, RequestFailed
from raydebug.gateway import logs
from raydebug.gateway.background import keep, keep_running
from raydebug.gateway.board import Board
from raydebug.gateway.client import AUTHENTICATION_TIMEOUT_S, MAX_UNPROVEN_BYTES, Client, Services
from raydebug.gateway.control import Control
from raydebug.gateway.handshake import ClientAuthentication, ProcessAuthentication
from raydebug.gateway.http import HttpApi
from raydebug.gateway.listener import (
    CLIENTS_SHARE,
    PROCESSES_SHARE,
    Listener,
    Pieces,
    Place,
    Proven,
    Unproven,
    files_of,
    raise_file_limit,
    streams_of,
)
from raydebug.gateway.numbers import Numbers
from raydebug.gateway.pause_lifecycle import LIMIT_S, Expiry, ProcessEvents
from raydebug.gateway.pause_requests import PauseRequests
from raydebug.gateway.processes import Process
from raydebug.gateway.snapshots import Snapshots
from raydebug.gateway.throttle import AuthThrottle
from raydebug.protocol import client_handshake, messages, variables, wire
from raydebug.protocol.listings import GatewayTask
from raydebug.protocol.lost_peers import watch_peer

log = logging.getLogger("raydebug.gateway")

PAUSE_LIMIT_S = "PAUSE_LIMIT_S"  # as .env.example has it
HTTP_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ")
BEGINNINGS = (b"C", b"c", client_handshake.MARK, *HTTP_METHODS)
HELLO_TIMEOUT_S = 5.0
PROOF_TIMEOUT_S = 5.0
# The session of a process on a lost node ends after this time without an acknowledgement, or after about 20 s of
# silence. The kernel of a busy process or of a frozen container (docker pause) still acknowledges.
UNACKNOWLEDGED_S = 6.0


class Gateway:
    """The server of one cluster.

    Args:
        token: the cluster's.
        pause_limit_s: of a pause without a debugger; 0 for none.
        hosts: that HTTP requests may name, beside loopback and the address where it listens.
        numbers: those of the cluster.
    """

    def __init__(self, token: str, pause_limit_s: float, hosts: tuple[str, ...], numbers: Numbers) -> None:
        self.board = Board(numbers)
        self.control = Control(numbers)
        self.snapshots = Snapshots(self.control.living_jobs)
        self._tasks: list[GatewayTask] = [{"name": "expiry", "state": "running", "restarts": 0, "reason": None}]
        self._hosts = hosts
        self._services = Services(token, self.board, PauseRequests(self.control, self.board), AuthThrottle())
        self._http = HttpApi(self._services, self.control, self.snapshots, self._describe)
        self._authentication = ProcessAuthentication(token)
        self._clients = ClientAuthentication(token, self._services.throttle)
        self._processes: weakref.WeakValueDictionary[str, Process] = weakref.WeakValueDictionary()  # by instance
        self._expiry = Expiry(self.board, pause_limit_s)
        self._proven, self._proven_clients = Proven(PROCESSES_SHARE), Proven(CLIENTS_SHARE)
        # Separate budgets: connections that send single bytes cannot displace a client whose first message is whole.
        self._silent, self._unproven, self._unproven_dials = Unproven(), Unproven(), Unproven()

    def start(self, at: Place, dial_at: Place) -> None:
        """Listen for clients, and for processes.

        Raises:
            OSError: a port is taken.
        """
        clients, dials = Listener(at, self._accept_client), Listener(dial_at, self._accept_process)
        self._listeners = (clients, dials)
        self._http.allow_hosts((at.host, *self._hosts))
        self._http.dial = "" if dial_at.host in ("0.0.0.0", "::") else f"{dial_at.host}:{dials.port}"
        keep(keep_running(self._tasks[0], self._expiry.watch))
        log.info("listening: clients on %s:%d, processes on %s:%d", at.host, clients.port, dial_at.host, dials.port)

    def _describe(self) -> dict[str, object]:
        """Return what GET /status has: background tasks, and how much is left of what limits connections."""
        files = {"now": len([*Path("/proc/self/fd").iterdir()]), "most": files_of(16)}
        limits = {"processes": self._proven.describe(), "clients": self._proven_clients.describe(), "files": files}
        return {"tasks": self._tasks, "limits": limits}

    async def _accept_client(self, connection: socket.socket, peer: str) -> None:
        with self._silent.holding(peer):
            async with asyncio.timeout(AUTHENTICATION_TIMEOUT_S):
                first = await _first_message(connection)
        if not first:
            return
        with self._unproven.holding(peer) as proven:
            is_proven = first.startswith(client_handshake.MARK)
            if is_proven:
                async with asyncio.timeout(AUTHENTICATION_TIMEOUT_S):
                    rest = await self._clients.prove(connection, first)
                    proven()
                    first = await _first_message(connection, rest)
            reader, writer = await streams_of(connection)

            def has_proved() -> None:
                proven()
                try:
                    self._proven_clients.add(writer)
                except ConnectionRefusedError as error:
                    log.warning("client from %s refused: %s", peer, error)
                    raise

            try:
                watch_peer(reader, writer)
                if first.startswith(HTTP_METHODS):
                    await self._http.serve(first, reader, writer, has_proved, is_proven=is_proven)
                elif first[:1] in b"Cc":  # Content-Length, Content-Type
                    client = Client(self._services, reader, writer, on_proven=has_proved, has_proved=is_proven)
                    await client.serve(first)
                else:
                    writer.write(client_handshake.HINT)
            finally:
                writer.close()

    async def _accept_process(self, connection: socket.socket, peer: str) -> None:
        """Authenticate one dial-in; a peer without the token learns nothing and leaves no trace."""
        try:
            with self._unproven_dials.holding(peer):
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    nonce = await self._authentication.receive_hello(connection)
            async with asyncio.timeout(PROOF_TIMEOUT_S):
                purpose, about = await self._authentication.prove(connection, nonce)
                reader, writer = await streams_of(connection)
        except (OSError, TimeoutError, wire.WireError) as error:
            why = str(error) or "no proof in time"
            log.warning("dial-in from %s refused: %s", peer, why, extra={"stranger": peer})
            return
        watch_peer(reader, writer, unacknowledged_s=UNACKNOWLEDGED_S)
        try:
            # What a process says of itself on this connection is of the job whose control channel it has.
            channel = self.control.channel_of(about["instance"])
            about["job"] = about.get("job") if channel is None else channel.about.get("job")
            self._proven.add(writer, about["job"])
            if purpose == messages.CONTROL:
                await self.control.serve(about, reader, writer)
            elif purpose == messages.SNAPSHOT:
                await self.snapshots.receive(about, reader, writer)
            elif purpose == messages.PAUSE:
                await self._hold_process(about, reader, writer)
            else:
                writer.close()
        except (OSError, TimeoutError, RequestFailed, ConnectionLost, ValueError) as error:  # also BadRecord, WireError
            log.warning("dial-in from %s refused: %s", peer, str(error) or type(error).__name__)
            writer.close()

    async def _hold_process(self, about: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        process = Process(about)
        earlier = self._processes.get(process.instance)
        self._processes[process.instance] = process
        if earlier is not None and not earlier.ended:
            await earlier.superseded()
        events = ProcessEvents(process, self.board)
        await process.hold(reader, writer, events.take, events.end)
        log.info("process dialled in: %s", process.title)


async def _first_message(connection: socket.socket, data: bytes = b"") -> bytes:
    """Read up to the end of a header, as far as the bytes can become a message that this port knows."""
    pieces = Pieces()
    while b"\r\n\r\n" not in data and len(data) < MAX_UNPROVEN_BYTES:
        if not any(method.startswith(data[: len(method)]) for method in BEGINNINGS):
            break
        more = await asyncio.get_running_loop().sock_recv(connection, MAX_UNPROVEN_BYTES - len(data))
        if not more:
            break
        data += more
        if b"\r\n\r\n" not in data:
            await pieces.wait()
    return data


async def serve(gateway: Gateway, at: Place, dial_at: Place) -> None:
    """Run a gateway until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gateway.start(at, dial_at)
    await stop.wait()


def main() -> int:
    """Read the command line and the token file, and serve."""
    what = "The gateway process, started by `raydebug up`."
    parser = argparse.ArgumentParser(prog="python -m raydebug.gateway", description=what)
    parser.add_argument("--host", default="127.0.0.1", help="address for clients (default: %(default)s)")
    parser.add_argument("--client-port", type=int, default=5678, help="port for clients (default: %(default)s)")
    parser.add_argument("--dial-host", default="127.0.0.1", help="address for processes (default: %(default)s)")
    parser.add_argument("--dial-port", type=int, default=5679, help="port for processes (default: %(default)s)")
    what = "file descriptor of a socket that listens there already"
    parser.add_argument("--client-fd", type=int, help=what)
    parser.add_argument("--dial-fd", type=int, help=what)
    limit_s = float(os.environ.get(PAUSE_LIMIT_S) or LIMIT_S)
    what = "resume a pause after so many seconds without a debugger; 0: never (default: %(default)s)"
    parser.add_argument("--pause-limit-s", type=float, default=limit_s, help=what)
    what = "host names that HTTP requests may use besides loopback, separated by commas"
    parser.add_argument("--allowed-hosts", default=os.environ.get(variables.ALLOWED_HOSTS, ""), help=what)
    parser.add_argument("--log-file", type=Path, help="rotated log file (default: stderr)")
    parser.add_argument("--audit-file", type=Path, help="second file for audit lines, kept for 30 days")
    what = "file with the numbers that pauses and breakpoints have; made empty with the cluster"
    parser.add_argument("--numbers-file", type=Path, help=what)
    options = parser.parse_args()
    logs.set_up(options.log_file, options.audit_file)
    raise_file_limit()
    token = Path(os.environ[variables.TOKEN_PATH]).read_text(encoding="ascii").strip()
    try:
        hosts = tuple(name.strip() for name in options.allowed_hosts.split(","))
        gateway = Gateway(token, options.pause_limit_s, hosts, Numbers(options.numbers_file))
        at = Place(options.host, options.client_port, options.client_fd)
        asyncio.run(serve(gateway, at, Place(options.dial_host, options.dial_port, options.dial_fd)))
    except OSError as error:
        log.error("%s", error)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
