"""A process of an environment that has no debugpy, or an old one: real environments, a real gateway."""

from __future__ import annotations

import subprocess

import pytest

from environments import with_version, without
from raydebug.worker.pydevd_session import AT_LEAST

LOOP = "for i in range(3):\n    breakpoint()\nprint('went on')\n"


def run(gateway, python: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the loop under the gateway's gateway, with a Python of another environment."""
    job = gateway.folder / "loop.py"
    job.write_text(LOOP)
    environment = {**gateway.environment, **variables}
    return subprocess.run([python, str(job)], env=environment, capture_output=True, text=True, timeout=40, check=False)


def test_f16_missing(gateway, tmp_path):
    """F16: without debugpy the task goes on past its breakpoints, with one warning, and nothing dials in."""
    python = without(tmp_path / "bare", "debugpy")
    done = run(gateway, python)
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert done.stderr == (
        f"raydebug: {gateway.folder}/loop.py:2 not paused: debugpy cannot be loaded (No module named 'debugpy'); "
        f"`{python} -m pip install 'debugpy>=1.8.6'`; breakpoints of this process are passed over\n"
    )
    assert "dial" not in gateway.log.partition("listening")[2]


def test_f16_missing_at_a_crash(gateway, tmp_path):
    """F16: without debugpy an error ends the program as ever, with one warning."""
    python = without(tmp_path / "bare", "debugpy")
    (gateway.folder / "crash.py").write_text("raise ValueError('bad')\n")
    argv = [python, str(gateway.folder / "crash.py")]
    environment = {**gateway.environment, "RAY_DEBUG_POST_MORTEM": "1"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 1
    assert done.stderr.count("raydebug: ") == 1
    assert done.stderr.rstrip().endswith("ValueError: bad")


@pytest.mark.parametrize("version", ["1.8.5", "1.5.1", "0+unknown"])
def test_f16_too_old(gateway, tmp_path, version):
    """F16: with a debugpy before 1.8.6 the task goes on, with one warning that names the version."""
    done = run(gateway, with_version(tmp_path / "old", "debugpy", version))
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert f"not paused: debugpy {version} is too old; " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_f16_newer_than_1_8_as_numbers(gateway, tmp_path):
    """F16: versions are compared as numbers: 1.10 is not before 1.8, and pauses."""
    python = with_version(tmp_path / "new", "debugpy", "1.10.0")
    (gateway.folder / "once.py").write_text("breakpoint()\nprint('went on')\n")
    argv = [python, str(gateway.folder / "once.py")]
    program = subprocess.Popen(argv, env=gateway.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    gateway.programs.append(program)
    gateway.resume(gateway.pauses()[0]["id"])
    out, err = program.communicate(timeout=60)
    assert (out, err.count("not paused")) == ("went on\n", 0)


def test_wanted_version_is_below_the_pinned_one():
    """The required version is in this environment."""
    import debugpy

    assert tuple(map(int, debugpy.__version__.split(".")[:3])) >= AT_LEAST
