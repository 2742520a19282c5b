"""What every test shares: a plain environment, and a marker for the folder that it stands in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fault_lines import Lines

TESTS = Path(__file__).parent
# Set in the shell of whoever runs the tests, these change what the program prints or where it connects to.
_FOREIGN = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES")
_FOREIGN_PREFIXES = ("RAY_", "RAYDEBUG_", "VERL_", "PYDEVD_", "DEBUGPY_")
# How this machine runs the tests is not a fact about the program.
_KEPT = ("RAYDEBUG_TEST_",)


def pytest_configure(config: pytest.Config) -> None:
    """Strip the environment before the first test module is imported: constants are read at import."""
    for name in list(os.environ):
        if name in _FOREIGN or (name.startswith(_FOREIGN_PREFIXES) and not name.startswith(_KEPT)):
            del os.environ[name]
    config.pluginmanager.register(Lines())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder's name: unit, ray, compose, gpu."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        item.add_marker(folder)
