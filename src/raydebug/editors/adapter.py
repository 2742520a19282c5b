"""A debug adapter on stdin and stdout, as editors start one: finds the cluster, knows the token, reaches the gateway.

`raydebug adapter` runs it, and VS Code runs this file by its path (`debugAdapterPath`). The configuration names the
cluster (`"cluster": "default"`), so no address and no token stands in it, and it holds when the cluster is a new one.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # by its path: this folder is no place to import from, the one that holds the package is
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import asyncio

from raydebug.cluster.state import DEFAULT_NAME, load_cluster
from raydebug.console.session import Door
from raydebug.dap.wire import Message
from raydebug.editors.relay import Relay
from raydebug.errors import RaydebugError


def find_door(arguments: Message) -> Door:
    """Return the door of the cluster that the arguments of an `attach` name.

    Raises:
        RaydebugError: there is no such cluster, or its token cannot be read.
    """
    cluster = load_cluster(str(arguments.get("cluster") or DEFAULT_NAME))
    try:
        return Door(cluster.gateway_host, cluster.gateway_port, cluster.token)
    except (OSError, ValueError) as error:
        raise RaydebugError(
            f"the token of cluster '{cluster.name}' cannot be read",
            cause=str(error),
            fix="start the cluster with `raydebug up`",
            code="auth.no-token",
        ) from error


def serve() -> None:
    """Speak DAP on stdin and stdout until either side leaves."""
    asyncio.run(_serve())


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    await Relay(reader, writer, find_door).run()


if __name__ == "__main__":
    serve()
