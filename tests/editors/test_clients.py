"""Unmodified clients of other projects against the gateway: VS Code's, debugpy's, Neovim's."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway_under_test import TOKEN
from raydebug.editors import adapter
from snapshot_files import crashed_reward, write

TESTSUPPORT = "@vscode/debugadapter-testsupport@1.68.0"  # MIT; Microsoft, in VS Code's own adapter tests
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> str:
    """VS Code's protocol client, from npm."""
    if shutil.which("npm") is None:
        pytest.skip(f"there is no npm here to install {TESTSUPPORT} with")
    folder = tmp_path_factory.mktemp("npm")
    argv = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), TESTSUPPORT]
    subprocess.run(argv, check=True, timeout=120, capture_output=True)
    return str(folder / "node_modules")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ["connect", "adapter"])
def test_vscodes_client(training, node_modules, way):
    """VS Code's client opens three pauses by one attach, looks, steps, leaves, and comes back to its frame."""
    path = str(training.folder / "program0.py")
    arguments = [str(training.gateway_port), TOKEN] if way == "connect" else [sys.executable, adapter.__file__]
    argv = ["node", str(HERE / "vscode_client.js"), node_modules, *arguments, path]
    done = subprocess.run(argv, env=training.client_env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert [(p["line"], p["state"]) for p in training.pauses(3)] == [(12, "waiting"), (11, "waiting"), (5, "waiting")]


@pytest.mark.timeout(120)
def test_vscodes_client_opens_a_crash(tmp_path, node_modules):
    """VS Code's client opens a snapshot: frames, source, values as a tree; code is refused and nothing runs."""
    path = write(tmp_path, crashed_reward())
    argv = ["node", str(HERE / "vscode_snapshot.js"), node_modules, sys.executable, adapter.__file__, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_debugpys_own_messages(training):
    """debugpy's own message library attaches through the gateway, reads a value and resumes the program."""
    import socket

    from debugpy.common import messaging

    events: queue.Queue[messaging.Event] = queue.Queue()

    class Handlers:
        def event(self, event: messaging.Event) -> None:
            events.put(event)

        def disconnect(self) -> None:
            pass

    def wait_for(name: str) -> messaging.Event:
        while True:
            event = events.get(timeout=10)
            if event.event == name:
                return event

    connection = socket.create_connection(("127.0.0.1", training.gateway_port))
    channel = messaging.JsonMessageChannel(messaging.JsonIOStream.from_socket(connection), Handlers())
    channel.start()
    try:
        capabilities = channel.request("initialize", {"clientID": "x", "clientName": "debugpy's", "adapterID": "y"})
        assert capabilities("supportsConfigurationDoneRequest", bool)
        with pytest.raises(messaging.MessageHandlingError, match="the token is not this cluster's"):
            channel.request("attach", {"token": "x" * 64, "target": "1"})
        channel.request("attach", {"token": TOKEN, "target": "2", "justMyCode": False})
        wait_for("initialized")
        channel.request("setExceptionBreakpoints", {"filters": []})
        channel.request("configurationDone")
        thread = wait_for("stopped").body("threadId", int)
        frames = channel.request("stackTrace", {"threadId": thread})("stackFrames", list)
        assert [frame["name"] for frame in frames] == ["work", "<module>"]
        answer = channel.request("evaluate", {"expression": "secret", "frameId": frames[0]["id"]})
        assert answer("result", str) == "42"
        channel.request("continue", {"threadId": thread})
        wait_for("terminated")
    finally:
        channel.close()
    assert training.programs[1].communicate(timeout=10)[0] == "went on 30\n"
    assert len(training.pauses(2)) == 2


@pytest.mark.timeout(90)
def test_neovim(training):
    """nvim-dap in a headless Neovim opens three pauses by one attach, reads a value and steps."""
    nvim, plugin = shutil.which(os.environ.get("NVIM", "nvim")), os.environ.get("NVIM_DAP", "")
    if nvim is None or not (Path(plugin) / "lua" / "dap.lua").is_file():
        pytest.skip("needs Neovim 0.10 or newer (on the PATH, or NVIM=) and a checkout of nvim-dap (NVIM_DAP=)")
    argv = [nvim, "--headless", "-u", "NONE", "--cmd", f"set rtp+={plugin}", "-l", str(HERE / "neovim.lua")]
    environment = {**training.client_env, "RAYDEBUG": str(Path(sys.executable).parent / "raydebug")}
    environment |= {"XDG_CACHE_HOME": str(training.folder), "XDG_DATA_HOME": str(training.folder)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, cwd=training.folder)
    assert (done.returncode, (done.stdout + done.stderr).strip().splitlines()[-1:]) == (0, ["ok"]), done.stderr
    assert len(training.pauses(3)) == 3
