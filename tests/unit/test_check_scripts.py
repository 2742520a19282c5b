"""What a training's repository uses: the program of the GitHub Action and of the pre-commit hook, and their files."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / ".github" / "actions" / "check" / "action.yml"
PROGRAM = ACTION.with_name("check-scripts")
TRAINING = "python -m verl.trainer.main_ppo data.train_files=a.parquet\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with scripts, and a folder `bin` with this raydebug."""
    (tmp_path / "train.sh").write_text(TRAINING)
    (tmp_path / "with space.sh").write_text(TRAINING)
    (tmp_path / "set_up.sh").write_text("echo hello\n")
    (tmp_path / "bin").mkdir()
    program = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m raydebug "$@"\n'
    (tmp_path / "bin" / "raydebug").write_text(program)
    (tmp_path / "bin" / "raydebug").chmod(0o755)
    return tmp_path


def check(folder: Path, *argv: str, path: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a repository."""
    environ = {
        **os.environ,
        "PATH": path or f"{folder / 'bin'}:/usr/bin:/bin",
        "XDG_STATE_HOME": str(folder),
        **variables,
    }
    return subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_scripts(folder: Path) -> None:
    """Every script is checked, also behind one that fails, and the worst result is the exit code."""
    done = check(folder, str(PROGRAM), "train.sh", "with space.sh")
    assert [line for line in done.stdout.splitlines() if line.startswith("== ")] == ["== train.sh", "== with space.sh"]
    assert done.returncode in (0, 1), done.stderr  # 1 where the training's packages are missing
    done = check(folder, str(PROGRAM), "set_up.sh", "train.sh")
    assert done.returncode == 2
    assert "== train.sh" in done.stdout
    assert "is not a training that raydebug can check" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "path", "says"),
    [
        ((), None, "error: no script is named"),
        (("nothing.sh",), None, "error: there is no file nothing.sh"),
        (("bin",), None, "error: there is no file bin"),
        (("a\n::error::b.sh",), None, "error: the name of a script has hidden characters"),
        (("a\N{RIGHT-TO-LEFT OVERRIDE}b.sh",), None, "error: the name of a script has hidden characters"),
        (("train.sh",), "/usr/bin:/bin", "error: raydebug is not installed here"),
    ],
)
def test_bad_input(folder: Path, arguments: tuple[str, ...], path: str | None, says: str) -> None:
    """What cannot be checked is said in three lines, with exit code 2."""
    done = check(folder, str(PROGRAM), *arguments, path=path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, says)
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "cause", "fix"]


@pytest.mark.parametrize(("scripts", "code"), [("train.sh\n\n  \nset_up.sh\n", 2), ("\n", 2), ("$(touch pwned).sh", 2)])
def test_the_last_step_of_the_action(folder: Path, scripts: str, code: int) -> None:
    """The action checks each line of its input; an empty one is refused, and a line is never run."""
    (step,) = yaml.safe_load(ACTION.read_text())["runs"]["steps"][-1:]
    assert set(step["env"]) == {"ENVIRONMENT", "SCRIPTS"}
    variables = {"ENVIRONMENT": str(folder), "SCRIPTS": scripts, "GITHUB_ACTION_PATH": str(ACTION.parent)}
    done = check(folder, "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"], **variables)
    assert done.returncode == code, done.stderr
    assert not list(folder.glob("pwned*"))


def test_the_hook() -> None:
    """The hook's program is the action's, and can be run."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (ROOT / hook["entry"]).samefile(PROGRAM)
    assert os.access(PROGRAM, os.X_OK)
