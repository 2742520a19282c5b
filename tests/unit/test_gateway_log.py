"""The gateway's log and audit log: no peer can forge lines or fill them (S31)."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway_under_test import open_gateway, visit
from raydebug.cluster import audit_log
from raydebug.dap import RequestFailed
from raydebug.gateway import logs
from raydebug.protocol import wire

FORGED = 'x\'\n2026-11-22T00:00:00.000Z INFO audit: attach pause=1 client="FORGED"\x1b[2J\u202e\u200f\x9b\u2028\ud800'


def send(port: int, data: bytes) -> bytes:
    """Send bytes, and return the bytes received until the connection was closed."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(20)
        said = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
            while more := connection.recv(65536):
                said += more
        return said


def test_s31_forged_line_at_the_dial_port(gateway):
    """S31: an event name from a peer without the token cannot begin a log line; its control characters are escaped."""
    send(gateway.dial_port, wire.encode(wire.event(1, FORGED)))
    (line,) = [line for line in gateway.log.splitlines() if "FORGED" in line]
    assert " WARNING dial-in from 127.0.0.1 refused: " in line
    assert gateway.log.isascii()
    assert all(c.isprintable() for c in gateway.log.replace("\n", ""))


@pytest.mark.parametrize("text", [FORGED, "\ud800", "a\rb", "a\x85b\u2029c"])
def test_s31_record_is_one_line(text):
    """S31: a record is one line of printable text; the further lines of a traceback are indented."""
    try:
        raise ValueError(text)
    except ValueError as error:
        failed = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("raydebug.gateway", logging.INFO, "", 0, "said %s", (text,), None)
    (line,) = logs.OneLine().format(record).splitlines()
    assert line.encode()
    record.exc_info = failed
    _, *further = logs.OneLine().format(record).splitlines()
    assert all(line.startswith("    ") for line in further)


def test_s31_long_record_is_cut():
    """S31: a record is cut at 4,096 characters, with the number of missing ones."""
    record = logging.LogRecord("raydebug.gateway", logging.INFO, "", 0, "x" * 5000, (), None)
    assert logs.OneLine().format(record).endswith("x... (904 characters more)")


def test_s31_flood(gateway):
    """S31: the lines of a peer without the token are limited; the next other line has the number of dropped ones."""
    gateway.start("breakpoint()")
    (pause,) = gateway.pauses()
    for _ in range(500):
        send(gateway.dial_port, wire.encode(wire.event(1, "x" * 900)))
    visit(gateway, lambda: gateway.attach(pause["id"]))
    lines = gateway.log.splitlines()
    assert sum("x" * 900 in line for line in lines) < 100
    (dropped,) = [line for line in lines if "audit: dropped lines=" in line]
    assert int(dropped.partition("lines=")[2].split()[0]) > 400
    assert "audit: attach pause=" in lines[lines.index(dropped) + 1]


def test_s6_wrong_token_of_any_bytes(gateway):
    """S6: a wrong token of any bytes has the same delay and leaves one audit line without a traceback."""
    tokens = ["\ud800", "\x00", "\u202e" * 64, "\udcff\ud800", "\U0010ffff", "x" * 64, "é", 5, ["a"], "\x1b[2J"]

    async def guess(token: object) -> float:
        session = await gateway.connect()
        begin = time.monotonic()
        with pytest.raises(RequestFailed, match="the token is not this cluster's"):
            await session.request("attach", {"token": token, "target": "next"})
        await session.close()
        return time.monotonic() - begin

    async def look() -> None:
        for token in tokens:
            await guess(token)
        assert await guess("\ud800") >= 1, "the eleventh and every further one waits"

    visit(gateway, look)
    assert gateway.log.count("audit: refuse reason=wrong token") == len(tokens) + 1
    assert "Traceback" not in gateway.log
    with_lone = b"GET /pauses HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \xed\xa0\x80\r\n\r\n"
    assert b" 401 " in send(gateway.gateway_port, with_lone)
    assert gateway.log.count("audit: refuse reason=wrong token") == len(tokens) + 2


ROTATES = """
import logging, sys
from pathlib import Path
from raydebug.gateway import logs
logs.LOG_BYTES = 2000
logs.set_up(Path(sys.argv[1]))
for number in range(200):
    logging.getLogger("raydebug.gateway").warning("line %d", number)
print("the interpreter's own words", file=sys.stderr)
"""


def test_s31_log_file_is_rotated(tmp_path):
    """S31: gateway.log is rotated to gateway.log.1 and .2; only the owner can read them."""
    done = subprocess.run(
        [sys.executable, "-c", ROTATES, str(tmp_path / "gateway.log")], capture_output=True, check=True
    )
    files = sorted(tmp_path.iterdir())
    assert [one.name for one in files] == ["gateway.log", "gateway.log.1", "gateway.log.2"]
    assert all(one.stat().st_size <= 2100 and one.stat().st_mode & 0o777 == 0o600 for one in files)
    assert "line 199" in files[0].read_text()
    assert "the interpreter's own words" in files[0].read_text()
    assert done.stderr == b""


def test_s31_audit_lines_outlive_the_gateway(tmp_path, monkeypatch):
    """S31: audit lines have their own file, private to its owner; later gateways append; old files are deleted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = audit_log.file_of("mine")
    for _ in range(2):
        with open_gateway(tmp_path, "--audit-file", str(path)) as gateway:
            gateway.start("breakpoint()")
            (pause,) = gateway.pauses()
            visit(gateway, lambda gateway=gateway, pause=pause: gateway.attach(pause["id"]))
            wait_for_line(path, "detach")
    lines = [audit_log.describe(line) for line in audit_log.read("mine")]
    assert [line["event"] for line in lines] == ["attach", "detach"] * 2
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    other = audit_log.file_of("other")
    other.write_text("old\n")
    os.utime(other, (0, time.time() - 31 * 24 * 3600))
    audit_log.prune()
    assert (path.exists(), other.exists()) == (True, False)


def wait_for_line(path: Path, event: str) -> None:
    deadline = time.monotonic() + 10
    while f"audit: {event}" not in path.read_text().splitlines()[-1] and time.monotonic() < deadline:
        time.sleep(0.05)


def test_s31_audit_lines_of_containers(tmp_path, monkeypatch):
    """S31: the audit lines of a container's log are kept once, without lines that only look like audit lines."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    line = '2026-11-22T18:00:00.123Z INFO audit: attach pause=1 process="pid 7" client="c"@10.0.0.1:5'
    for _ in range(2):
        audit_log.keep("mine", [line, f"    {line}", "2026-11-22T18:00:00.123Z INFO process dialled in: pid 7"])
    assert audit_log.read("mine") == [line]
