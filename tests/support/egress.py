"""Packets that leave a compose network, as the host's own kernel sees them on the network's bridge."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import struct
import threading
import time
from pathlib import Path

from containers import docker

ETH_P_ALL, ETH_P_IP, ETH_P_IPV6 = 0x0003, 0x0800, 0x86DD  # linux/if_ether.h
BRIDGE_WITHIN_S = 60.0


class Egress:
    """Watches a compose network from its making on; needs root.

    What containers of one network send each other never reaches the bridge's own interface; what leaves does.

    Args:
        network: its name; it may not be there yet.
    """

    def __init__(self, network: str) -> None:
        self._network = network
        self._seen: set[tuple[str, str, int, int]] = set()
        self._stop = threading.Event()
        self.watching = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Egress:
        self._before = _interfaces()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def left(self) -> set[tuple[str, str, int, int]]:
        """Return (source, destination, protocol, port) of what went beyond the network's own addresses."""
        subnets = [ipaddress.ip_network(text) for text in self._subnets]
        return {one for one in self._seen if _is_outside(one, subnets)}

    def _watch(self) -> None:
        bridge = self._find_bridge()
        if bridge is None:
            return
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as packets:
            packets.bind((bridge, ETH_P_ALL))
            packets.settimeout(0.2)
            self.watching.set()
            while not self._stop.is_set():
                with contextlib.suppress(TimeoutError, OSError):  # OSError: the bridge goes with its network
                    data, (_, kind, *_rest) = packets.recvfrom(128)
                    if (packet := _read(kind, data)) is not None:
                        self._seen.add(packet)

    def _find_bridge(self) -> str | None:
        deadline = time.monotonic() + BRIDGE_WITHIN_S
        while time.monotonic() < deadline and not self._stop.is_set():
            for name in _interfaces() - self._before:
                with contextlib.suppress(Exception):  # somebody else's, or gone already
                    (found,) = json.loads(docker("network", "inspect", name.removeprefix("br-")))
                    if found["Name"] == self._network and Path("/sys/class/net", name, "bridge").is_dir():
                        self._subnets = [part["Subnet"] for part in found["IPAM"]["Config"]]
                        return name
            time.sleep(0.02)
        return None


def _interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def _read(kind: int, data: bytes) -> tuple[str, str, int, int] | None:
    if kind == ETH_P_IP and len(data) >= 20:
        header_bytes, protocol = (data[0] & 15) * 4, data[9]
        source, destination = (
            socket.inet_ntop(socket.AF_INET, data[12:16]),
            socket.inet_ntop(socket.AF_INET, data[16:20]),
        )
    elif kind == ETH_P_IPV6 and len(data) >= 40:
        header_bytes, protocol = 40, data[6]
        source, destination = (socket.inet_ntop(socket.AF_INET6, data[at : at + 16]) for at in (8, 24))
    else:
        return None
    has_port = protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP) and len(data) >= header_bytes + 4
    port = struct.unpack_from("!H", data, header_bytes + 2)[0] if has_port else 0
    return source, destination, protocol, port


def _is_outside(
    packet: tuple[str, str, int, int], subnets: list[ipaddress.IPv4Network | ipaddress.IPv6Network]
) -> bool:
    destination = ipaddress.ip_address(packet[1])
    if destination.is_multicast or (destination.is_link_local and destination.version == 6):
        return False
    if packet[1] == "255.255.255.255":
        return False
    return not any(destination.version == net.version and destination in net for net in subnets)
