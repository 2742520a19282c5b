"""Detection of lost peers from the kernel's state of a connection, with real sockets on loopback."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import time

import pytest

from raydebug.protocol.lost_peers import peer_state, watch_peer
from two_hosts import NoNamespaces, two_hosts


async def connection() -> tuple[socket.socket, asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the two ends of a connection: a plain socket, and streams."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader, writer = await asyncio.open_connection(*server.getsockname())
        other, _ = server.accept()
    return other, reader, writer


@pytest.mark.slow
async def test_who_does_not_read_is_still_there():
    """A peer with full buffers still acknowledges, so it does not count as lost."""
    other, reader, writer = await connection()
    watch_peer(reader, writer, unacknowledged_s=2.0)
    writer.write(b"x" * 50_000_000)
    await asyncio.sleep(5)
    assert not writer.is_closing()
    assert peer_state(writer.get_extra_info("socket"))[:2] == (0, 0)
    begin, read = time.monotonic(), 0
    other.settimeout(5)
    while read < 50_000_000 and time.monotonic() < begin + 30:
        read += len(await asyncio.to_thread(other.recv, 1 << 20))
    assert read == 50_000_000
    writer.close()
    other.close()


async def test_pipes_are_left_alone():
    """A connection other than TCP is not watched."""
    ends = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ends[0])
    watch_peer(reader, writer, unacknowledged_s=0.0)
    await asyncio.sleep(0.1)
    assert not writer.is_closing()
    writer.close()
    ends[1].close()


GIVES_UP = """
import asyncio, errno, sys
from raydebug.protocol.lost_peers import peer_state, watch_peer
async def main(host, port):
    reader, writer = await asyncio.open_connection(host, int(port))
    watch_peer(reader, writer, unacknowledged_s=3.0)
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    writer.write(b"x")
    await asyncio.sleep(1)
    print("unacknowledged", peer_state(writer.get_extra_info("socket")).unacknowledged, flush=True)
    try:
        await reader.read(1)
    except OSError as error:
        print("lost", error.errno, flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


async def test_who_is_gone_is_given_up():
    """Data sent to a lost peer stays unacknowledged; reads raise a timeout."""
    try:
        with two_hosts() as hosts:
            listen = "import socket, time; s = socket.create_server(('{}', 5000)); print(1, flush=True); time.sleep(60)"
            listener = await asyncio.create_subprocess_exec(
                *hosts.server.argv(sys.executable, "-c", listen.format(hosts.server.address)), stdout=-1
            )
            await listener.stdout.readline()
            argv = hosts.client.argv(sys.executable, "-c", GIVES_UP, hosts.server.address, "5000")
            one = await asyncio.create_subprocess_exec(*argv, stdin=-1, stdout=-1)
            assert await one.stdout.readline() == b"connected\n"
            hosts.cut()
            out, _ = await one.communicate(b"\n")
            listener.kill()
            await listener.wait()
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")
    assert out.decode() == f"unacknowledged 1\nlost {errno.ETIMEDOUT}\n"
