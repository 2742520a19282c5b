"""Whose a socket of this machine is: the other end of a connection, or what listens at an address."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from raydebug.cluster.state import Cluster

# Linux, Documentation/networking/proc_net_tcp.rst: sl, local_address, rem_address, st, queues, timer, retransmits, uid,
# timeout, inode. An address is hexadecimal, in words of the machine's byte order. A socket that its process has closed,
# or has not accepted yet, is listed with uid 0 and inode 0.
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _STATE, _UID, _INODE = 1, 2, 3, 7, 9
_LISTENS = "0A"


def can_tell() -> bool:
    """Return whether this system reports the user of a connection."""
    return TABLES[0].is_file()


def uid_of(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the user of the process at the other end of a connection within this machine.

    None if no open socket of this machine is that end.
    """
    local, remote = _as_listed(*peer), _as_listed(*own)
    for row in _rows():
        if row[_LOCAL] in local and row[_REMOTE] in remote and row[_INODE] != "0":
            return int(row[_UID])
    return None


def is_ours(peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """Return whether the other end of a connection is this user's; True where this machine cannot tell."""
    return not can_tell() or uid_of(peer[:2], own[:2]) == os.getuid()


def is_loopback(url: str) -> bool:
    """Return whether a URL names this machine itself."""
    host = urlsplit(url).hostname
    return host == "localhost" or (host or "").startswith("127.") or host == "::1"


def uid_behind(url: str) -> int:
    """Return the user of the process of this machine that answers at a URL; this user if another host does."""
    parts = urlsplit(url)
    address = (str(parts.hostname), parts.port or {"https": 443}.get(parts.scheme, 80))
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=5.0) as connection:
        peer = connection.getpeername()[:2]
        if _is_here(connection):
            return next(iter(_listening(*peer)), os.getuid())
    return os.getuid()


def stranger_at(cluster: Cluster, connection: socket.socket) -> int | None:
    """Return the user of what has answered a connection, if that is nobody of the cluster's; nothing may be sent yet.

    The cluster's are this user, root (Docker publishes ports), the owner of the token's file, and of a cluster that was
    joined the user that had its dashboard then. A token must not be sent to anybody else: while Ray's dashboard is
    down, every user of the host may take its port.

    None as well where this machine cannot tell: another system than Linux, or another host; and where there is no token
    for a cluster that was never joined.
    """
    peer, own = connection.getpeername()[:2], connection.getsockname()[:2]
    if not _is_here(connection):
        return None
    if not cluster.has_gateway and cluster.remote.dashboard_uid is None and not cluster.dashboard_token:
        return None
    # What is not accepted yet would be closed with its listener, so then the listener is there.
    uid = uid_of(peer, own)
    return _stranger(cluster, _listening(*peer) if uid is None else [uid])


def stranger_listening(cluster: Cluster, address: tuple[str, int]) -> int | None:
    """Return the user that listens at a loopback address, if that is nobody of the cluster's; see `stranger_at`."""
    return _stranger(cluster, _listening(*address)) if can_tell() else None


def _is_here(connection: socket.socket) -> bool:
    """Return whether this machine can tell whose the other end is: it is its own, at whichever of its addresses."""
    peer, own = connection.getpeername()[0], connection.getsockname()[0]
    return can_tell() and (peer == own or ipaddress.ip_address(peer).is_loopback)


def _stranger(cluster: Cluster, uids: list[int]) -> int | None:
    trusted = {os.getuid(), 0, cluster.remote.dashboard_uid}
    if cluster.token_file.is_file():
        trusted.add(cluster.token_file.stat().st_uid)
    return next((uid for uid in uids if uid not in trusted), None)


def _listening(host: str, port: int) -> list[int]:
    places = {place for address in (host, "0.0.0.0", "::") for place in _as_listed(address, port)}
    return [int(row[_UID]) for row in _rows() if row[_STATE] == _LISTENS and row[_LOCAL] in places]


def _rows() -> Iterator[list[str]]:
    for table in TABLES:
        if table.is_file():  # a machine may have no IPv6
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                yield line.split()


def _as_listed(host: str, port: int) -> set[str]:
    """Return the forms of an address: a socket of IPv6 lists an address of IPv4 as ::ffff:ADDRESS."""
    packed = ipaddress.ip_address(host).packed
    forms = [packed] if len(packed) == 16 else [packed, bytes(10) + b"\xff\xff" + packed]
    step = -1 if sys.byteorder == "little" else 1
    words = ("".join(form[i : i + 4][::step].hex() for i in range(0, len(form), 4)) for form in forms)
    return {f"{hexadecimal}:{port:04x}".upper() for hexadecimal in words}
