"""Fixtures of the unit tests."""

from __future__ import annotations

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
    door = Door(tmp_path, ports["gateway"], ports["dial"])
    door.open()
    try:
        yield door
    finally:
        for program in door.programs:
            program.kill()
            program.communicate()
        door.process.terminate()
        door.process.communicate(timeout=5)
