"""A port of this machine whose connections are a command's stdin and stdout: `ssh -W`, `kubectl exec -i POD --`.

    python -m raydebug.cluster.connection here PORT=FAR,... COMMAND...   each connection runs COMMAND, FAR for FAR_PORT
    python -m raydebug.cluster.connection there FAR    the far end: connects to a port of its own loopback

So the gateway listens on loopback of the head, and a user who may log in there reaches it. The port here is for this
user alone where the machine tells whose a connection is (Linux); else other users reach it too, and have to prove the
token.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from functools import partial

from raydebug.cluster.port_owner import is_ours
from raydebug.protocol.node_facts import namespace

FAR_PORT = "FAR_PORT"  # in the command
PIECE_BYTES = 64 * 1024
MOST_AT_ONCE = 200  # connections: a command that leads back to this port starts one more for each
PORTS_HERE = "RAYDEBUG_PORTS_HERE"  # of a command: the network it was started in, and the ports that lead to it
ENDED, ENDS_S = "it ended with exit code", 2.0  # what is said of a command that leads nowhere
CLIENT_LEFT_S = 60.0  # after the client's end; over a network that was cut the far end never comes


def there(port: int) -> None:
    """Pass bytes between stdin, stdout and a port of loopback until the port's end is closed."""
    network, _, ports = os.environ.get(PORTS_HERE, "").rpartition(" ")
    if network and network == namespace("net") and str(port) in ports.split(","):  # it would end here again, and so on
        sys.exit(
            f"port {port} of {socket.gethostname()} is where this connection comes from: nothing else listens there"
        )
    try:
        connection = socket.create_connection(("127.0.0.1", port))
    except OSError as error:  # what `up` then quotes
        sys.exit(f"port {port} of the loopback of {socket.gethostname()}: {error.strerror}")

    def send() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(0, PIECE_BYTES):
                connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    with contextlib.suppress(OSError):
        while data := connection.recv(PIECE_BYTES):
            while data:
                data = data[os.write(1, data) :]


async def here(ways: str, argv: list[str]) -> None:
    """Serve ports of loopback until the end of the process; `ways` is PORT=FAR,..."""
    served = asyncio.Semaphore(MOST_AT_ONCE)

    async def serve(far: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if served.locked():
                sys.stderr.write(f"{MOST_AT_ONCE} connections at once: does {argv[0]} lead back to this port?\n")
                sys.stderr.flush()
            elif is_ours(writer.get_extra_info("peername"), writer.get_extra_info("sockname")):
                async with served:
                    await _connect(reader, writer, [word.replace(FAR_PORT, far) for word in argv])
        except OSError as error:  # the program is missing, or no more can be started
            sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
            sys.stderr.flush()
        finally:
            writer.close()

    pairs = [way.split("=") for way in ways.split(",")]
    os.environ[PORTS_HERE] = f"{namespace('net')} {','.join(port for port, _ in pairs)}"
    servers = [await asyncio.start_server(partial(serve, far), "127.0.0.1", int(port)) for port, far in pairs]
    await asyncio.gather(*(server.serve_forever() for server in servers))


async def _connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, argv: list[str]) -> None:
    """Pass bytes between a connection and a command; where the command ends by itself with an error, say so."""
    pipe = asyncio.subprocess.PIPE
    far = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    assert far.stdin is not None
    assert far.stdout is not None
    sending = asyncio.create_task(_pass_on(reader, far.stdin))
    receiving = asyncio.create_task(_pass_on(far.stdout, writer))
    try:
        await asyncio.wait([sending, receiving], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([receiving], timeout=CLIENT_LEFT_S)
        if receiving.done():
            with contextlib.suppress(TimeoutError):
                if code := await asyncio.wait_for(far.wait(), ENDS_S):
                    sys.stderr.write(f"{ENDED} {code}\n")
                    sys.stderr.flush()
    finally:
        sending.cancel()
        receiving.cancel()
        if far.returncode is None:
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                os.kill(far.pid, signal.SIGTERM)  # `terminate` would poll, and take its end from asyncio
        await far.wait()


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(PIECE_BYTES):
            sink.write(data)
            await sink.drain()
    sink.close()


if __name__ == "__main__":
    if sys.argv[1] == "there":
        there(int(sys.argv[2]))
    else:
        asyncio.run(here(sys.argv[2], sys.argv[3:]))
