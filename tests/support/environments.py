"""Python environments of a test's own, which lack a package that this one has, or have another version of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path


def without(folder: Path, package: str) -> str:
    """Make an environment that is this one but for a package; return its Python.

    Every package is a link into this environment: it takes a second and no room.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    python = folder / "bin" / "python"
    for path in _packages().iterdir():
        if path.name != package and not path.name.startswith(f"{package}-"):
            (_packages(python) / path.name).symlink_to(path)
    return str(python)


def with_version(folder: Path, package: str, version: str) -> str:
    """Make an environment that is this one, with a package that says it is of another version; return its Python."""
    python = without(folder, package)
    copy = _packages(Path(python)) / package
    shutil.copytree(_packages() / package, copy, symlinks=True)
    (copy / "_version.py").write_text(f"def get_versions():\n    return {{'version': {version!r}}}\n")
    return python


def with_ray(folder: Path, version: str) -> str:
    """Make an environment that is this one, with a Ray that says it is of another version; return its Python."""
    python = without(folder, "ray")
    there = _packages(Path(python)) / "ray"
    there.mkdir()
    for path in (_packages() / "ray").iterdir():
        if path.name not in ("_version.py", "__pycache__"):
            (there / path.name).symlink_to(path)
    (there / "_version.py").write_text(f"commit, version = '', {version!r}\n")
    about = there.with_name(f"ray-{version}.dist-info")
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")
    return python


def _packages(python: Path | None = None) -> Path:
    if python is None:
        return Path(sysconfig.get_paths()["purelib"])
    return python.parent.parent / os.path.relpath(_packages(), sys.prefix)
