"""Read what this node knows of memory and of ended processes: cgroup counters, the kernel's log, full file systems.

A worker reads the part about itself at its start (under 1 ms), and the rest when it is asked about another process; the
gateway does so for processes of its own machine.
"""

from __future__ import annotations

import os
import re
import threading
import time

TYPE_CHECKING = False  # each process of a job imports this file at its start
if TYPE_CHECKING:
    from raydebug.protocol.death import Birth
    from raydebug.protocol.questions import NodeFacts

RAY_WORKER = "/default_worker.py"  # the program of Ray's workers: ray 2.41 to 2.60 _private/workers/
ROOT = "/sys/fs/cgroup"
MAX_LINES, MAX_CHARS = 20, 500
LOG_BYTES = 256 * 1024  # of the kernel's log: its end
FILE_SYSTEMS_S = 0.2  # a dead network file system answers never
RECENT_S = 30.0  # lines about another process id, which may be of another pid namespace
FULL_BYTES = 1024 * 1024
# Linux 6.18 mm/oom_kill.c `__oom_kill_process` and `dump_header`; arch/x86/mm/fault.c `show_signal_msg`; traps.c.
_OF_MEMORY = r"[Oo]ut of memory: Killed process"
_OF_FAULT = r"segfault at|traps: |general protection"


def birth() -> Birth:
    """Return what is compared after the end of this process."""
    cgroup = cgroup_of("self")
    found: Birth = {
        "ns": namespace(), "started": started_at("self"), "raylet": _number(os.environ.get("RAY_RAYLET_PID")),
        "cgroup": cgroup, "oom_kills": oom_kills(cgroup), "node_oom_kills": _counter("/proc/vmstat", "oom_kill"),
    }  # fmt: skip
    if job := os.environ.get("SLURM_JOB_ID"):
        found["scheduler"] = f"Slurm, job {job[:100]}"
    elif "KUBERNETES_SERVICE_HOST" in os.environ:
        found["scheduler"] = "Kubernetes"
    return found


def namespace(kind: str = "pid") -> str:
    """Name the machine's boot and a namespace of this process, see namespaces(7); empty where there are none."""
    try:
        return f"{_read('/proc/sys/kernel/random/boot_id').strip()} {os.readlink(f'/proc/self/ns/{kind}')}"
    except OSError:
        return ""


def started_at(pid: int | str) -> int:
    """Return when a process started, in clock ticks since boot; 0 if it is gone."""
    return _number((_stat(pid) or [""] * 20)[19])


def cpu_seconds(task: int | str) -> float:
    """Return the CPU time of a process, in user and kernel mode; of a thread of this one as `self/task/ID`."""
    fields = _stat(task) or [""] * 13
    return (_number(fields[11]) + _number(fields[12])) / os.sysconf("SC_CLK_TCK")


def io_bytes() -> int:
    """Return what this process has written to files and pipes, and read from disks: proc_pid_io(5)."""
    return _counter("/proc/self/io", "wchar:") + _counter("/proc/self/io", "read_bytes:")


def zombie_status(pid: int) -> int | None:
    """Return the status of a process that has ended and whose parent has not asked for it yet; see proc_pid_stat(5)."""
    fields = _stat(pid)
    return _number(fields[49]) if fields and fields[0] in "ZX" and len(fields) > 49 else None


def cgroup_of(pid: int | str) -> str:
    """Return the folder with the memory counters of a process's cgroup, of version 2 or 1; empty without one."""
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        # In a container the path may be the host's, and its own cgroup is what is mounted.
        for root in (ROOT, f"{ROOT}/memory", f"{ROOT}/unified"):
            for folder in (f"{root}{path}".rstrip("/"), root):
                if any(os.path.exists(f"{folder}/{name}") for name in ("memory.events", "memory.oom_control")):
                    return folder
    return ""


def oom_kills(cgroup: str) -> int:
    """Return how many processes of a cgroup the kernel has ended because memory ran out."""
    return _counter(f"{cgroup}/memory.events", "oom_kill") or _counter(f"{cgroup}/memory.oom_control", "oom_kill")


def node_facts(pid: int, cgroup: str, started: int) -> NodeFacts:
    """Return what this node knows after the end of a process, which had started at so many clock ticks since boot."""
    facts: NodeFacts = {
        "oom_kills": oom_kills(cgroup), "node_oom_kills": _counter("/proc/vmstat", "oom_kill"),
        "total": 1024 * _counter("/proc/meminfo", "MemTotal:"), "full": full_file_systems(), "unread": [],
    }  # fmt: skip
    limit = _number(_read(f"{cgroup}/memory.max") or _read(f"{cgroup}/memory.limit_in_bytes"))
    if 0 < limit < 2**60:  # version 1 writes "no limit" as a number near 2**63
        peak = _number(_read(f"{cgroup}/memory.peak") or _read(f"{cgroup}/memory.max_usage_in_bytes"))
        facts["limit"], facts["peak"] = limit, peak or limit
    try:
        lived_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
        facts["kernel"] = kernel_lines(_kernel_log(), pid, time.clock_gettime(time.CLOCK_MONOTONIC), lived_s)
    except OSError:
        facts["unread"].append("the kernel's log: CAP_SYSLOG, or sysctl kernel.dmesg_restrict=0")
    return facts


def kernel_lines(log: str, pid: int, now_s: float, lived_s: float) -> list[str]:
    """Return the lines of the kernel's log about the end of a process, none from before its start.

    In a container the log has the machine's process ids: the last ends by memory are returned too, marked `other`.

    >>> kernel_lines("3,1,9000000,-;Memory cgroup out of memory: Killed process 77 (python)", 77, 10.0, 5.0)
    ['Memory cgroup out of memory: Killed process 77 (python)']
    """
    found = []
    for record in log.splitlines():
        head, mark, text = record.partition(";")
        if not mark or not (re.search(f"{_OF_MEMORY}|{_OF_FAULT}", text)):
            continue
        age_s = now_s - _number(head.split(",")[2]) / 1e6
        if age_s <= lived_s and re.search(rf"\b(?:process |pid=|\[){pid}\b", text):
            found.append(text[:MAX_CHARS])
        elif age_s < RECENT_S and re.search(_OF_MEMORY, text):
            found.append(f"other: {text[:MAX_CHARS]}")
    return found[-MAX_LINES:]


def full_file_systems() -> list[str]:
    """Return the places where programs write that have no free space left, as far as they answer in time."""
    global _look
    thread, full = _look or (None, [])
    if thread is None or not thread.is_alive():  # one thread waits for a dead file system, whatever ends meanwhile
        full = []
        thread = threading.Thread(target=_look_for_full, args=(full,), name="raydebug-disks", daemon=True)
        thread.pydev_do_not_trace = thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
        thread.start()
        _look = thread, full
    thread.join(FILE_SYSTEMS_S)
    return list(dict.fromkeys(full))


_look: tuple[threading.Thread, list[str]] | None = None


def _look_for_full(full: list[str]) -> None:
    for place in ("/tmp", "/dev/shm", ".", "~"):  # noqa: S108 - nothing is written there
        try:
            folder = os.path.abspath(os.path.expanduser(place))
            found = os.statvfs(folder)
        except OSError:  # the working folder may have been removed
            continue
        if found.f_blocks and found.f_bavail * found.f_frsize < FULL_BYTES:
            full.append(f"{folder} ({found.f_blocks * found.f_frsize / 2**30:.1f} GiB)")


def _kernel_log() -> str:
    """Return the end of the kernel's log.

    Raises:
        OSError: it may not be read.
    """
    pieces: list[bytes] = []
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                pieces.append(os.read(log, 8192))  # one record
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten meanwhile
                continue
    finally:
        os.close(log)
    return b"".join(pieces)[-LOG_BYTES:].decode(errors="replace")


def _counter(path: str, name: str) -> int:
    at = (text := f"\n{_read(path)}").find(f"\n{name} ")
    return _number(text[at + len(name) + 1 :].split(None, 1)[0]) if at >= 0 else 0


def _stat(pid: int | str) -> list[str] | None:
    text = _read(f"/proc/{pid}/stat")
    return text.rpartition(")")[2].split() if text else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _number(text: str | None) -> int:
    return int(text) if text and text.strip().isdigit() else 0
