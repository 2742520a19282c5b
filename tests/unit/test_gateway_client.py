"""Requests to a gateway over HTTP, and the errors of invalid responses."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from raydebug.client import gateway_client
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.protocol import client_handshake, wire
from raydebug.protocol.questions import CENSUS, Nothing
from raydebug.protocol.records import MAX_ITEMS, BreakpointSpec

TOKEN, NONCE = "t" * 64, "a" * 64
LONG = b'{"pauses": "%s"}' % (b"x" * 300_000)


@contextlib.contextmanager
def _answering(answer: bytes, asked: list[bytes], folder: Path) -> Iterator[Cluster]:
    """A server that proves itself, reads one request, answers with these bytes and closes."""
    (folder / "token").write_text("t" * 64)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    theirs, _ = client_handshake.words(connection.recv(65536))
                    proof = wire.proof(TOKEN, client_handshake.AS_GATEWAY, theirs, NONCE)
                    connection.sendall(client_handshake.line(NONCE, proof))
                    mine, _, request = connection.recv(65536).partition(client_handshake.END)
                    assert client_handshake.words(mine) == [
                        wire.proof(TOKEN, client_handshake.AS_CLIENT, theirs, NONCE)
                    ]
                    asked.append(request)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield _cluster(folder, server.getsockname()[1])
        thread.join(10)


def _cluster(folder: Path, port: int) -> Cluster:
    ports = {"gateway": port}
    return Cluster("here", "1", "local", folder, folder, "python", ports, 1, 0, "breakpoint", "core", created=0.0)


def test_a_long_answer_comes_whole(tmp_path):
    """The request has no token; the response is read whole, in any number of pieces."""
    asked: list[bytes] = []
    answer = b"HTTP/1.1 200 \r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(LONG), LONG)
    with _answering(answer, asked, tmp_path) as cluster:
        assert len(gateway_client.request(cluster, "GET", "/pauses")["pauses"]) == 300_000
    assert asked[0].startswith(b"GET /pauses HTTP/1.1\r\n")
    assert TOKEN.encode() not in asked[0]


def test_a_body_is_sent_as_json(tmp_path):
    """A request with a document has its length."""
    asked: list[bytes] = []
    with _answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", asked, tmp_path) as cluster:
        assert gateway_client.request(cluster, "POST", "/breaks", {"where": "m:é"}) == {}
    assert b"Content-Length: 21\r\n" in asked[0]
    assert asked[0].endswith(b'\r\n\r\n{"where": "m:\\u00e9"}')


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"", "it closed the connection without a response"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "illegal status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "peer closed connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{,", "Expecting property name"),
    ],
)
def test_what_is_no_answer(answer, cause, tmp_path):
    """A server that closes, speaks another protocol or stops in the middle is an error with the cause."""
    with _answering(answer, [], tmp_path) as cluster, pytest.raises(RaydebugError) as failure:
        gateway_client.request(cluster, "GET", "/pauses")
    assert failure.value.what == "the gateway of cluster 'here' does not answer"
    assert cause in failure.value.cause
    assert failure.value.exit_code == Exit.SESSION_LOST


def test_nobody_there(tmp_path):
    """A port without a listener is the same error."""
    (tmp_path / "token").write_text("t" * 64)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(RaydebugError, match="does not answer") as failure:
        gateway_client.request(_cluster(tmp_path, port), "GET", "/pauses")
    assert "Connection refused" in failure.value.cause


@pytest.mark.parametrize(
    ("exception", "shown"),
    [
        (None, ""),
        ("ZeroDivisionError: division by zero", "ZeroDivisionError: division by zero"),
        ("RuntimeError: CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA\n",
         "RuntimeError: CUDA error: out of memory ..."),
        ("ValueError: \n  two shapes\n  do not match", "ValueError: two shapes ..."),
        ("AssertionError: \n", "AssertionError: "),
    ],
)  # fmt: skip
def test_reason_of_a_crash_is_one_line(exception, shown):
    """A list shows an exception by its first line with text, and dots for the lines left out."""
    assert gateway_client.name_reason({"exception": exception}) == shown


def test_breakpoints_that_are_not_all_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the gateway sets fewer than it was given, those are removed again."""
    sent = []

    def request(_: Cluster, method: str, path: str, *more: object) -> dict[str, object]:
        sent.append(f"{method} {path}")
        return {"breaks": [{"id": "b1"}], "removed": True}

    monkeypatch.setattr(gateway_client, "request", request)
    with pytest.raises(RaydebugError) as raised:
        gateway_client.set_breaks(
            _cluster(tmp_path, 1), [BreakpointSpec(where=where) for where in ("a.py:1", "b.py:2")]
        )
    assert (raised.value.code, raised.value.cause) == ("gateway.breaks", "it was given 2 and answered with 1")
    assert sent == ["POST /breaks", "DELETE /breaks/b1"]


def test_more_processes_than_a_gateway_takes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question to more processes than a gateway takes in a list is sent in parts."""
    asked: list[list[str]] = []

    def request(cluster: object, method: str, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        asked.append(body["only"])
        return {"processes": [{"instance": name, "threads": []} for name in body["only"]], "frames": {}}

    monkeypatch.setattr(gateway_client, "request", request)
    names, cluster = [f"i{number}" for number in range(2 * MAX_ITEMS + 1)], cast(Any, None)
    for answers in (
        gateway_client.fetch_stacks(cluster, only=names, timeout_s=1.0),
        gateway_client.ask_processes(cluster, CENSUS, Nothing(), only=names, timeout_s=1.0),
    ):
        assert [answer["instance"] for answer in answers] == names
    assert [len(part) for part in asked] == 2 * [MAX_ITEMS, MAX_ITEMS, 1]
    gateway_client.fetch_stacks(cluster, timeout_s=1.0)
    assert asked[-1] == []
