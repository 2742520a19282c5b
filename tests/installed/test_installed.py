"""What a user gets who has no checkout: the first run, and the verbs that need no Ray."""

from __future__ import annotations

import json
import os
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raydebug
import snapshot_files
from foreign_ray import ForeignRay, foreign_ray

LONG = os.environ.get("RAYDEBUG_TEST_LONG") == "1"
ALL = [(python, kind) for python in ("3.11", "3.12", "3.13") for kind in ("wheel", "sdist")]
LOG = Path(__file__).resolve().parents[1] / "failures" / "logs" / "no-master.log"
PROGRAM = """
import sys
import ray

@ray.remote
def step(value):
    half = value / 2
    return 1 / half

print("result", ray.get(step.remote(int(sys.argv[1]))))
"""
# Printed as JSON: where the package is, whether each module that an entry point names is there.
LOOK = """
import importlib.metadata, importlib.util, json, pathlib, sysconfig, raydebug
points = importlib.metadata.distribution("raydebug").entry_points
site = pathlib.Path(sysconfig.get_paths()["purelib"])
print(json.dumps({
    "package": raydebug.__file__,
    "hook": (site / "raydebug.pth").is_file(),
    "points": {f"{one.group}:{one.name}": importlib.util.find_spec(one.module) is not None for one in points},
}))
"""

# The same, of an environment with the wheel alone.
LOOK_AT_ALL = """
import importlib.metadata, json, pathlib, sysconfig
points = importlib.metadata.distribution("raydebug").entry_points
site = pathlib.Path(sysconfig.get_paths()["purelib"])
print(json.dumps({
    "distributions": sorted(one.name for one in importlib.metadata.distributions()),
    "lines": len((site / "raydebug.pth").read_text().splitlines()),
    "points": [f"{one.group}:{one.name}" for one in points],
}))
"""


class Installed:
    """A raydebug that was installed from a file, used in an empty folder with a state of its own."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": path, "XDG_STATE_HOME": str(folder / "state")}
        for name in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"):  # bytecode: as on a user's machine
            self.environ.pop(name, None)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a verb in the background; its output is in `run.log`."""
        with (self.folder / "run.log").open("w") as log:
            argv = [str(self.programs / "raydebug"), *arguments]
            return subprocess.Popen(argv, cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, stdout=log,
                                    stderr=subprocess.STDOUT, text=True)  # fmt: skip

    def __call__(self, *arguments: str, code: int = 0, program: str = "raydebug") -> str:
        """Run a verb to its end, check its exit code, and return what it printed on stdout."""
        argv = [str(self.programs / program), *arguments]
        done = subprocess.run(argv, cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=120)  # fmt: skip
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder of the user's, with a program in it."""
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture(params=ALL if LONG else [("3.13", "wheel")], ids="-".join)
def installed(request: pytest.FixtureRequest, environment: Callable[..., Path], folder: Path) -> Installed:
    """Raydebug with Ray, from the wheel or the sdist."""
    python, kind = request.param
    return Installed(environment(python, kind, with_ray=True), folder)


@pytest.fixture
def cluster(installed: Installed) -> Iterator[str]:
    """A cluster on this machine, as `up` starts it; ended in any case."""
    installed("up", "--cluster", "local", "--dashboard-port", "0", "--gateway-port", "0", "--name", "dist")
    try:
        yield "dist"
    finally:
        installed("down", "--name", "dist")


def pause_of(installed: Installed, running: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the pause of a run."""
    for _ in range(300):
        listed = json.loads(installed("paused", "--name", "dist", "--json"))["pauses"]
        if waiting := [one for one in listed if one["state"] == "waiting"]:
            found: dict[str, Any] = waiting[0]
            return found
        assert running.poll() is None, (installed.folder / "run.log").read_text()
        time.sleep(0.2)
    raise AssertionError("no pause within a minute")


@pytest.mark.timeout(300)
def test_the_first_run(installed: Installed, cluster: str) -> None:
    """From a file alone: hook, entry points, `up`, `run --break`, `attach`, `diagnose`, `open`, `report`, `stacks`."""
    looked = json.loads(installed("-c", LOOK, program="python"))
    assert looked["package"].startswith(str(installed.programs.parent))
    assert looked["hook"]
    assert looked["points"] == {"console_scripts:raydebug": True}
    running = installed.start("run", "--name", cluster, "--break", "train.py:step", "--", "python", "train.py", "4")
    paused = pause_of(installed, running)
    (installed.folder / "stacks.json").write_text(installed("stacks", "--name", cluster, "--json"))
    assert installed("attach", str(paused["id"]), "--name", cluster, "-x", "p value", "-x", "c").splitlines()[0] == "4"
    assert running.wait(60) == 0
    assert "result 0.5" in (installed.folder / "run.log").read_text()
    installed("run", "--name", cluster, "--debugger", "off", "--", "python", "train.py", "0", code=1)
    assert "ZeroDivisionError" in installed("diagnose", code=1)
    assert installed("open", "-x", "p value").splitlines()[0] == "0"
    assert "ZeroDivisionError" in Path(installed("report").strip()).read_text()
    assert "step" in installed("stacks", "--from", "stacks.json")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"] if LONG else ["3.12"])
def test_without_ray(environment: Callable[..., Path], folder: Path, python: str) -> None:
    """The command line, without Ray and torch, reads logs and snapshots; `up` says how to get Ray."""
    bare = Installed(environment(python, "wheel"), folder)
    assert "nccl-init-failure" in bare("diagnose", str(LOG), code=1)
    saved = snapshot_files.write(folder, snapshot_files.crashed_reward())
    assert "reward" in bare("open", str(saved), "-x", "w")
    assert Path(bare("open", str(saved), "--html").strip()).is_file()
    argv = [str(bare.programs / "raydebug"), "up", "--cluster", "local"]
    up = subprocess.run(argv, cwd=folder, env=bare.environ, capture_output=True, text=True)
    python = str(bare.programs / "python")
    version = bare("-c", "import platform; print(platform.python_version())", program="python").strip()
    assert up.returncode == 2
    assert up.stderr.splitlines()[-3:] == [
        f"error: {python} cannot run a cluster",
        f"cause: its Python {version} ({python}) has no ray",
        f"fix: in raydebug's checkout: {python} -m pip install '.[ray]'",
    ]


def test_what_the_wheel_alone_brings(environment: Callable[..., Path], tmp_path: Path) -> None:
    """It brings debugpy and h11 and nothing else, its .pth has one line, and no entry point leads into a trainer."""
    bare = Installed(environment("3.11", "wheel", extra=""), tmp_path)
    assert json.loads(bare("-c", LOOK_AT_ALL, program="python")) == {
        "distributions": ["debugpy", "h11", "raydebug"],
        "lines": 1,
        "points": ["console_scripts:raydebug"],
    }
    done = subprocess.run([str(bare.programs / "raydebug"), "ps"], env=bare.environ, capture_output=True, text=True)
    python = str(bare.programs / "python")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: the command line of raydebug is not installed here",
        f"cause: {python} has no module 'typer'; the wheel alone has what a training needs",
        f"fix: in raydebug's checkout: {python} -m pip install '.[cli]'; or beside it: uv tool install '.[cli]'",
    ]


def test_plug_ins_for_a_cpu(environment: Callable[..., Path], uv: str, tmp_path: Path) -> None:
    """The wheel of raydebug-cpu fits that of raydebug, and each of its entry points leads to a module."""
    bare = Installed(environment("3.11", "wheel", extra=""), tmp_path)
    (wheel,) = (Path(__file__).resolve().parents[2] / "dist").glob("raydebug_cpu-*.whl")
    python = str(bare.programs / "python")
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", python, "--offline", str(wheel), "--no-deps"], check=True
    )
    found = json.loads(bare("-c", LOOK.replace('"raydebug"', '"raydebug-cpu"'), program="python"))
    assert found["points"] == {"verl.plugins:raydebug_cpu": True, "vllm.general_plugins:raydebug_cpu": True}
    (needs,) = [need for need in metadata_of(wheel) if need.startswith("raydebug")]
    assert needs == f"raydebug=={raydebug.__version__}"


def metadata_of(wheel: Path) -> list[str]:
    """Return what a wheel says that it requires."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(name).decode()
    return [line.removeprefix("Requires-Dist: ") for line in text.splitlines() if line.startswith("Requires-Dist: ")]


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
    (tmp_path / "train.py").write_text(PROGRAM.replace("return", "breakpoint(); return"))
    user = Installed(environment("3.11", "wheel"), tmp_path)
    user.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(training.folder / "ray_token")}
    user("up", "--join", training.url, "--name", "dist", "--gateway-port", "0")
    try:
        running = user.start("run", "--name", "dist", "--", "python", "train.py", "4")
        pause = pause_of(user, running)
        assert "step" in user("stacks", "--name", "dist")
        said = user("attach", str(pause["id"]), "--name", "dist", "-x", "p half", "-x", "c")
        assert said.splitlines()[0] == "2.0"
        assert running.wait(60) == 0
        assert "result 0.5" in (tmp_path / "run.log").read_text()
        user("check", "env", "--name", "dist", "--fresh")
    finally:
        user("down", "--name", "dist")
