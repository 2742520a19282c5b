"""What the gateway knows of the end of a process: real processes that dial a real gateway, and die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway_under_test import GatewayUnderTest
from raydebug.gateway.ended import Ended
from raydebug.jobs.certificate import Evidence, certify
from raydebug.jobs.deaths import fetch_deaths
from raydebug.protocol import node_facts
from raydebug.protocol.death import EndedProcess

JOB = {"RAYDEBUG_JOB": "run-1"}
OPEN = """\
import ctypes, mmap, os, signal, sys, tempfile, threading, time
from raydebug.worker import control_channel
control_channel.open_channel()
while getattr(sys.modules.get("raydebug.worker.last_words"), "_connection", None) is None:
    time.sleep(0.01)
time.sleep(0.2)  # the gateway has read it
"""
BUS = """\
def lose():
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        area = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        print(area[0])
lose()
"""
DEATHS = {
    "sigkill": ("os.kill(os.getpid(), signal.SIGKILL)", {"status": signal.SIGKILL}),
    "sigterm": ("os.kill(os.getpid(), signal.SIGTERM)", {"status": signal.SIGTERM}),
    "sigsegv": ("def read(): ctypes.string_at(8)\nread()", {"status": signal.SIGSEGV, "fault": "in read"}),
    "sigabrt": ("ctypes.CDLL(None).abort()", {"status": signal.SIGABRT, "fault": "Fatal Python error: Aborted"}),
    "sigbus": (BUS, {"status": signal.SIGBUS, "fault": "in lose"}),
    "sigfpe": ("os.kill(os.getpid(), signal.SIGFPE)", {"status": signal.SIGFPE, "fault": "Floating"}),
    "os-exit": (
        "def leave(): os._exit(5)\nleave()",
        {"status": 5 << 8, "words": {"how": "os._exit", "code": 5, "place": "leave", "thread": "MainThread"}},
    ),
    "thread-exit": (
        "threading.Thread(target=lambda: os._exit(7), name='loader').start()\ntime.sleep(30)",
        {"status": 7 << 8, "words": {"how": "os._exit", "code": 7, "place": "<lambda>", "thread": "loader"}},
    ),
    "sys-exit": ("sys.exit(3)", {"status": 3 << 8, "words": {"how": "exit"}}),
    "disk-full": (
        "def save(): open('/dev/full', 'wb', 0).write(b'x')\nsave()",
        {"status": 1 << 8, "words": {"error": "OSError", "reason": "No space left", "place": "save"}},
    ),
    "c-exit": ("ctypes.CDLL(None)._exit(9)", {"status": 9 << 8, "words": {}}),
}  # fmt: skip


def ended(gateway: GatewayUnderTest, count: int = 1) -> list[EndedProcess]:
    deadline = time.monotonic() + 30
    found: list[EndedProcess] = []
    while len(found) < count and time.monotonic() < deadline:
        found = fetch_deaths(gateway, "run-1")
        time.sleep(0.02)
    return found


def test_the_gateway_knows_how_processes_ended(gateway: GatewayUnderTest) -> None:
    """The exit status, the stack at a fatal signal, and the place of an exit are known after the end."""
    names = {gateway.start(OPEN + program, **JOB).pid: name for name, (program, _) in DEATHS.items()}
    found = {names[one["pid"] or 0]: one for one in ended(gateway, len(DEATHS))}
    for name, (_, expected) in DEATHS.items():
        facts: dict[str, Any] = {"fault": "", **expected}
        assert found[name]["status"] == facts["status"], name
        assert facts["fault"] in found[name]["fault"], name
        for field, value in facts.get("words", {}).items():
            said = found[name]["words"][field]
            assert said == value or (isinstance(value, str) and value in said), (name, found[name]["words"])
        assert found[name]["node"]["total"] > 0, name


def test_a_process_that_ends_well_is_no_death(gateway: GatewayUnderTest) -> None:
    """Of two processes that end, only the one that was killed is listed."""
    gateway.start(OPEN, **JOB).wait(20)
    bad = gateway.start(OPEN + "os.kill(os.getpid(), 9)", **JOB)
    bad.wait(20)
    assert [one["pid"] for one in ended(gateway)] == [bad.pid]


def test_a_child_does_not_hide_the_end_of_its_parent(gateway: GatewayUnderTest) -> None:
    """A forked child that lives on has the parent's connection closed, and has one of its own."""
    child = "time.sleep(0.5)\nwhile words._connection is None: time.sleep(0.01)\ntime.sleep(1)\nos._exit(4)"
    words = "words = sys.modules['raydebug.worker.last_words']\n"
    parent = gateway.start(f"{OPEN}{words}if os.fork():\n    os.kill(os.getpid(), 9)\n{child}", **JOB)
    parent.wait(20)
    assert [(one["pid"], one["status"]) for one in ended(gateway)] == [(parent.pid, 9)]
    assert [one["status"] for one in ended(gateway, 2)] == [9, 4 << 8]


def test_a_process_of_the_job_says_whom_it_ends(gateway: GatewayUnderTest) -> None:
    """A parent that ends its child, as a pool does, is named with its line; a child that ends well is no death."""
    program = (
        "import multiprocessing\nfork = multiprocessing.get_context('fork').Process\n"
        "def clean(one):\n    time.sleep(2)\n    one.terminate()\n    one.join()\n"
        "well = fork(target=time.sleep, args=(1,)); well.start()\n"
        "one = fork(target=time.sleep, args=(60,)); one.start()\nclean(one)\nprint(one.pid)\n"
    )
    parent = gateway.start(OPEN + program, **JOB)
    out, _ = parent.communicate(timeout=30)
    (found,) = ended(gateway)
    assert (found["pid"], found["status"], found["kill"]["by"]) == (int(out), 15, parent.pid)
    assert "clean" in found["kill"]["place"]
    assert certify(Evidence(found)).kind == "followed"


@pytest.mark.parametrize(
    ("pid", "ago_s", "job", "is_named"),
    [(4242, 0.0, "run-1", True), (4242, 60.0, "run-1", False), (4243, 0.0, "run-1", False), (4242, 0.0, "x", False)],
)
async def test_a_signal_names_the_process_that_it_ended(
    pid: int, ago_s: float, job: str, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal long ago, one to an earlier process with the same id, and what another job says name nobody."""
    known, now = Ended(lambda _: []), time.time()
    monkeypatch.setattr(time, "time", lambda: now - ago_s)
    for target in (pid, 4243):
        parent = channel_of("parent", 50)
        parent.about["job"] = job
        known.note_kill(parent, {"pid": target, "signal": 9, "place": "/job/t.py:9 clean"})
    monkeypatch.setattr(time, "time", lambda: now)
    known.watch(channel_of("another", 4243))
    known.note(channel_of("it", pid))
    while not (ends := known.of_job("run-1")):
        await asyncio.sleep(0.01)
    assert bool(ends[0]["kill"]) is is_named


async def test_numbers_of_ends_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends of a gateway that was started again have higher numbers, however many ended in one second before."""
    real, before = time.time_ns, Ended(lambda _: [])
    last = [next(before._numbers) for _ in range(2000)][-1]
    monkeypatch.setattr(time, "time_ns", lambda: real() + 10_000_000)
    assert next(Ended(lambda _: [])._numbers) > last


async def test_a_process_that_is_back() -> None:
    """A process that connects again has not ended; who has seen all ends is told."""
    known = Ended(lambda _: [])
    known.note(SimpleNamespace(**{**vars(channel_of("unborn", 911)), "birth": {}}))  # it ended before its introduction
    for instance in ("it", "another"):
        known.note(channel_of(instance, 4242))
    while len(known.of_job("run-1")) < 2:
        await asyncio.sleep(0.01)
    assert {end["instance"] for end in known.of_job("run-1")} == {"it", "another"}
    last = max(end["number"] for end in known.of_job("run-1"))
    assert known.of_job("run-1", last) == []
    known.watch(channel_of("it", 4242))
    assert [(end["instance"], end["is_back"]) for end in known.of_job("run-1", last)] == [("it", True)]


async def test_a_raylet_is_held_while_it_has_processes() -> None:
    """The file that holds a raylet is closed with the last process that has named it."""
    known, before = Ended(lambda _: []), len([*Path("/proc/self/fd").iterdir()])
    channels = [channel_of(instance, os.getpid()) for instance in "abc"]
    for channel, raylet in zip(channels, (os.getpid(), os.getpid(), os.getppid()), strict=True):
        channel.birth.update(ns=known._here, raylet=raylet, started=node_facts.started_at(os.getpid()))
        known.watch(channel)
    for channel, left in zip(channels, (4, 2, 0), strict=True):
        await known._gather(channel, 0.0)
        assert len([*Path("/proc/self/fd").iterdir()]) - before == left


def channel_of(instance: str, pid: int) -> Any:
    """Return what the gateway has of a process."""
    about = {"pid": pid, "job": "run-1", "instance": instance}
    words: dict[str, Any] = {"words": {}, "dump": b"", "is_closing": True, "describe": lambda: {"ip": "n"}}
    kind = type("Channel", (SimpleNamespace,), {"__hash__": object.__hash__})
    return kind(instance=instance, about=about, birth={"ns": "boot pid:[7]", "started": 5}, **words)


USERS = "import faulthandler\nfaulthandler.enable()\n"
LEAVE = "from raydebug.worker import last_words\nlast_words.leave()\n"


@pytest.mark.parametrize("program", [USERS + OPEN, OPEN + USERS + LEAVE], ids=["before", "after"])
def test_a_users_faulthandler_stays(gateway: GatewayUnderTest, program: str) -> None:
    """Where the program has faulthandler on, its text goes where the program wants it, also without the gateway."""
    one = gateway.start(program + "ctypes.string_at(8)", **JOB)
    _, said = one.communicate(timeout=60)
    assert "Fatal Python error: Segmentation fault" in said
    (found,) = ended(gateway)
    assert (found["status"], found["fault"]) == (signal.SIGSEGV, "")


SEES_ITSELF = """
import faulthandler, multiprocessing, os, pickle, signal, sys, threading, time, traceback
class Mine: __index__ = lambda self: os.getpid()
def tried(call):
    try: return call()
    except Exception as error: return f"{type(error).__name__}: {error}"
if __name__ == "__main__":
    named = (os._exit, os.kill, traceback.print_exc, threading.excepthook, sys.excepthook, sys.breakpointhook,
             faulthandler.enable, faulthandler.is_enabled)
    print([b"raydebug" in pickle.dumps(one) or pickle.loads(pickle.dumps(one)) is one for one in named])
    child = multiprocessing.get_context("spawn").Process(target=traceback.print_exc)
    print(tried(child.start), tried(child.join), child.exitcode)
    print([tried(lambda: os.kill(pid, 0)) for pid in (Mine(), "x", 1.5, 2**22 - 3)])
    for one in ("is_enabled", "disable", "enable", "is_enabled", "disable", "is_enabled"):
        print(getattr(faulthandler, one)())
"""
ALARM = """
signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("of the program")))
words = sys.modules["raydebug.worker.last_words"]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}), os.kill(os.getpid(), signal.SIGTERM)
print(signal.sigwait({signal.SIGTERM}), flush=True)
words._connection[1].acquire()
signal.setitimer(signal.ITIMER_REAL, 0.05)
try: os.kill(os.getpid(), signal.SIGCONT)
except TimeoutError as error: print(error, flush=True)
os._exit(0)
"""


def test_a_program_sees_its_own_functions(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    """What is replaced pickles by its own name, takes and refuses the same arguments, and answers for the program."""
    (tmp_path / "plain.py").write_text(SEES_ITSELF)
    plain = subprocess.run([sys.executable, tmp_path / "plain.py"], text=True, capture_output=True, check=True).stdout
    hooked, errors = gateway.start(OPEN + SEES_ITSELF, **JOB).communicate(timeout=60)
    assert hooked == plain, errors


def test_a_signal_handler_raises_while_a_message_waits(gateway: GatewayUnderTest) -> None:
    """What a signal handler raises while `os.kill` waits to say so reaches the program; our thread takes no signal."""
    assert gateway.start(OPEN + ALARM, **JOB).communicate(timeout=60)[0] == "15\nof the program\n"


def test_an_exit_does_not_wait_for_a_stopped_gateway(gateway: GatewayUnderTest) -> None:
    """A gateway that does not read holds up no exit and no crash."""
    programs = [
        gateway.start(f"{OPEN}print('up', flush=True)\nsys.stdin.read()\n{end}", **JOB)
        for end in ("time.sleep(1)\nos._exit(5)", "time.sleep(1)\nctypes.string_at(8)")
    ]
    for one in programs:
        one.stdout.readline()
    os.kill(gateway.process.pid, signal.SIGSTOP)
    try:
        assert [one.wait(10) for one in programs] == [5, -signal.SIGSEGV]
    finally:
        os.kill(gateway.process.pid, signal.SIGCONT)


def test_a_pid_of_another_namespace_is_asked_of_a_peer(gateway: GatewayUnderTest) -> None:
    """Of a process that the gateway cannot see, another process of its node says what the node knows."""
    other = "from raydebug.protocol import node_facts\nnode_facts.namespace = lambda: 'another'\n" + OPEN
    peer = gateway.start(other + "print('up', flush=True)\ntime.sleep(60)", **JOB)
    peer.stdout.readline()
    gateway.start(other + "os.kill(os.getpid(), 9)", **JOB).wait(20)
    (found,) = ended(gateway)
    assert "status" not in found
    assert found["node"]["total"] > 0
    assert not found["alone"]


def test_lines_of_the_kernels_log() -> None:
    """Lines about the process since its start count, and ends by memory a short while ago; nothing else."""
    log = "\n".join([
        "6,1,1000000,-;eth0: link up",
        "3,5,1500000,-;Out of memory: Killed process 77 (firefox) total-vm:9kB",
        "3,2,2000000,-;Memory cgroup out of memory: Killed process 41 (old) total-vm:9kB",
        "6,3,95000000,-;python[77]: segfault at 8 ip 00007f sp 00007f error 4 in libc.so.6",
        "3,4,99000000,-;Out of memory: Killed process 5000 (ray::W) total-vm:9kB, anon-rss:8kB",
        " SUBSYSTEM=x",
    ])  # fmt: skip
    found = node_facts.kernel_lines(log, 77, 100.0, 50.0)
    assert [one[:20] for one in found] == ["python[77]: segfault", "other: Out of memory"]


def test_full_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder that was removed is left out; a file system that does not answer is waited for by one thread."""
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    plain, waits, asked = os.statvfs("/"), threading.Event(), []
    small = SimpleNamespace(f_blocks=2**20, f_bavail=0, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda folder: small if folder == "/tmp" else plain)  # noqa: S108
    assert node_facts.full_file_systems() == ["/tmp (4.0 GiB)"]

    def dead(folder: str) -> object:
        asked.append(folder)
        return waits.wait(20) and plain

    monkeypatch.setattr(os, "statvfs", dead)
    assert [node_facts.full_file_systems() for _ in range(2)] == [[], []]
    assert asked == ["/tmp"]  # noqa: S108
    waits.set()


GROUPS = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]  # of version 1 and 2
LIMITS = {"memory.limit_in_bytes": "memory.oom_control", "memory.max": "memory.events"}


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A cgroup with a limit of 100 MiB."""
    try:
        folder = next(one for one in GROUPS if one.is_dir()) / f"raydebug-{os.getpid()}"
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    limit = next((folder / name for name in LIMITS if (folder / name).exists()), None)
    try:
        if limit is None:
            pytest.skip("its memory cannot be limited here")
        limit.write_text(str(100 * 2**20))
        yield folder
    finally:
        folder.rmdir()


def test_the_kernel_ends_a_process_for_memory(small_group: Path, gateway: GatewayUnderTest) -> None:
    """A process that the kernel ends at its cgroup's limit has a certificate with the limit and what it held."""
    join = f"with open('{small_group}/cgroup.procs', 'w') as file: file.write(str(os.getpid()))\n"
    eats = "held = []\nwhile True: held.append(bytearray(b'x' * 2**22))"
    one = gateway.start(f"import os\n{join}{OPEN}{eats}", **JOB)
    one.wait(30)
    (found,) = ended(gateway)
    certificate = certify(Evidence(found))
    assert certificate.kind == "kernel-oom-container", found
    assert "memory of the container: 0.098 of 0.098 GiB" in certificate.text
    if not found["node"]["unread"]:
        assert "it held 0." in certificate.text
