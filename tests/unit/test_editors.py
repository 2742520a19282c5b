"""launch.json, and the adapter that an editor starts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import runs
from gateway_under_test import EDITOR, PAUSES, TOKEN, Editor, GatewayUnderTest, visit
from raydebug.cluster import port_owner
from raydebug.cluster.state import Cluster, Remote
from raydebug.console.session import GatewayAddress
from raydebug.dap import RequestFailed
from raydebug.editors import adapter, vscode
from raydebug.editors.vscode import write_configuration
from raydebug.errors import RaydebugError

OURS = {
    "name": "raydebug: default", "type": "debugpy", "request": "attach", "listen": {"host": "127.0.0.1", "port": 0},
    "debugAdapterPath": "/a/adapter.py", "debugAdapterPython": "/a/python", "cluster": "default", "target": "all",
    "justMyCode": False,
}  # fmt: skip


def test_launch_json_that_cannot_be_written(tmp_path):
    """A folder that is a link out of the project is not written to; any file that is there stays as it is."""
    outside, project = tmp_path / "outside", tmp_path / "project"
    outside.mkdir()
    project.mkdir()
    (project / ".vscode").symlink_to(outside)
    with pytest.raises(RaydebugError) as failure:
        write_configuration(OURS, project)
    path = project / ".vscode" / "launch.json"
    assert str(failure.value) == (
        f"error: {path} was not written\ncause: its folder is a link out of this folder, to {outside}\n"
        'fix: paste what `raydebug vscode --print` shows into its list "configurations"'
    )
    path.symlink_to("/nowhere")
    assert write_configuration(OURS, project) is None
    assert [*outside.iterdir()] == [outside / "launch.json"]


def raydebug(gateway: GatewayUnderTest, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return runs.raydebug(*arguments, env=gateway.client_env, cwd=cwd)


def test_vscode_writes_no_token(gateway, tmp_path):
    """`raydebug vscode` writes a configuration that names the cluster, without the token; it changes no file."""
    folder = tmp_path / "project"
    folder.mkdir()
    done = raydebug(gateway, "vscode", cwd=folder)
    path = folder / ".vscode" / "launch.json"
    assert (done.returncode, done.stdout) == (0, f"{path}\n"), done.stderr
    (configuration,) = json.loads(path.read_text())["configurations"]
    assert configuration["debugAdapterPath"] == adapter.__file__
    assert (configuration["cluster"], configuration["target"]) == ("default", "all")
    text = path.read_text()
    assert TOKEN not in text
    printed = raydebug(gateway, "vscode", "--print", cwd=folder)
    assert json.loads(printed.stdout) == configuration
    again = raydebug(gateway, "vscode", cwd=folder)
    assert (json.loads(again.stdout), path.read_text()) == (configuration, text)
    assert again.stderr == '.vscode/launch.json exists: paste this into its list "configurations"\n'


# The adapter


@pytest.mark.parametrize("how", ["</dev/null", "<&-", "< FILE", "> FILE </dev/zero", ">&-"])
def test_adapter_without_pipes(tmp_path: Path, how: str) -> None:
    """An adapter that no editor has started says so in three lines, whatever its input and output are."""
    (tmp_path / "FILE").write_text("x")
    line = f"{sys.executable} -P -m raydebug adapter {how}"
    whole = f"{line} | cat" if "<" in how else f"cat | {line} | cat"
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 30}
    done = subprocess.run(["bash", "-c", whole], cwd=tmp_path, check=False, **options)
    assert "is no pipe" in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) == 3


@contextlib.asynccontextmanager
async def started_adapter(gateway: GatewayUnderTest, argv: list[str], *, env: dict[str, str] | None = None):
    """Start an adapter as an editor does, and yield a session on its stdin and stdout."""
    process = await asyncio.create_subprocess_exec(
        *argv, env=env or gateway.client_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**20
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
            known = (await parent.next_event("capabilities", timeout_s=20))["body"]["capabilities"]
            assert known["supportsLogPoints"]
            await parent.next_event("initialized", timeout_s=20)
            await parent.request("configurationDone")
            child = await parent.next_child()
            assert "token" not in child
            assert (child["target"], child["listen"], child["debugAdapterPath"]) == ("1", {"port": 0}, "/a.py")
            async with started_adapter(gateway, argv) as (_, session):
                await session.request("initialize", EDITOR)
                await session.request("attach", child)
                await session.request("configurationDone")
                stopped = (await session.next_event("stopped", timeout_s=20))["body"]
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
    there = gateway.client_env
    alone = {k: v for k, v in there.items() if not k.startswith("RAYDEBUG_")}
    alone["DOCKER_HOST"] = "unix:///nowhere"  # containers of this machine are clusters too
    cases = [
        (alone, {}, "there is no cluster 'default'"),
        (alone, {"cluster": "../x"}, "cannot be a cluster's name"),
        ({**there, "RAYDEBUG_GATEWAY_CLIENTS": "127.0.0.1:1"}, {}, "the gateway does not answer"),
        (
            {**gateway.client_env, "RAYDEBUG_TOKEN_PATH": "/nowhere"},
            {},
            "the token of cluster 'default' cannot be read",
        ),
        ({**there, "RAYDEBUG_TOKEN_PATH": str(other)}, {}, "the token is not this cluster's"),
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
            await session.next_event("terminated", timeout_s=20)
            assert await asyncio.wait_for(process.wait(), 5) == 0

    visit(gateway, look)


def test_attach_next_names_the_copies_that_there_are_now(gateway):
    """`attach next` waits for a pause, and has the names of a folder that was copied in the meantime."""
    copies = []

    async def look():
        address = GatewayAddress("127.0.0.1", gateway.gateway_port, TOKEN, copies=lambda: [*copies])
        opening = asyncio.ensure_future(address.open("next", steal=False, on_output=lambda _: None))
        await asyncio.sleep(0.2)
        assert not opening.done(), "there is no pause yet"
        copies.append({"localRoot": "/my/project", "remoteRoot": str(gateway.folder)})
        gateway.start(PAUSES)
        session = await opening
        assert session.named_here(f"{gateway.folder}/a.py") == "/my/project/a.py"
        frames = (await session.request("stackTrace", {"threadId": session.stop["threadId"]}))["stackFrames"]
        assert frames[0]["source"]["path"] == "/my/project/program0.py"
        await session.leave()

    visit(gateway, look)


def test_a_cluster_that_does_not_run_yet(tmp_path, monkeypatch):
    """The configuration of a cluster can be written before the cluster is started."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = vscode.configuration_for("later", tmp_path)
    assert (made["cluster"], made["target"], "pathMappings" in made) == ("later", "all", False)


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
