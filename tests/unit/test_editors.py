"""launch.json, the adapter that an editor starts, and the port for a debugger without a token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import runs
from gateway_under_test import EDITOR, TOKEN, Editor, GatewayUnderTest, visit
from raydebug.cluster import port_owner
from raydebug.cluster.state import Cluster, Remote
from raydebug.console.session import GatewayAddress
from raydebug.dap import DapSession, RequestFailed
from raydebug.editors import adapter, listen
from raydebug.editors.jsonc import parse_jsonc
from raydebug.editors.vscode import MAX_FILE_BYTES, merge, write_configuration
from raydebug.errors import RaydebugError
from raydebug.protocol import wire

PAUSES = "def work():\n    secret = 41\n    breakpoint()\n    return secret\n\nprint('went on', work())\n"
OURS = {
    "name": "raydebug: default", "type": "debugpy", "request": "attach", "listen": {"host": "127.0.0.1", "port": 0},
    "debugAdapterPath": "/a/adapter.py", "debugAdapterPython": "/a/python", "cluster": "default", "target": "all",
    "justMyCode": False,
}  # fmt: skip


# launch.json

MINE = """\
// launch.json of a person
{
    "version": "0.2.0",
    /* two of my own */
    "configurations": [
        {"name": "a", "type": "node", "request": "launch"}, // "keep": this
        {
            "name": "b", // http://example.org/*not a comment*/
            "args": ["// no comment", "\\" ,]"],
        },
    ],
    "compounds": [],
}
"""


def test_launch_json_is_merged_and_every_other_byte_stays():
    """Our configuration is added after the user's; comments, trailing commas and order stay, byte for byte."""
    merged = merge(MINE, OURS)
    listed = parse_jsonc(merged).value["configurations"]
    assert [one["name"] for one in listed] == ["a", "b", "raydebug: default"]
    assert listed[2] == OURS
    start = merged.index(',\n        {\n          "name": "raydebug')
    end = merged.index("}", merged.index('"justMyCode"')) + 1
    assert merged[:start] + merged[end:] == MINE
    assert merge(merged, OURS) == merged, "a second time changes nothing"


def test_own_configuration_is_brought_up_to_date():
    """An existing configuration of ours is replaced; of it only the documented choices of the user stay."""
    hostile = {"preLaunchTask": "x", "python": "/x", "envFile": "x", "pathMappings": []}
    theirs = {**OURS, "debugAdapterPath": "/old.py", "justMyCode": True, "ranks": [0], **hostile}
    updated = merge(merge(MINE, theirs), OURS)
    assert parse_jsonc(updated).value["configurations"][2] == {**OURS, "justMyCode": True, "ranks": [0]}
    assert updated.startswith(MINE[: MINE.index("    ],")].rstrip().removesuffix(","))


@pytest.mark.parametrize(
    "text", ["", "  \n", "{}", '{"version": "0.2.0"}', '{"configurations": []}', '{"configurations": [\n  // x\n]}',
             "\ufeff{}", '{\r\n  "configurations": [\r\n    {"name": "a"}\r\n  ]\r\n}\r\n'], ids=repr
)  # fmt: skip
def test_launch_json_of_any_shape(text):
    """An empty file, an empty list, a byte-order mark and Windows line ends are all added to, and kept as they are."""
    merged = merge(text, OURS)
    assert parse_jsonc(merged.removeprefix("\ufeff")).value["configurations"][-1] == OURS
    assert merged.startswith("\ufeff") == text.startswith("\ufeff")
    assert merged.count("\r\n") == (merged.count("\n") if "\r" in text else 0)
    assert "// x" in merged or "// x" not in text


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('{\n  "configurations": [\n', "line 3: unexpected end"),
        ('{"a": 1 "b": 2}', "line 1: a comma or } is expected"),
        ("{'a': 1}", 'line 1: a value is expected, not "\'"'),
        ('{\n"a" 1}', 'line 2: a colon is expected after "a"'),
        ("{a: 1}", "line 1: a is not a value"),
        ("[]", "line 1: an object is expected: { ... }"),
        ('{\n"configurations": {}}', 'line 2: "configurations" is not a list'),
        ("{} {}", "line 1: text after the end of the document"),
        ("{} /* x", "line 1: an unterminated comment"),
        ("[" * 5000, "line 1: nested deeper than 100"),
        ("\0", "line 1: a value is expected, not '\\x00'"),
    ],
    ids=repr,
)
def test_bad_launch_json_is_left_alone(tmp_path, text, cause):
    """A file that is not a launch.json is not touched, and the error names the line."""
    path = tmp_path / ".vscode" / "launch.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(RaydebugError) as failure:
        write_configuration(OURS, tmp_path)
    assert str(failure.value) == (
        f"error: {path} was not changed\ncause: {cause}\n"
        "fix: correct it by hand; `raydebug vscode --print` shows the configuration to add"
    )
    assert path.read_text() == text


def test_launch_json_that_is_no_file(tmp_path):
    """A folder, binary data and a huge file in its place are refused; a link and the file's mode are kept."""
    path = tmp_path / ".vscode" / "launch.json"
    path.mkdir(parents=True)
    for data in (None, b"\xff\xfe\x00", b" " * (MAX_FILE_BYTES + 1)):
        if data is not None:
            path.rmdir() if path.is_dir() else None
            path.write_bytes(data)
        with pytest.raises(RaydebugError, match="was not changed"):
            write_configuration(OURS, tmp_path)
    path.unlink()
    real = tmp_path / "real.json"
    real.write_text("{}")
    real.chmod(0o640)
    path.symlink_to(real)
    assert write_configuration(OURS, tmp_path) == (path, True)
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert parse_jsonc(real.read_text()).value["configurations"] == [OURS]
    assert [p.name for p in path.parent.iterdir()] == ["launch.json"]


def inside(gateway: GatewayUnderTest) -> dict[str, str]:
    """Return the environment of a program that is inside the cluster of this gateway."""
    return {
        **os.environ,
        "RAYDEBUG_DASHBOARD": "http://127.0.0.1:1",
        "RAYDEBUG_GATEWAY_CLIENTS": f"127.0.0.1:{gateway.gateway_port}",
        "RAYDEBUG_TOKEN_PATH": str(gateway.token_file),
        "XDG_STATE_HOME": str(gateway.folder / "state"),
    }


def raydebug(gateway: GatewayUnderTest, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return runs.raydebug(*arguments, env=inside(gateway), cwd=cwd)


def test_vscode_writes_no_token(gateway, tmp_path):
    """`raydebug vscode` writes a configuration that names the cluster; it does not contain the token."""
    folder = tmp_path / "project"
    folder.mkdir()
    done = raydebug(gateway, "vscode", cwd=folder)
    path = folder / ".vscode" / "launch.json"
    assert (done.returncode, done.stdout) == (0, f"{path}\n"), done.stderr
    (configuration,) = json.loads(path.read_text())["configurations"]
    assert configuration["debugAdapterPath"] == adapter.__file__
    assert (configuration["cluster"], configuration["target"]) == ("default", "all")
    assert TOKEN not in path.read_text()
    printed = raydebug(gateway, "vscode", "--print", cwd=folder)
    assert json.loads(printed.stdout) == configuration
    again = raydebug(gateway, "vscode", cwd=folder)
    assert "'raydebug: default' is there already" in again.stderr


# The adapter


@contextlib.asynccontextmanager
async def started_adapter(gateway: GatewayUnderTest, argv: list[str], *, env: dict[str, str] | None = None):
    """Start an adapter as an editor does, and yield a session on its stdin and stdout."""
    process = await asyncio.create_subprocess_exec(
        *argv, env=env or inside(gateway), stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**20
    )
    session = Editor(process.stdout, process.stdin)
    try:
        yield process, session
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


ADAPTERS = {
    "by the verb": [sys.executable, "-m", "raydebug", "adapter"],
    "by its path": [sys.executable, adapter.__file__, "--log-dir", "/nowhere"],
}


@pytest.mark.parametrize("argv", ADAPTERS.values(), ids=ADAPTERS.keys())
def test_adapter_knows_the_token(gateway, argv):
    """An editor's adapter reaches every pause without a token in the configuration, and the editor receives none."""
    gateway.start(PAUSES)
    gateway.pauses()

    async def look():
        async with started_adapter(gateway, argv) as (process, parent):
            await parent.request("initialize", EDITOR)
            configuration = {"cluster": "default", "target": "all", "listen": {"port": 0}, "debugAdapterPath": "/a.py"}
            await parent.request("attach", configuration)
            known = (await parent.next_event("capabilities", timeout_s=5))["body"]["capabilities"]
            assert known["supportsLogPoints"]
            await parent.next_event("initialized", timeout_s=5)
            await parent.request("configurationDone")
            child = await parent.next_child()
            assert "token" not in child
            assert (child["target"], child["listen"], child["debugAdapterPath"]) == ("1", {"port": 0}, "/a.py")
            async with started_adapter(gateway, argv) as (_, session):
                await session.request("initialize", EDITOR)
                await session.request("attach", child)
                await session.request("configurationDone")
                stopped = (await session.next_event("stopped", timeout_s=5))["body"]
                frames = (await session.request("stackTrace", {"threadId": stopped["threadId"]}))["stackFrames"]
                assert frames[0]["name"] == "work"
                await session.request("disconnect")
            await parent.request("disconnect")
            assert await asyncio.wait_for(process.wait(), 5) == 0

    visit(gateway, look)
    assert len(gateway.pauses()) == 1


def test_adapter_without_a_cluster(gateway, tmp_path):
    """S10: an editor gets the reason for a missing session: no cluster, no gateway, another cluster's token."""
    other = tmp_path / "other"
    other.write_text("o" * 64)
    alone = {k: v for k, v in inside(gateway).items() if not k.startswith("RAYDEBUG_")}
    alone["DOCKER_HOST"] = "unix:///nowhere"  # containers of this machine are clusters too
    cases = [
        (alone, {}, "there is no cluster 'default'"),
        (alone, {"cluster": "../x"}, "cannot be a cluster's name"),
        ({**inside(gateway), "RAYDEBUG_GATEWAY_CLIENTS": "127.0.0.1:1"}, {}, "the gateway does not answer"),
        ({**inside(gateway), "RAYDEBUG_TOKEN_PATH": "/nowhere"}, {}, "the token of cluster 'default' cannot be read"),
        ({**inside(gateway), "RAYDEBUG_TOKEN_PATH": str(other)}, {}, "the token is not this cluster's"),
    ]

    async def look():
        for env, arguments, said in cases:
            async with started_adapter(gateway, ADAPTERS["by the verb"], env=env) as (_, session):
                await session.request("initialize")
                with pytest.raises(RequestFailed, match=said):
                    await session.request("attach", {"target": "all", **arguments})

    visit(gateway, look, limit_s=50)


def test_adapter_tells_that_the_gateway_is_gone(gateway):
    """When the gateway dies, the editor gets an event at once, and its adapter ends."""

    async def look():
        async with started_adapter(gateway, ADAPTERS["by the verb"]) as (process, session):
            await session.request("initialize", EDITOR)
            await session.request("attach", {"target": "all"})
            gateway.process.kill()
            await session.next_event("terminated", timeout_s=5)
            assert await asyncio.wait_for(process.wait(), 5) == 0

    visit(gateway, look)


# The port for one client


@contextlib.contextmanager
def listening(gateway: GatewayUnderTest, target: str):
    """Run `raydebug listen` and yield it with its port."""
    argv = [sys.executable, "-m", "raydebug", "listen", target]
    process = subprocess.Popen(argv, env=inside(gateway), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        yield process, int(line.rpartition(":")[2] or 0)
    finally:
        process.kill()
        process.communicate()


async def attach_plainly(port: int) -> DapSession:
    session = await DapSession.connect("127.0.0.1", port)
    await session.request("initialize", {"clientName": "plain"})
    await session.request("attach", {"justMyCode": False})
    await session.request("configurationDone")
    return session


def test_listen_needs_no_token_of_its_one_client(gateway):
    """A client without a token debugs the pause; port scans do not count as its client, a second client is refused."""
    program = gateway.start(PAUSES)
    (pause,) = gateway.pauses()
    with listening(gateway, pause["id"]) as (process, port):

        async def look():
            for _ in range(3):
                socket.create_connection(("127.0.0.1", port)).close()
            session = await attach_plainly(port)
            stopped = (await session.next_event("stopped", timeout_s=5))["body"]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(wire.encode(wire.request(1, "initialize")))
            assert b"another client is attached" in await reader.read()
            await session.request("continue", {"threadId": stopped["threadId"]})
            await session.next_event("terminated", timeout_s=5)
            await session.close()

        visit(gateway, look)
        _, said = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "a second client was refused" in said
    assert program.communicate(timeout=10)[0] == "went on 41\n"


HELLO = wire.encode(wire.request(1, "initialize", {"clientName": "a page"}))
STRANGERS = {
    "a web page": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a web page that sends DAP": b"POST /a:b HTTP/1.1\r\nHost: localhost\r\n\r\n" + HELLO,
    "TLS": bytes.fromhex("16030100c8010000c40303"),
    "one byte": b"x",
    "half a header": b"Content-Le",
    "attach before initialize": wire.encode(wire.request(1, "attach")) + HELLO,
    "an event": wire.encode(wire.event(1, "initialize")),
    "no JSON": b"Content-Length: 3\r\n\r\n{{{",
}


def test_listen_goes_on_after_what_is_no_debugger(gateway):
    """L1: HTTP, TLS, single bytes and other requests than `initialize` are dropped; a client may still come."""
    gateway.start(PAUSES)
    (pause,) = gateway.pauses()
    with listening(gateway, pause["id"]) as (process, port):
        for data in STRANGERS.values():
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(100) == b""

        async def look():
            session = await attach_plainly(port)
            await session.next_event("stopped", timeout_s=5)
            await session.close()

        visit(gateway, look)
        assert "a second client" not in process.communicate(timeout=10)[1]


def test_listen_ends_with_its_client_and_the_pause_stays(gateway):
    """After its client has left, the port is closed and the pause waits for the next one."""
    gateway.start(PAUSES)
    (pause,) = gateway.pauses()
    with listening(gateway, pause["id"]) as (process, port):

        async def look():
            session = await attach_plainly(port)
            await session.next_event("stopped", timeout_s=5)
            await session.close()

        visit(gateway, look)
        assert "stays paused" in process.communicate(timeout=10)[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    assert [p["id"] for p in gateway.pauses()] == [pause["id"]]


def test_listen_ends_with_the_pause(gateway):
    """When the pause is resumed elsewhere before a client connects, the port is closed, with exit code 4."""
    gateway.start(PAUSES)
    (pause,) = gateway.pauses()
    with listening(gateway, pause["id"]) as (process, _):

        async def go_on():
            session, stopped = await gateway.attach(pause["id"])
            await session.request("continue", {"threadId": stopped["threadId"]})

        visit(gateway, go_on)
        assert f"pause {pause['id']} has ended; nobody attached" in process.communicate(timeout=10)[1]
        assert process.returncode == 4


def test_listen_ends_on_ctrl_c(gateway):
    """Ctrl-C closes the port with exit code 130; the pause stays."""
    gateway.start(PAUSES)
    (pause,) = gateway.pauses()
    with listening(gateway, pause["id"]) as (process, _):
        assert "Ctrl-C ends it" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
        assert process.returncode == 130
    assert len(gateway.pauses()) == 1


def test_listen_refusals(gateway):
    """An unknown pause, `all`, and a taken port are errors of three lines."""
    unknown = raydebug(gateway, "listen", "99")
    look = "fix: list the pauses with `raydebug paused`\n"
    said = "error: the pause cannot be attached\ncause: there is no pause '99'\n" + look
    assert (unknown.returncode, unknown.stderr) == (1, said)
    assert raydebug(gateway, "listen", "all").returncode == 2
    taken = raydebug(gateway, "listen", "next", "--port", str(gateway.gateway_port))
    assert taken.returncode == 3
    assert taken.stderr.startswith(f"error: port {gateway.gateway_port} cannot be listened on\ncause: ")


def test_s10_listen_with_another_clusters_token(gateway):
    """S10: another cluster's token opens nothing, also through `listen`."""
    gateway.start(PAUSES)
    (pause,) = gateway.pauses()

    async def look():
        wrong = GatewayAddress("127.0.0.1", gateway.gateway_port, "o" * 64)
        listener = listen.Listener(wrong, pause["id"], say=lambda _: None)
        port = await listener.open(0)
        running = asyncio.ensure_future(listener.run())
        session = await DapSession.connect("127.0.0.1", port)
        await session.request("initialize")
        with pytest.raises(RequestFailed, match="the token is not this cluster's"):
            await session.request("attach", {"token": TOKEN, "target": pause["id"]})
        await session.close()
        assert await asyncio.wait_for(running, 5)

    visit(gateway, look)
    assert gateway.pauses()[0]["state"] == "waiting"


def test_listen_names_the_copies_that_there_are_now(gateway):
    """A client that waits has the names of a folder that was copied in the meantime."""
    copies = []

    async def look():
        address = GatewayAddress("127.0.0.1", gateway.gateway_port, TOKEN, copies=lambda: [*copies])
        listener = listen.Listener(address, "next", say=lambda _: None)
        port = await listener.open(0)
        running = asyncio.ensure_future(listener.run())
        session = await DapSession.connect("127.0.0.1", port)
        await session.request("initialize")
        attaching = asyncio.ensure_future(session.request("attach", timeout_s=30))
        await asyncio.sleep(0.2)
        copies.append({"localRoot": "/my/project", "remoteRoot": str(gateway.folder)})
        gateway.start(PAUSES)
        await attaching
        asked = {"source": {"path": "/my/project/program0.py"}, "breakpoints": [{"line": 3}]}
        (one,) = (await session.request("setBreakpoints", asked))["breakpoints"]
        assert (one["verified"], one["source"]["path"]) == (True, "/my/project/program0.py")
        await session.close()
        assert await asyncio.wait_for(running, 5)

    visit(gateway, look)


def test_attach_next_names_the_copies_that_there_are_now(gateway):
    """A terminal that waits has the names of a folder that was copied in the meantime."""
    copies = []

    async def look():
        address = GatewayAddress("127.0.0.1", gateway.gateway_port, TOKEN, copies=lambda: [*copies])
        opening = asyncio.ensure_future(address.open("next", steal=False, on_output=lambda _: None))
        await asyncio.sleep(0.2)
        copies.append({"localRoot": "/my/project", "remoteRoot": str(gateway.folder)})
        gateway.start(PAUSES)
        session = await opening
        assert session.named_here(f"{gateway.folder}/a.py") == "/my/project/a.py"
        frames = (await session.request("stackTrace", {"threadId": session.stop["threadId"]}))["stackFrames"]
        assert frames[0]["source"]["path"] == "/my/project/program0.py"
        await session.leave()

    visit(gateway, look)


KNOCK = "import socket; s = socket.create_connection(('127.0.0.1', {})); s.send(b'x'); print(s.recv(200).decode())"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a program of another user")
def test_listen_turns_other_users_away(gateway):
    """A process of another user of this machine is refused before a byte of it is forwarded."""
    gateway.start(PAUSES)
    (pause,) = gateway.pauses()
    with listening(gateway, pause["id"]) as (process, port):
        knock = ["/usr/bin/env", "python3", "-c", KNOCK.format(port)]
        done = subprocess.run(knock, user=65534, capture_output=True, text=True, timeout=20, cwd="/")
        assert done.stdout.strip() == "raydebug listen: this port is for the user who opened it", done.stderr
        process.send_signal(signal.SIGINT)
        assert "a connection of another user was refused" in process.communicate(timeout=10)[1]
    assert gateway.pauses()[0]["state"] == "waiting"


def test_whose_a_connection_is():
    """The user at the other end of a loopback connection is found; of a closed connection, none is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        end, peer = server.accept()
        with end:
            assert port_owner.uid_of(peer, end.getsockname()) == os.getuid()
            client.close()
            assert port_owner.uid_of(peer, end.getsockname()) is None


def test_record_with_a_wrong_port(tmp_path, monkeypatch):
    """A port that is no number is told as that: the token is not to blame."""
    (tmp_path / "token").write_text("t")
    remote = Remote("http://127.0.0.1:1", "127.0.0.1:x", str(tmp_path / "token"))
    made = Cluster("here", "1", "joined", tmp_path, tmp_path, "", {}, 1, 0, "breakpoint", "core", 0.0, remote=remote)
    monkeypatch.setattr(adapter, "load_cluster", lambda _: made)
    with pytest.raises(RaydebugError) as failure:
        adapter.find_address({})
    assert (failure.value.code, "token" in str(failure.value)) == ("cluster.bad-record", False)
