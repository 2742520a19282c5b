"""The world of several machines, one for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from world import NoWorld, World
from world import world as starting_world


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """A login node and three nodes with Slurm and ssh; a test leaves them as they were."""
    try:
        with starting_world() as found:
            yield found
    except NoWorld as error:
        if os.environ.get("REQUIRE_HOSTS") == "1":
            pytest.exit(f"REQUIRE_HOSTS=1, but there is no world of several machines: {error}", returncode=1)
        pytest.skip(f"no world of several machines: {error}")
