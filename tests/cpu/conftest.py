"""Tests that need the cpu flavour: torch, transformers, vLLM for CPU, verl."""

from __future__ import annotations

import importlib.util

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, and say why, where the flavour is not installed."""
    missing = [name for name in ("torch", "transformers", "vllm", "verl") if importlib.util.find_spec(name) is None]
    if missing:
        for item in items:
            if "/cpu/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=f"needs the cpu flavour: no {', '.join(missing)} here"))
