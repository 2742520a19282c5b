"""`python -m raydebug.stacks.spy REQUEST`: stacks of processes of this node, read from outside by py-spy.

Runs in the cluster's Python on the node, as the user of the node's processes. Where the right to read another process
is missing, the answer says which one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict

from raydebug import process
from raydebug.protocol.node_facts import cpu_seconds
from raydebug.protocol.records import StackFrame, ThreadStack
from raydebug.protocol.secrets import is_secret_name, scrubbed

AT_ONCE = 4
TIMEOUT_S = 20.0  # of one process; C frames of a training with many libraries take seconds at first
MAX_FRAMES = 64
SYS_PTRACE = 19  # bit of capabilities(7)
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
OURS = ("/raydebug/worker/control_channel.py", "_serve")  # file and function of the control channel's thread
STOPPED, GONE, UNINTERRUPTIBLE = ("T", "t"), ("", "Z", "X"), "D"  # proc_pid_stat(5)


class Seen(TypedDict, total=False):
    """What a process does as its node sees it, and its threads, or why they cannot be read and what to do."""

    threads: list[ThreadStack]  # also with native frames, whose `file` is a library
    stopped: bool  # by a signal
    asleep: str  # the kernel's function in which it sleeps in state D; empty where that may not be read
    gone: bool  # it has ended
    cpu_s: float  # CPU time of all its threads
    title: str  # as `ps` shows it; Ray's workers write there what they run
    cause: str
    fix: str


def main() -> None:
    """Answer `{"pids": [...], "native": bool, "locals": bool}`; the last line of the output has the answer."""
    request = json.loads(sys.argv[1])
    read = functools.partial(read_process, native=bool(request["native"]), with_locals=bool(request.get("locals")))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(map(str, request["pids"]), pool.map(read, request["pids"]), strict=True))
    sys.stdout.write(f"\n{json.dumps(found)}\n")


def read_process(pid: int, *, native: bool, with_locals: bool = False) -> Seen:
    """Return the threads of a process of this node, the one that holds Python's lock first.

    Args:
        pid: which.
        native: with C frames; the process is stopped while they are read.
        with_locals: of the frames.
    """
    before = _state_of(pid)
    if before in GONE:
        return {"gone": True, "cause": f"process {pid} has ended", "fix": "raydebug diagnose"}
    seen = _run_spy(pid, "--native" if native else "--nonblocking", *["--locals"] * with_locals)
    seen["stopped"] = before in STOPPED
    seen["cpu_s"] = cpu_seconds(pid)
    if before == _state_of(pid) == UNINTERRUPTIBLE:
        seen["asleep"] = ""
        with contextlib.suppress(OSError):  # it needs CAP_SYS_ADMIN in some kernels: proc_pid_wchan(5)
            seen["asleep"] = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii", errors="replace").strip("0")
    return seen


def _state_of(pid: int) -> str:
    """Return the state of a process as proc_pid_stat(5) has it; empty if it is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][:1]
    except OSError:
        return ""


def _run_spy(pid: int, *options: str) -> Seen:
    spy = Path(sys.executable).parent / "py-spy"  # a dependency of ray[default]
    if not spy.exists():
        return {"cause": f"there is no {spy}", "fix": "install py-spy in the cluster's environment"}
    argv = [str(spy), "dump", "--json", "--pid", str(pid), *options]
    try:
        printed = process.run(argv, timeout_s=TIMEOUT_S)
        threads = [thread for thread in json.loads(printed[printed.index("[") :]) if not _is_ours(thread)]
        title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
    except (OSError, ValueError):
        return {"cause": f"process {pid} has ended", "fix": "try again"}
    except process.CommandFailed as failure:
        if not any(words in failure.output.lower() for words in ("permission denied", "not permitted")):
            said = failure.output.strip().splitlines() or ["py-spy failed"]
            return {"cause": said[0][:300], "fix": "try again"}
        reader = owner = os.geteuid()
        with contextlib.suppress(OSError):  # it has ended
            owner = Path(f"/proc/{pid}").stat().st_uid
        capabilities = Path("/proc/self/status").read_text(encoding="utf-8").partition("CapEff:")[2].split()[0]
        may_trace = bool(int(capabilities, 16) >> SYS_PTRACE & 1)
        return explain(owner, reader, _ptrace_scope(), may_trace=may_trace)
    found = sorted(map(_describe, threads), key=lambda one: (not one.get("gil"), one["name"] != "MainThread"))
    return {"threads": found, "title": title.decode(errors="replace")}


def _is_ours(thread: dict[str, Any]) -> bool:
    return any(frame["filename"].endswith(OURS[0]) and frame["name"] == OURS[1] for frame in thread["frames"])


def _describe(thread: dict[str, Any]) -> ThreadStack:
    frames: list[StackFrame] = [
        {"file": frame["filename"], "line": frame["line"], "function": frame["name"], "locals": _locals(frame)}
        for frame in thread["frames"]
        if not frame["name"].startswith("0x")  # native code without a symbol
    ]
    return {"name": thread["thread_name"] or "", "frames": frames[:MAX_FRAMES], "gil": bool(thread["owns_gil"])}


def _locals(frame: dict[str, Any]) -> list[str]:
    shown = [(one["name"], one["repr"]) for one in frame.get("locals") or ()]
    return [f"{name} = {'(a secret)' if is_secret_name(name) else scrubbed(str(text))}" for name, text in shown]


def explain(owner: int, reader: int, scope: int, *, may_trace: bool) -> Seen:
    """Return which right to read a process is missing, and how to grant it. Pure.

    Args:
        owner: user id of the process.
        reader: user id of py-spy.
        scope: kernel.yama.ptrace_scope; 0 where the kernel has no Yama.
        may_trace: whether py-spy has CAP_SYS_PTRACE.

    Source: ptrace(2) "Ptrace access mode checking", Documentation/admin-guide/LSM/Yama.rst.
    """
    give = "give CAP_SYS_PTRACE (in containers: `cap_add: [SYS_PTRACE]`)"
    if owner != reader and not may_trace:
        return {"cause": f"the process has user id {owner}; py-spy has {reader} and no CAP_SYS_PTRACE",
                "fix": f"run raydebug as the user of the process, or {give}"}  # fmt: skip
    if scope == 3:
        return {"cause": "kernel.yama.ptrace_scope is 3: no process may read another one",
                "fix": "set it to 0 or 1 in /etc/sysctl.d and restart the machine"}  # fmt: skip
    if scope and not may_trace:
        return {"cause": f"kernel.yama.ptrace_scope is {scope}, and CAP_SYS_PTRACE is missing",
                "fix": f"sudo sysctl kernel.yama.ptrace_scope=0, or {give}"}  # fmt: skip
    return {"cause": "the kernel refuses it: a seccomp filter, or a process that may not be dumped (prctl)",
            "fix": f"{give}, or allow ptrace and process_vm_readv in the seccomp profile"}  # fmt: skip


def _ptrace_scope() -> int:
    try:
        return int(YAMA.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    main()
