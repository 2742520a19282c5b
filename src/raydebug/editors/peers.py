"""Whose process is at the other end of a loopback connection."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path

# Linux, Documentation/networking/proc_net_tcp.rst: sl, local_address, rem_address, st, queues, timer, retransmits, uid,
# timeout, inode. An address is hexadecimal, in words of the machine's byte order. A socket that its process has closed
# is listed with uid 0 and inode 0.
TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9


def can_tell() -> bool:
    """Say whether this system tells whose a connection is."""
    return TABLES[4].is_file()


def uid_of(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the user of the process that holds the other end of a connection within this machine.

    Args:
        peer: the other end's address and port.
        own: this end's.

    Returns:
        None where no open socket of this machine is that end.
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
