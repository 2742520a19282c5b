"""The wheel alone, in a training's environment: what it brings, and that this is enough to be joined from another one."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foreign_ray import ForeignRay, foreign_ray
from test_installed import Installed

PROGRAM = """
import ray

@ray.remote
def step(value):
    half = value / 2
    breakpoint()
    return 1 / half

print("result", ray.get(step.remote(4)))
"""
LOOK = """
import importlib.metadata, json, pathlib, sysconfig
points = importlib.metadata.distribution("raydebug").entry_points
site = pathlib.Path(sysconfig.get_paths()["purelib"])
print(json.dumps({
    "distributions": sorted(one.name for one in importlib.metadata.distributions()),
    "pth": (site / "raydebug.pth").read_text().count("\\n"),
    "points": [f"{one.group}:{one.name}" for one in points],
}))
"""


def test_what_the_wheel_alone_brings(environment: Callable[..., Path], tmp_path: Path) -> None:
    """It brings debugpy and h11 and nothing else, its .pth has one line, and no entry point leads into a trainer."""
    bare = Installed(environment("3.11", "wheel", extra=""), tmp_path)
    assert json.loads(bare("-c", LOOK, program="python")) == {
        "distributions": ["debugpy", "h11", "raydebug"],
        "pth": 1,
        "points": ["console_scripts:raydebug"],
    }
    done = subprocess.run([str(bare.programs / "raydebug"), "ps"], env=bare.environ, capture_output=True, text=True)
    python = str(bare.programs / "python")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: the command line of raydebug is not installed here",
        f"cause: {python} has no module 'typer'; the wheel alone has what a training needs",
        f"fix: {python} -m pip install 'raydebug[cli]'; or beside it: uv tool install 'raydebug[cli]'",
    ]


@pytest.fixture
def training(environment: Callable[..., Path]) -> Iterator[ForeignRay]:
    """A head in an environment with Ray and the wheel alone."""
    programs = environment("3.11", "wheel", extra="ray")

    def prepare(head: ForeignRay) -> None:
        head.more["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"

    with foreign_ray(with_token=True, python=str(programs / "python"), prepare=prepare) as head:
        yield head


@pytest.mark.timeout(300)
def test_joined_from_another_environment(
    training: ForeignRay, environment: Callable[..., Path], tmp_path: Path
) -> None:
    """A command line without Ray joins the cluster of an environment with the wheel alone, attaches, and looks."""
    (tmp_path / "train.py").write_text(PROGRAM)
    user = Installed(environment("3.11", "wheel"), tmp_path)
    user.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(training.folder / "ray_token")}
    user("up", "--join", training.url, "--name", "dist", "--gateway-port", "0")
    try:
        running = user.start("run", "--name", "dist", "--", "python", "train.py")
        deadline = time.monotonic() + 120
        while not (pauses := json.loads(user("paused", "--name", "dist", "--json"))["pauses"]):
            assert running.poll() is None and time.monotonic() < deadline, (tmp_path / "run.log").read_text()
            time.sleep(0.3)
        assert "step" in user("stacks", "--name", "dist")
        said = user("attach", str(pauses[0]["id"]), "--name", "dist", "-x", "p half", "-x", "c")
        assert said.splitlines()[0] == "2.0"
        assert running.wait(60) == 0
        assert "result 0.5" in (tmp_path / "run.log").read_text()
        user("check", "env", "--name", "dist", "--fresh")
    finally:
        user("down", "--name", "dist")
