"""The wheel and the sdist of dist/, installed as a user installs them: in environments far from the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHONS: dict[str, str] = json.loads(os.environ.get("RAYDEBUG_TEST_PYTHONS", "{}"))  # version -> program


@pytest.fixture(scope="session")
def uv() -> str:
    """The uv of the session, which makes the environments."""
    found = os.environ.get("RAYDEBUG_TEST_UV") or shutil.which("uv")
    assert found, "no uv here: run `nox -s installed`"
    return found


@pytest.fixture(scope="session")
def environment(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make an environment with a file of dist/ in it, and return its folder of programs."""

    def make(python: str, kind: str, *, with_ray: bool = False, extra: str = "cli") -> Path:
        (file,) = (ROOT / "dist").glob({"wheel": "raydebug-*.whl", "sdist": "raydebug-*.tar.gz"}[kind])
        folder = tmp_path_factory.mktemp("installed") / "env"
        if python not in PYTHONS:
            pytest.skip(f"there is no Python {python} here, neither on the PATH nor among pyenv's")
        subprocess.run([uv, "venv", "--quiet", "--python", PYTHONS[python], str(folder)], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
        if with_ray:  # all of the flavour core
            subprocess.run([*install, "--require-hashes", "-r", str(ROOT / "env" / "core.lock")], check=True)
        # The sdist is built with hatchling as locked; the versions are the lock's too.
        options = ["--no-deps"] if with_ray else ["--constraints", str(ROOT / "env" / "core.lock")]
        options += ["--build-constraints", str(ROOT / "env" / "dev.lock"), "--compile-bytecode"]
        subprocess.run([*install, *options, f"{file}[{extra}]" if extra else str(file)], check=True)
        return folder / "bin"

    return make
