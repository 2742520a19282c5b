"""Two hosts of a test's own, with one cable between them that can be cut: network namespaces of Linux.

Nothing of this machine's own network is touched: whoever may make a user namespace (or is root) can do this.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

# A network of documentation's own addresses (RFC 5737): it lives in the namespaces only.
SERVER, CLIENT = "192.0.2.1", "192.0.2.2"
NOBODY = "02:00:00:00:00:99"  # an Ethernet address that nobody has: what is sent to it is lost without a word
START_S = 10.0


class NoNamespaces(Exception):
    """This machine lets nobody make network namespaces; the text says what was tried."""


@dataclass
class Host:
    """One of the two.

    Args:
        address: its IP address.
        device: its end of the cable.
        keeper: the process that keeps its namespace there; it ends with its stdin, so with the test.
    """

    address: str
    device: str
    keeper: subprocess.Popen[bytes]

    def argv(self, *argv: str) -> list[str]:
        """Return the argv that runs a program on this host."""
        return ["nsenter", "--target", str(self.keeper.pid), "--user", "--net", "--preserve-credentials", "--", *argv]

    def run(self, *argv: str) -> str:
        """Run a program on this host to its end, and return what it printed."""
        return subprocess.run(self.argv(*argv), capture_output=True, text=True, check=True, timeout=START_S).stdout


class TwoHosts:
    """A server and a client."""

    def __init__(self, server: Host, client: Host) -> None:
        self.server, self.client = server, client

    def cut(self) -> None:
        """Lose every packet between the two, in silence: neither side is notified, as when a laptop sleeps."""
        for host, other in self._ends():
            host.run("ip", "neigh", "replace", other.address, "lladdr", NOBODY, "dev", host.device, "nud", "permanent")

    def heal(self) -> None:
        """Let packets pass again."""
        for host, other in self._ends():
            host.run("ip", "neigh", "del", other.address, "dev", host.device)

    def _ends(self) -> list[tuple[Host, Host]]:
        return [(self.server, self.client), (self.client, self.server)]


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make them, joined by a cable; they are gone after the block.

    Raises:
        NoNamespaces: it cannot be done here.
    """
    with contextlib.ExitStack() as ends:
        server = Host(SERVER, "cable0", ends.enter_context(kept(["unshare", "--user", "--map-root-user", "--net"])))
        client = Host(CLIENT, "cable1", ends.enter_context(kept(server.argv("unshare", "--net"))))
        try:
            end = ("type", "veth", "peer", "name", client.device, "netns", str(client.keeper.pid))
            server.run("ip", "link", "add", server.device, *end)
            for host in (server, client):
                host.run("ip", "address", "add", f"{host.address}/30", "dev", host.device)
                for device in ("lo", host.device):
                    host.run("ip", "link", "set", device, "up")
        except subprocess.CalledProcessError as error:
            raise NoNamespaces(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error
        yield TwoHosts(server, client)


@contextlib.contextmanager
def kept(unshare: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Keep a new namespace by a `cat` in it, which answers once it is there."""
    try:
        keeper = subprocess.Popen(
            [*unshare, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except FileNotFoundError as error:
        raise NoNamespaces(str(error)) from error
    with keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                keeper.stdin.write(b"?\n")
                keeper.stdin.flush()
            if keeper.stdout.readline() != b"?\n":
                assert keeper.stderr is not None
                raise NoNamespaces(f"{' '.join(unshare)}: {keeper.stderr.read().decode().strip()}")
            yield keeper
        finally:
            keeper.kill()
