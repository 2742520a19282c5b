"""What a connection of ours asks of asyncio."""

from __future__ import annotations

import asyncio

from raydebug.dap.session import RECEIVE_BYTES, answer_at_once

SENT_BYTES = 8 * 1024 * 1024


class _Counting(asyncio.Protocol):
    """Notes how much arrives in one piece."""

    def __init__(self) -> None:
        self.pieces: list[int] = []

    def data_received(self, data: bytes) -> None:
        self.pieces.append(len(data))


async def test_asyncio_receives_by_the_size_that_we_set():
    """A transport's `max_size` is what asyncio makes room for at each read; nothing documents it."""
    counting = _Counting()
    taken = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *ends: taken.set_result(ends), "127.0.0.1", 0)
    async with server:
        _, other = await asyncio.open_connection(*server.sockets[0].getsockname())
        _, writer = await taken
        answer_at_once(writer)
        writer.transport.set_protocol(counting)
        other.write(b"x" * SENT_BYTES)
        async with asyncio.timeout(10):
            while sum(counting.pieces) < SENT_BYTES:
                await asyncio.sleep(0.01)
        assert max(counting.pieces) == RECEIVE_BYTES
        writer.transport.abort()
        other.transport.abort()
