"""For tests of images: programs of ci/ as modules (they have no suffix), and images that have to be there."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest


def load(name: str = "build-twice") -> ModuleType:
    """Return the module of a program in ci/."""
    loader = SourceFileLoader(name.replace("-", "_") + "_program", str(Path(__file__).parents[2] / "ci" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.dont_write_bytecode, was = True, sys.dont_write_bytecode
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = was
    return module


def require_image(name: str) -> None:
    """Skip visibly without this image: `nox -s twice` builds those of all flavours (RAYDEBUG_TEST_LONG=1)."""
    try:
        done = subprocess.run(["docker", "image", "inspect", name], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no docker command here")
    if done.returncode:
        pytest.skip(f"{name}: {done.stderr.strip()}")
