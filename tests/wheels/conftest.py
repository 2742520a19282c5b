"""The releases of verl as their wheels have them, and Hydra to compose their configs: all installed by hash."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from raydebug.settings.flavours import read_lock

ROOT = Path(__file__).resolve().parents[2]
RELEASES: dict[str, str] = tomllib.loads((ROOT / "env" / "verl-configs.toml").read_text())["verl"]
HYDRA = ("hydra-core", "omegaconf", "antlr4-python3-runtime", "pyyaml", "packaging")  # pinned in env/cpu.lock
# What uv says where no index answers. A hash that is wrong, or a release that an index lacks, is a failure.
UNREACHABLE = re.compile(r"error sending request|dns error|failed to lookup|tcp connect|network was disabled", re.I)
# Reads [{folder, name, overrides}] and answers each with its config, references resolved, or with Hydra's refusal.
COMPOSE = """
import json, sys
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
answers = []
for job in json.load(sys.stdin):
    try:
        with initialize_config_dir(job["folder"], version_base=None):
            config = compose(config_name=job["name"], overrides=job["overrides"])
        answers.append({"raw": OmegaConf.to_container(config), "selected": {
            path: OmegaConf.select(config, path) for path in job.get("select", ())}})
    except Exception as failure:
        answers.append({"refused": f"{type(failure).__name__}: {failure}"})
json.dump(answers, sys.stdout)
"""


def install(requirements: Iterable[str], target: Path) -> Path:
    """Install pinned and hashed requirements, and nothing that they ask for, into a folder."""
    uv = os.environ.get("RAYDEBUG_TEST_UV") or shutil.which("uv")
    assert uv, "no uv here: run `nox -s wheels`"
    listed = target.with_suffix(".txt")
    listed.write_text("\n".join(requirements))
    argv = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", str(target)]
    done = subprocess.run(
        [*argv, "--python", sys.executable, "-r", str(listed)], capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0 and UNREACHABLE.search(done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder that a release's wheel was unpacked into."""
    folder, have = tmp_path_factory.mktemp("verl"), dict[str, Path]()

    def unpacked(version: str) -> Path:
        if version not in have:
            requirement = f"verl=={version} --hash=sha256:{RELEASES[version]}"
            have[version] = install([requirement], folder / version)
        return have[version]

    return unpacked


@pytest.fixture(scope="session")
def hydra(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Return a function that has the real Hydra compose configs."""
    lock = read_lock(ROOT / "env" / "cpu.lock")
    pins = [f"{name}=={lock.pins[name]} {' '.join(f'--hash=sha256:{h}' for h in lock.hashes[name])}" for name in HYDRA]
    target = install(pins, tmp_path_factory.mktemp("hydra") / "packages")

    def composed(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        environ = {**os.environ, "PYTHONPATH": str(target)}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", COMPOSE],
            input=json.dumps(jobs), capture_output=True, text=True, env=environ, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers

    return composed
