"""Free ports for a cluster: chosen once, remembered, and never in the ranges that Ray or the kernel hands out."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from raydebug.errors import Exit, RaydebugError

# Ray's default range for workers is 10002-19999, the kernel's for outgoing connections 32768-60999.
RANGE = range(20000, 32000)
DEFAULTS = {"dashboard": 8265, "gateway": 5678}
PURPOSES = (
    *("dashboard", "gateway", "dial", "gcs", "client_server", "agent", "agent_grpc", "runtime_env", "metrics"),
    *("node_manager", "object_manager"),
)


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Say whether a port can be listened on: on this address, and on all of them, as a foreign server may hold it."""
    for address in (host, ""):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True


def choose_ports(
    asked: dict[str, int | None],
    remembered: dict[str, int],
    taken: Collection[int],
    purposes: Collection[str] = PURPOSES,
) -> dict[str, int]:
    """Return a port for every purpose.

    Args:
        asked: ports that the user named, by purpose; these and no others will do. 0 asks for any that is free, and not
            for the one that everybody's first cluster has.
        remembered: what an earlier cluster of this name had; taken again where still free.
        taken: ports of other clusters, also of those that are just starting.
        purposes: what the ports are for.

    Raises:
        RaydebugError: a port that the user named is taken.
    """
    chosen: dict[str, int] = {}
    for purpose in purposes:
        wanted = asked.get(purpose)
        if wanted and not is_free(wanted):
            raise _taken(purpose, wanted)
        default = DEFAULTS.get(purpose) if wanted is None else None
        candidates = [wanted] if wanted else [remembered.get(purpose), default]
        used = {*chosen.values(), *taken}
        port = next((p for p in candidates if p and p not in used and is_free(p)), None)
        chosen[purpose] = port or _any_free(used)
    return chosen


def _any_free(used: Collection[int]) -> int:
    for _ in range(200):
        port = random.choice(RANGE)  # noqa: S311 - no secret, only to keep out of each other's way
        if port not in used and is_free(port):
            return port
    raise RaydebugError(
        "no free port was found",
        cause=f"200 ports tried in {RANGE.start}-{RANGE.stop - 1}, all taken",
        fix="end what listens there (`ss -ltnp` lists it)",
        code="port.none-free",
        exit_code=Exit.TAKEN,
    )


def _taken(purpose: str, port: int) -> RaydebugError:
    return RaydebugError(
        f"port {port} for the {purpose.replace('_', ' ')} is taken",
        cause=f"{owner_of(port)} listens there",
        fix=f"end it, or choose another port with --{purpose.replace('_', '-')}-port (0 takes a free one)",
        code="port.taken",
        exit_code=Exit.TAKEN,
    )


def owner_of(port: int) -> str:
    """Return who listens on a port, in words."""
    import psutil

    try:
        for found in psutil.net_connections("tcp"):
            if found.laddr and found.laddr.port == port and found.status == psutil.CONN_LISTEN and found.pid:
                process = psutil.Process(found.pid)
                return f"{process.name()} (pid {found.pid}, user {process.username()})"
    except (psutil.Error, PermissionError):
        pass
    return "another program"
