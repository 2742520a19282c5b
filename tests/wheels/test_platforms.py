"""The locks on aarch64, with each Python: there is a file for each package. Other tests install them on x86_64."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import lock
from lock import TARGETS
from wheels.conftest import UNREACHABLE

ROOT = Path(__file__).resolve().parents[2]
ARM = "aarch64-manylinux_2_28"
GRACE = "aarch64-manylinux_2_35"  # tilelang, which cuda has, has no wheel for an older glibc
pytestmark = pytest.mark.timeout(300)


def uv() -> str:
    found = os.environ.get("RAYDEBUG_TEST_UV") or shutil.which("uv")
    assert found, "no uv here: run `nox -s wheels`"
    return found


@pytest.mark.parametrize(
    ("flavour", "python", "platform"),
    [
        *(("core", python, ARM) for python in ("3.11", "3.12", "3.13")),
        *(("dev", python, ARM) for python in ("3.11", "3.12", "3.13")),
        ("cuda", "3.12", GRACE),
    ],
)
def test_installs(flavour: str, python: str, platform: str, tmp_path: Path) -> None:
    """uv would install each package of the lock, by its hash, on this Python and platform; nothing is loaded."""
    argv = [uv(), "--config-file", "env/uv.toml", "pip", "install", "--dry-run", "--no-deps", "--require-hashes"]
    where = ["--python-version", python, "--python-platform", platform, "--target", str(tmp_path)]
    done = subprocess.run([*argv, *where, "-r", f"env/{flavour}.lock"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0 and UNREACHABLE.search(done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    pins = lock.read_lock(ROOT / "env" / f"{flavour}.lock")
    assert f"Would install {len(pins.pins) - len(pins.elsewhere)} packages" in done.stderr


def test_cuda_resolves_alike_on_aarch64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolution of cuda for aarch64 gives the same packages as the lock, which was resolved for x86_64."""
    if os.environ.get("RAYDEBUG_TEST_LONG") != "1":
        pytest.skip("a resolution of ten seconds: RAYDEBUG_TEST_LONG=1")
    monkeypatch.setenv("RAYDEBUG_UV", uv())
    (target,) = [target for target in TARGETS if target.flavour == "cuda"]
    draft = tmp_path / "cuda.lock"
    draft.write_bytes((ROOT / "env" / "cuda.lock").read_bytes())
    body = lock.resolve(target, ("--python-version", "3.12", "--python-platform", GRACE), draft)
    resolved = {line.split()[0] for line in body.splitlines() if "==" in line}
    assert resolved == {f"{name}=={version}" for name, version in lock.read_lock(ROOT / "env/cuda.lock").pins.items()}
