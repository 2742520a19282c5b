"""`python -m bench.copying PORT TO_PORT`: a relay on loopback that only copies, as short as asyncio allows."""

from __future__ import annotations

import asyncio
import socket
import sys

from raydebug.dap import RECEIVE_BYTES


class _End(asyncio.Protocol):
    """One end of a connection; what arrives goes to the other."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.other: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.max_size = RECEIVE_BYTES  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.waiting.append(data)
        else:
            self.other.write(data)


async def main(port: int, to_port: int) -> None:
    """Relay until killed."""
    loop = asyncio.get_running_loop()
    joining: set[asyncio.Task[None]] = set()

    async def join(near: _End) -> None:
        _, far = await loop.create_connection(_End, "127.0.0.1", to_port)
        near.other, far.other = far.transport, near.transport
        far.transport.writelines(near.waiting)

    def accept() -> _End:
        near = _End()
        joining.add(asyncio.ensure_future(join(near)))
        return near

    async with await loop.create_server(accept, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
