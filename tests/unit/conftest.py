"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_door import Door, open_door


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """A gateway of its own on free ports, ended with all that dialled it."""
    with open_door(tmp_path) as door:
        yield door
