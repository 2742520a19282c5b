"""Fixtures of the unit tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_door import TOKEN, Door

from raydebug.cluster.ports import choose_ports


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """A gateway of its own on free ports, ended with all that dialled it."""
    (tmp_path / "token").write_text(TOKEN)
    ports = choose_ports({}, {}, {5678, 8265})
    argv = [sys.executable, "-m", "raydebug.gateway", "--client-port", str(ports["gateway"])]
    argv += ["--dial-port", str(ports["dial"])]
    environment = {**os.environ, "RAYDEBUG_TOKEN_PATH": str(tmp_path / "token")}
    process = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert b"listening" in process.stderr.readline()
    door = Door(tmp_path, process, ports["gateway"], ports["dial"])
    try:
        yield door
    finally:
        for program in door.programs:
            program.kill()
            program.communicate()
        process.terminate()
        process.communicate(timeout=5)
