"""HTTP requests that the gateway refuses with a 4xx: foreign hosts, malformed requests and bodies."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from gateway_under_test import TOKEN, GatewayUnderTest, open_gateway
from raydebug.gateway import http
from raydebug.gateway.client_requests import Refused

AUTHORIZED = f"Authorization: Bearer {TOKEN}\r\n"


def talk(gateway: GatewayUnderTest, request: str | bytes) -> tuple[int, str]:
    """Send bytes, and return the status and the body of the response."""
    with socket.create_connection((gateway.gateway_host, gateway.gateway_port), timeout=10) as connection:
        connection.sendall(request if isinstance(request, bytes) else request.encode())
        said = connection.makefile("rb").read().decode()
    head, _, body = said.partition("\r\n\r\n")
    return int(head.split()[1]), body


def ask(
    gateway: GatewayUnderTest, method: str, path: str, body: str = "", *, host: str = "localhost", token: bool = True
) -> int:
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{AUTHORIZED if token else ''}"
    return talk(gateway, f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}")[0]


@pytest.fixture(scope="module")
def named(tmp_path_factory) -> GatewayUnderTest:
    """A gateway with the allowed host name `gateway`."""
    with open_gateway(tmp_path_factory.mktemp("named"), "--allowed-hosts", "gateway,Other.example") as gateway:
        yield gateway


OWN = ("127.0.0.1", "localhost", "[::1]", "127.0.0.2", "gateway", "GATEWAY", "other.example")
FOREIGN = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.9", "0.0.0.0", "", "gateway.x")


@pytest.mark.parametrize("port", ["", ":5678"])
def test_s3_host(named, port):
    """S3: a Host that is neither loopback nor configured is refused with 421, whatever the token."""
    for host in OWN:
        assert ask(named, "GET", "/pauses", host=host + port) == 200, host
    assert ask(named, "GET", "/pauses", host="gateway" + port, token=False) == 401
    for host in FOREIGN:
        for method, path in (("GET", "/health"), ("GET", "/pauses"), ("POST", "/breaks"), ("DELETE", "/breaks/b1")):
            assert ask(named, method, path, host=host + port) == 421, host
            assert ask(named, method, path, host=host + port, token=False) == 421, host


def test_s3_host_of_another_gateway(gateway):
    """S3: without a configured name only loopback is accepted."""
    assert ask(gateway, "GET", "/health", host="gateway") == 421
    assert ask(gateway, "GET", "/health", host="localhost:1", token=False) == 200


def test_what_is_answered(gateway):
    """The list of pauses needs the token, /health does not; requests from web pages are refused."""
    assert talk(gateway, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") == (200, '{"status": "ok"}')
    get = "GET /pauses HTTP/1.1\r\nHost: localhost\r\n"
    status, body = talk(gateway, f"{get}{AUTHORIZED}\r\n")
    assert (status, json.loads(body)) == (200, {"version": 1, "pauses": []})
    assert talk(gateway, f"{get}{AUTHORIZED}Origin: http://evil.example\r\n\r\n")[0] == 403
    assert talk(gateway, f"{get}Authorization: Bearer wrong\r\n\r\n")[0] == 401
    assert ask(gateway, "GET", "/nothing") == 404


DEEP = "[" * 100_000 + "]" * 100_000
BODIES = [
    "",
    "{",
    "[]",
    "7",
    "null",
    DEEP,
    '{"a":' * 50_000 + "1" + "}" * 50_000,
    '{"breaks": 3}',
    '{"breaks": {}}',
    '{"breaks": [{}]}',
    '{"breaks": [{"where": 3}]}',
    '{"breaks": [], "job": 5}',
    '{"breaks": [{"where": "x", "source": "y", "line": 1e400}]}',
    '{"breaks": [{"where": "x", "source": "y", "policy": {"every": "x"}}]}',
    f'{{"breaks": [{{"where": "{"x" * 70_000}", "source": "y"}}]}}',
    '{"target": {"a": 1}}',
    '{"target": "pid:1", "timeout_s": "long"}',
    '{"target": "pid:1", "timeout_s": 1' + "0" * 400 + "}",
    '{"target": "pid:1", "timeout_s": NaN}',
    '{"target": null}',
]


def test_s3_malformed_bodies(named):
    """S3: a body that is too deep, not JSON, no object or has a wrong field gets a 4xx; the log has no traceback."""
    for path in ("/breaks", "/pause"):
        for body in BODIES:
            assert 400 <= ask(named, "POST", path, body) < 500, (path, body[:60])
    assert 400 <= talk(named, b"POST /breaks HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n")[0] < 500
    assert 400 <= talk(named, b"GET /pauses HTTP/1.1\r\n\r\n")[0] < 500
    assert 400 <= talk(named, b"GET \xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] < 500
    assert 400 <= talk(named, b"POST /pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n")[0] < 500
    assert "Traceback" not in named.log
    answers = [
        talk(named, f"{of} HTTP/1.1\r\nHost: localhost\r\n{AUTHORIZED}\r\n")[1]
        for of in ("POST /breaks", "GET /breaks")
    ]
    assert json.loads(answers[0])["error"]["code"] == "http.malformed"
    assert json.loads(answers[1])["breaks"] == []


@pytest.mark.parametrize("path", ["/health", "/pauses", "/nothing"])
def test_s3_head(named, path):
    """S3: HEAD is refused with a 4xx without a body, and without a traceback in the log."""
    for authorized in (AUTHORIZED, ""):
        status, body = talk(named, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n{authorized}\r\n")
        assert 400 <= status < 500
        assert body == ""
    assert "Traceback" not in named.log


def test_status(named):
    """GET /status lists the gateway's own tasks, and where processes reach it; without the token it is refused."""
    status, body = talk(named, f"GET /status HTTP/1.1\r\nHost: localhost\r\n{AUTHORIZED}\r\n")
    tasks = [{"name": "expiry", "state": "running", "restarts": 0, "reason": None}]
    known = json.loads(body)
    assert known.pop("limits").keys() == {"processes", "clients", "files"}
    assert (status, known) == (200, {"version": 1, "tasks": tasks, "dial": f"127.0.0.1:{named.dial_port}"})
    assert ask(named, "GET", "/status", token=False) == 401


async def test_answer_that_fails_leaves_no_task():
    """An answer that is refused before the client leaves, and a client that leaves before, end both waits."""

    async def refuse() -> Any:
        raise Refused("x.y", "why", "fix")

    before, silent, gone = asyncio.all_tasks(), asyncio.StreamReader(), asyncio.StreamReader()
    gone.feed_eof()
    with pytest.raises(Refused):
        await http._unless_gone(refuse(), silent)
    with pytest.raises(ConnectionResetError):
        await http._unless_gone(asyncio.sleep(60), gone)
    assert asyncio.all_tasks() == before
