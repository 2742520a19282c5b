"""Stacks read by py-spy, and the missing right if they cannot be read."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raydebug.stacks.spy import explain, read_process

HOLDS = "import ctypes\ndef hold():\n    s = 20\n    ctypes.PyDLL(None).sleep(s)\nprint('ready', flush=True)\nhold()\n"


@pytest.mark.parametrize(
    ("facts", "cause", "fix"),
    [
        ((1000, 1001, 0, False), "the process has user id 1000; py-spy has 1001", "as the user of the process"),
        ((1000, 1000, 1, False), "kernel.yama.ptrace_scope is 1, and CAP_SYS_PTRACE is missing", "ptrace_scope=0, or"),
        ((1000, 0, 3, True), "kernel.yama.ptrace_scope is 3", "restart the machine"),
        ((1000, 1000, 0, False), "a seccomp filter", "cap_add: [SYS_PTRACE]"),
    ],
    ids=["user", "yama", "locked", "seccomp"],
)
def test_missing_right(facts: tuple[int, int, int, bool], cause: str, fix: str) -> None:
    """A refusal says which right is missing and how to grant it."""
    owner, reader, scope, may_trace = facts
    seen = explain(owner, reader, scope, may_trace=may_trace)
    assert cause in seen["cause"], seen
    assert fix in seen["fix"], seen


@pytest.mark.parametrize("native", [False, True], ids=["python", "native"])
def test_process_that_holds_the_gil(tmp_path: Path, native: bool) -> None:
    """The thread that holds Python's lock in native code comes first; C frames are added if asked."""
    (tmp_path / "hold.py").write_text(HOLDS)
    with subprocess.Popen([sys.executable, tmp_path / "hold.py"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.2)
            seen = read_process(process.pid, native=native, with_locals=True)
        finally:
            process.kill()
    if "cause" in seen and "CAP_SYS_PTRACE" in seen["cause"] + seen["fix"]:
        pytest.skip(f"this user may read no other process: {seen['cause']}")
    first = seen["threads"][0]
    names = [one["function"] for one in first["frames"]]
    assert first["gil"]
    assert names[-2:] == ["hold", "<module>"]
    assert (len(names) > 2) == native, names
    assert next(one["locals"] for one in first["frames"] if one["function"] == "hold") == ["s = 20"]


def test_no_such_process() -> None:
    """A process that is gone, or that nobody has waited for, is said to be gone."""
    assert read_process(2**22 + 1, native=False).get("gone")
    with subprocess.Popen(["true"]) as process:
        time.sleep(0.3)
        assert read_process(process.pid, native=False).get("gone")


VFORK = """
import os, sys
os.mkfifo(sys.argv[1])
print("ready", flush=True)
actions = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)
"""


def test_process_that_sleeps_in_the_kernel(tmp_path: Path) -> None:
    """A process in state D is marked, with the function of the kernel where that may be read.

    Its child opens a FIFO before it becomes a program, and the kernel keeps the parent of a vfork asleep until then.
    """
    fifo = tmp_path / "fifo"
    with subprocess.Popen([sys.executable, "-c", VFORK, fifo], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.3)
            seen = read_process(process.pid, native=False)
        finally:
            fifo.open("w").close()  # the child has a writer now, and ends
    assert "asleep" in seen, seen
    assert not seen["stopped"]


def test_stopped_process() -> None:
    """A process that a signal has stopped is marked: it does not hold Python's lock."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            time.sleep(0.3)
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.1)
            seen = read_process(process.pid, native=False)
        finally:
            process.kill()
    assert seen.get("stopped", "cause" in seen)
