"""Another program has the port of the gateway, or of Ray's dashboard: no client gives it the token."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gateway_under_test import TOKEN, GatewayUnderTest
from raydebug.client import gateway_client
from raydebug.cluster import find, joined, port_owner
from raydebug.cluster.dashboard import Dashboard, why_no_gcs
from raydebug.cluster.state import Cluster
from raydebug.console.session import GatewayAddress
from raydebug.dap import DapSession, RequestFailed, open_proven
from raydebug.editors import adapter
from raydebug.errors import RaydebugError
from raydebug.protocol import client_handshake, wire
from raydebug.protocol.client_handshake import NotProven

NONCE = "a" * 64
CLAIM = client_handshake.line(NONCE, "b" * 64)
ANSWERS = {
    "a list of pauses": b'HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{"version":1,"pauses":[]}',
    "an older gateway's hint": client_handshake.HINT,
    "a proof that is none": CLAIM,
    "a refusal": client_handshake.line("refused"),
    "DAP": wire.encode(wire.response(1, wire.request(1, "initialize"))),
    "bytes without end": b"x" * 100_000,
    "nothing": b"",
}


class Impostor:
    """A listener that answers everything in one way, and keeps what it gets."""

    def __init__(self, server: socket.socket, answer: bytes, then: bytes) -> None:
        self.port, self.got = server.getsockname()[1], b""
        self._server, self._answer, self._then = server, answer, then
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(10)
                    self.got += connection.recv(65536)
                    connection.sendall(self._answer)
                    while self._then:
                        time.sleep(0.05)
                        connection.sendall(self._then)
                    connection.shutdown(socket.SHUT_WR)
                    while data := connection.recv(65536):
                        self.got += data


@contextlib.contextmanager
def impostor(answer: bytes, then: bytes = b"") -> Iterator[Impostor]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Impostor(server, answer, then)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def cluster_at(folder: Path, port: int, dashboard: int = 1) -> Cluster:
    (folder / "token").write_text(TOKEN)
    ports = {"gateway": port, "dashboard": dashboard, "dial": 1}
    return Cluster("here", "1", "local", folder, folder, "python", ports, 1, 0, "breakpoint", "core", created=0.0)


def attach(cluster: Cluster) -> None:
    address = GatewayAddress(cluster.gateway_host, cluster.gateway_port, cluster.token)
    asyncio.run(address.open("1", steal=False, on_output=lambda _: None))


def attach_by_an_editor(cluster: Cluster) -> None:
    address = GatewayAddress(cluster.gateway_host, cluster.gateway_port, cluster.token)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await adapter.Relay(reader, writer, lambda _: address).run()

    async def look() -> None:
        server = await asyncio.start_server(forward, "127.0.0.1", 0)
        session = await DapSession.connect("127.0.0.1", server.sockets[0].getsockname()[1])
        await session.request("initialize")
        try:
            await session.request("attach")
        except RequestFailed as refused:
            raise RaydebugError(str(refused), cause="", fix="", code="x") from refused

    asyncio.run(look())


CLIENTS: dict[str, Callable[[Cluster], object]] = {
    "paused, run's poller": gateway_client.fetch_pauses,
    "ps --processes": gateway_client.fetch_processes,
    "stacks": lambda cluster: gateway_client.fetch_stacks(cluster, timeout_s=0.3),
    "break list": gateway_client.fetch_breaks,
    "break remove": lambda cluster: gateway_client.remove_break(cluster, "b1"),
    "break add, run": lambda cluster: gateway_client.set_breaks(cluster, [{"where": "m:1"}]),
    "the recorder": lambda cluster: gateway_client.fetch_snapshots(cluster, "job"),
    "snapshot": lambda cluster: gateway_client.save_pause(cluster, "1"),
    "attach": attach,
    "an editor's adapter": attach_by_an_editor,
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_impostor_gets_no_token(tmp_path, answer):
    """H2: from whatever answers at the gateway's port without the token, each client gets an error, and gives none.

    What it does get, a nonce and a proof, is of no use at the real gateway, at neither port.
    """
    with impostor(answer) as other:
        cluster = cluster_at(tmp_path, other.port)
        for name, client in CLIENTS.items():
            with pytest.raises(RaydebugError):
                client(cluster)
            assert TOKEN.encode() not in other.got, name
        assert all(part.startswith(client_handshake.MARK) for part in other.got.split(client_handshake.END)[:-1])
        assert b"HTTP" not in other.got


def test_an_older_gateway_is_named(tmp_path):
    """With the gateway of an older raydebug, which cannot prove itself, the error says how to restart it."""
    with impostor(client_handshake.HINT) as other, pytest.raises(RaydebugError) as failure:
        gateway_client.fetch_pauses(cluster_at(tmp_path, other.port))
    assert str(failure.value) == (
        f"error: no gateway that can be trusted answers at 127.0.0.1:{other.port} (cluster 'here')\n"
        "cause: it is a gateway of an older raydebug, which cannot prove that it holds the token; nothing was sent\n"
        "fix: restart the cluster: `raydebug down`, then `raydebug up`"
    )


def hello_to_an_impostor() -> list[str]:
    """Return the nonce and the proof that a client shows to whatever has the port."""
    return client_handshake.words(client_handshake.ClientHandshake(TOKEN).hello)


def exchange(port: int, *parts: bytes) -> bytes:
    """Send parts, each after an answer to the one before, and return the last answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for part in parts:
            connection.sendall(part)
            answer = connection.recv(65536)
        return answer


def test_what_an_impostor_got_opens_nothing(gateway: GatewayUnderTest):
    """H2: the first line of a client, sent to the gateway by somebody else, leads to no answer to a request."""
    nonce, proof = hello_to_an_impostor()
    request = b"GET /pauses HTTP/1.1\r\nHost: localhost\r\n\r\n"
    first = client_handshake.line(nonce, proof)
    for second in (client_handshake.line(proof), first, client_handshake.line(""), b"RAYDEBUG \r\n\r\n"):
        assert exchange(gateway.gateway_port, first, second + request) == client_handshake.line("refused")
    assert exchange(gateway.gateway_port, first + request).startswith(client_handshake.MARK)
    about = {"nonce": nonce, "proof": proof, "version": 2}
    dial_in = wire.encode(wire.event(1, "hello", about))
    assert b"wrong token" in exchange(gateway.dial_port, dial_in)


def test_another_clusters_token(gateway: GatewayUnderTest, tmp_path):
    """S10: a client with another cluster's token is refused in the gateway's own words, with the audit line of it."""
    cluster = cluster_at(tmp_path, gateway.gateway_port)
    cluster.token_file.write_text("o" * 64)
    with pytest.raises(RaydebugError, match="the token is not this cluster's") as failure:
        gateway_client.fetch_pauses(cluster)
    assert (failure.value.code, failure.value.exit_code) == ("auth.wrong-token", 2)
    assert "wrong token" in gateway.log


async def test_a_proven_client_needs_no_token(gateway: GatewayUnderTest):
    """After the handshake neither HTTP nor DAP has the token; the token of a debugger of others still opens both."""
    header = b"GET /pauses HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n"
    assert exchange(gateway.gateway_port, header % TOKEN.encode()).startswith(b"HTTP/1.1 200")
    assert exchange(gateway.gateway_port, header % b"x").startswith(b"HTTP/1.1 401")
    reader, writer = await open_proven("127.0.0.1", gateway.gateway_port, TOKEN)
    writer.write(wire.encode(wire.request(1, "attach", {"target": "99"})))
    assert b"there is no pause '99'" in await reader.read(65536)
    writer.close()
    with pytest.raises(NotProven):
        await open_proven("127.0.0.1", gateway.gateway_port, "o" * 64)


# Ray's dashboard

TAKES = """
import socket, sys
server = socket.create_server(("{}", 0), family=socket.{}, dualstack_ipv6={})
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    connection.settimeout(0.5)
    try:
        print(connection.recv(9999), flush=True)
        connection.sendall({!r})
    except OSError:
        print(b"", flush=True)
    connection.close()
"""
PLACES = {"127.0.0.1": ("127.0.0.1", "AF_INET", False), "all addresses": ("::", "AF_INET6", True)}


@contextlib.contextmanager
def listener_of(
    uid: int, place: tuple[str, str, bool], answer: bytes = b""
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    argv = ["/usr/bin/env", "python3", "-c", TAKES.format(*place, answer)]
    with subprocess.Popen(argv, user=uid, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


def drain(pieces: AsyncIterator[str]) -> None:
    async def read() -> None:
        async for _ in pieces:
            pass

    asyncio.run(read())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a program of another user")
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_another_user_on_the_dashboards_port_gets_no_token(tmp_path, place):
    """H2: when another user of the host has taken the port of Ray's dashboard, nothing is sent to him."""
    with listener_of(65534, place) as (port, process):
        cluster = cluster_at(tmp_path, 1, port)
        dashboard = Dashboard(cluster)
        for ask in (dashboard.submitted_jobs, lambda: drain(dashboard.follow_logs("job")),
                    lambda: drain(dashboard.follow_file("node", "file"))):  # fmt: skip
            with pytest.raises(RaydebugError, match="another user of this machine, uid 65534; the token was not sent"):
                ask()
            assert process.stdout.readline() == "b''\n"
        assert port_owner.stranger_listening(cluster, ("127.0.0.1", port)) == 65534


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a program of another user")
def test_another_user_where_no_cluster_was_known(tmp_path, monkeypatch):
    """The first command that names an address sends Ray's own token to no other user, unless its file is theirs."""
    (tmp_path / "token").write_text(TOKEN)
    answer = b'HTTP/1.1 200 OK\r\nContent-Length: 31\r\n\r\n{"authentication_mode":"token"}'
    with listener_of(65534, PLACES["all addresses"], answer) as (port, process):
        for host in ("127.0.0.1", "localhost", "[::1]", socket.gethostbyname(socket.gethostname())):
            for name, value in (("RAY_AUTH_TOKEN", TOKEN), ("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))):
                monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
                monkeypatch.setenv(name, value)
                named = find.cluster_at(f"http://{host}:{port}")
                with pytest.raises(RaydebugError, match="uid 65534; the token was not sent") as refused:
                    Dashboard(named).nodes()
                assert "RAY_AUTH_TOKEN_PATH=FILE" in refused.value.fix
                assert process.stdout.readline() == "b''\n"
        was = dataclasses.replace(
            named.remote, asks_token=False, dashboard_uid=65534
        )  # joined while none was asked for
        asked = joined._checked(named, dataclasses.replace(named, remote=was))
        assert TOKEN not in process.stdout.readline()
        with pytest.raises(RaydebugError, match="the token was not sent"):
            Dashboard(asked).nodes()
        assert process.stdout.readline() == "b''\n"
        os.chown(tmp_path / "token", 65534, 65534)
        with pytest.raises(RaydebugError, match="no Ray dashboard is at"):
            Dashboard(find.cluster_at(f"http://127.0.0.1:{port}")).nodes()
        assert TOKEN in process.stdout.readline()


def test_our_own_dashboard_is_asked(tmp_path):
    """A dashboard of this user gets the token, whether its connection is accepted at once or waits."""
    with impostor(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]") as ours:
        assert Dashboard(cluster_at(tmp_path, 1, ours.port)).submitted_jobs() == []
        assert TOKEN.encode() in ours.got
    with socket.create_server(("127.0.0.1", 0)) as waiting:
        cluster = cluster_at(tmp_path, 1, waiting.getsockname()[1])
        with socket.create_connection(waiting.getsockname()) as connection:
            assert port_owner.stranger_at(cluster, connection) is None


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("head", "piece", "most_bytes", "why"),
    [
        (HEAD, bytes(99), 100, "is too long"),
        (HEAD, bytes(99), 10**9, "its answer comes too slowly"),
        (HEAD[:-2], b"a", 10**9, "Server disconnected without sending a response"),
    ],
)
def test_a_dashboard_without_end(tmp_path, monkeypatch, head, piece, most_bytes, why):
    """An answer that never ends is given up, by its length or its time; so is a header."""
    monkeypatch.setattr("raydebug.cluster.dashboard.TIMEOUT_S", 0.5)
    monkeypatch.setattr("raydebug.cluster.dashboard.GCS_TIMEOUT_S", 0.3)
    monkeypatch.setitem(Dashboard._receive.__kwdefaults__, "most_bytes", most_bytes)
    with impostor(head, then=piece) as other:
        cluster = cluster_at(tmp_path, 1, other.port)
        with pytest.raises(RaydebugError) as given_up:
            Dashboard(cluster).submitted_jobs()
        assert why in str(given_up.value)
        assert why_no_gcs(cluster) is None or head != HEAD


@pytest.mark.timeout(60)
def test_a_gateway_whose_proof_comes_byte_by_byte(tmp_path, monkeypatch):
    """A proof that never ends is given up."""
    monkeypatch.setattr("raydebug.client.gateway_client.TIMEOUT_S", 0.5)
    monkeypatch.setattr("raydebug.dap.PROOF_TIMEOUT_S", 0.5)
    with impostor(client_handshake.MARK, then=b"a") as other:
        with pytest.raises(RaydebugError, match="does not answer"):
            gateway_client.fetch_pauses(cluster_at(tmp_path, other.port))
        with pytest.raises(TimeoutError):
            asyncio.run(open_proven("127.0.0.1", other.port, TOKEN))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a program of another user")
def test_the_supervisor_keeps_the_gateways_ports(tmp_path, monkeypatch):
    """H2: between two lives of the gateway another user cannot take its ports, and each life has the same ones."""
    from raydebug.cluster.supervisor import Supervisor
    from raydebug.cluster.up import choose_ports

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ports = choose_ports({}, {}, {5678, 8265})
    cluster = cluster_at(tmp_path, 1)
    cluster.ports.update(ports)
    kept = Supervisor(cluster)
    assert kept._take_ports() is None
    takes = "import socket, sys\nfor option in ((), (2,), (15,), (2, 15)):\n    s = socket.socket()\n"
    takes += "    for one in option: s.setsockopt(1, one, 1)\n    try: s.bind(('127.0.0.1', int(sys.argv[1])))\n"
    takes += "    except OSError: continue\n    s.listen(); print('taken')\n"
    for _ in range(2):
        kept._gateway = kept._start_gateway()
        assert gateway_client.fetch_pauses(cluster) == []  # it waits for the gateway to begin
        kept._gateway.kill()
        kept._gateway.wait()
        for purpose in ("gateway", "dial"):
            argv = ["/usr/bin/env", "python3", "-c", takes, str(ports[purpose])]
            done = subprocess.run(argv, user=65534, cwd="/", capture_output=True, text=True, timeout=20, check=True)
            assert done.stdout == ""
    kept._turn_away()
    with socket.create_connection(("127.0.0.1", ports["gateway"]), timeout=10) as waiting:
        kept._turn_away()
        assert waiting.recv(1) == b""


def test_ports_that_are_taken_already(tmp_path, monkeypatch):
    """A port of the gateway that another program has taken is the reason why the cluster does not start."""
    from raydebug.cluster.supervisor import Supervisor

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        kept = Supervisor(cluster_at(tmp_path, port))
        assert kept._take_ports() == f"the gateway cannot listen on 127.0.0.1:{port}: Address already in use"
