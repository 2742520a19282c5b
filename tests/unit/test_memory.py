"""Memory: who holds it, what grows; what a snapshot of a GPU's allocator shows."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import re
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import planted_leaks
import runs
from gateway_under_test import open_gateway
from raydebug.errors import RaydebugError
from raydebug.memory import screen
from raydebug.memory.growth import find_growth
from raydebug.memory.look import Look, wait_for_step
from raydebug.memory.look import look as look_at
from raydebug.protocol.gpu_snapshot import summarize
from raydebug.protocol.snapshot import SnapshotDocument
from raydebug.render import Paint
from raydebug.report.crash import crash_page
from raydebug.report.gpu_memory import gpu_memory_page
from raydebug.snapshot.console import SavedDebugger
from raydebug.snapshot.gpu_memory import gpu_memory_lines, read_gpu_snapshot
from raydebug.snapshot.load import read_document
from raydebug.worker import census, gpu_history, memory_in_use, process_memory, snapshot, spans

GIB = 2**30
LONG = os.environ.get("RAYDEBUG_TEST_LONG") == "1"
KEPT: list[Any] = []


# Who holds what

HOSTILE = """
import os, gc, threading
class Meta(type):
    def __eq__(cls, other): os._exit(7)
    def __hash__(cls): os._exit(8)
    def __instancecheck__(cls, one): os._exit(9)
class Hostile(metaclass=Meta):
    def _exit(self, *_): os._exit(6)
    __repr__ = __eq__ = __len__ = __bool__ = __iter__ = __getattr__ = __sizeof__ = __hash__ = _exit
    @property
    def __class__(self): os._exit(5)
class Items(list):
    __len__ = __iter__ = __getitem__ = lambda *_: os._exit(4)
class Names(dict):
    keys = items = values = __getitem__ = __iter__ = lambda *_: os._exit(3)
one = Hostile()
one.__dict__["kept"] = ["x" * 5_000_000]
some, names = Items(), Names()
list.append(some, one)
dict.__setitem__(names, "key", bytearray(3_000_000))
exec("f = lambda: 1", names)
FREEZE
from raydebug.worker.census import take
found = take()
for row in found["holders"][:2]:
    print(row["holder"], row["kind"], row["count"], row["bytes"])
"""


@pytest.mark.parametrize("freeze", ["", "gc.collect(); gc.freeze()"])
def test_hostile_classes_and_a_frozen_heap(freeze: str, tmp_path: Path) -> None:
    """A census calls no method of the user's classes, and finds what gc.freeze() hides."""
    program = tmp_path / "job.py"
    program.write_text(HOSTILE.replace("FREEZE", freeze))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.startswith("job.py one.kept[*] bytes 1 5000000")
    assert second.startswith("job.py names")
    assert second.endswith("bytes 1 3000000")


HOLDERS = """
import array, io, types
def fail(number):
    batch = "x" * (1_000_000 + number)
    raise ValueError(number)
errors, last, files = [], None, [array.array("b", bytes(3_000_000)), io.BytesIO()]
files[1].write(b"x" * 4_000_000)
for number in range(5):
    last = types.SimpleNamespace(before=last, data="x" * 1_000_000)
    try:
        fail(number)
    except ValueError as error:
        errors.append(error)
from raydebug.worker.census import take
for row in take()["holders"]:
    if row["bytes"] > 500_000:
        print(row["holder"], row["kind"], row["count"])
"""


def test_holders_of_large_objects(tmp_path: Path) -> None:
    """Errors that are kept hold their frames; a chain of objects is one name; arrays and files in memory count."""
    (tmp_path / "job.py").write_text(HOLDERS)
    done = subprocess.run([sys.executable, tmp_path / "job.py"], capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()) == {
        "job.py errors[*] fail() batch bytes 5", "job.py files[*] bytes 2", "job.py last['data'] bytes 1",
        "job.py last['before']['data'] bytes 4",
    }  # fmt: skip


def test_what_is_dropped_in_a_rest_of_a_census(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program drops while a census rests ends at once: the walk holds it by a weak reference."""
    KEPT.append(type("Batch", (), {})())
    reference = weakref.ref(KEPT[0])

    def rest(walk: Any) -> None:
        if id(reference()) in walk._seen:
            KEPT.clear()
            raise census._TimeIsOver

    monkeypatch.setattr(census._Walk, "_rest", rest)
    monkeypatch.setattr(census, "REST_EVERY", 1)
    with pytest.raises(census._TimeIsOver):
        census._Walk(time.monotonic() + 100).run()
    assert reference() is None


def test_a_census_is_cut_by_time() -> None:
    """A process with too many objects answers in time with what it has seen, and says that it is not all."""
    many = [[number] for number in range(200_000)]
    found = census.take(limit_s=0.0)
    assert found["cut"]
    assert sum(row["count"] for row in found["holders"]) < len(many)


def test_a_census_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk ends at a number of objects, also within one list; of very many names only the beginnings count."""
    tree: dict[str, Any] = {}
    for number in range(2_000):
        tree.setdefault(f"{number % 10}", {}).setdefault(f"{number // 10 % 10}", {}).setdefault(f"{number // 100}", {})
    monkeypatch.setattr(census, "MAX_ROWS", 20)
    walk = census._Walk(time.monotonic() + 100)
    walk._push(tree, "job.py tree")
    walk._drain()
    assert len(walk.rows) < 40
    assert walk.rows["job.py tree['9']", "objects"]["count"] > 100
    many = [[number] for number in range(3 * census.MANY)]
    monkeypatch.setattr(census, "MAX_SEEN", 1000)
    walk = census._Walk(time.monotonic() + 100)
    walk._push(many, "job.py many")
    with pytest.raises(census._TimeIsOver):
        walk._drain()
    assert (walk.is_cut, len(walk._seen) < 2 * census.MANY) == (True, True)


@pytest.mark.long
@pytest.mark.timeout(1500 if LONG else 240)
def test_planted_leaks(capsys: pytest.CaptureFixture[str]) -> None:
    """Of leaks planted in processes the holder is named by step 5; a process without one is not blamed.

    `RAYDEBUG_TEST_LONG=1` plants all twelve, and runs 20 healthy ones.
    """
    names = [one.name for one in planted_leaks.LEAKS] if LONG else ["module list", "closure", "fork"]
    missed, blamed = planted_leaks.table(names, 20 if LONG else 1)
    assert (missed <= LONG, blamed) == (True, 0), capsys.readouterr().out


@pytest.mark.alone
def test_the_verb(tmp_path: Path) -> None:
    """`raydebug memory` shows nodes and processes, `--growth` what grows and the next command, `--json` all of it."""
    leak = next(one for one in planted_leaks.LEAKS if one.name == "module list")
    with open_gateway(tmp_path) as gateway:
        program = gateway.start(planted_leaks.HEAD + leak.program + planted_leaks.TAIL, RAYDEBUG_JOB="j")
        assert program.stdout.readline() == "ready\n"
        environment = gateway.environment | {
            "RAYDEBUG_DASHBOARD": "http://127.0.0.1:9",
            "RAYDEBUG_GATEWAY_CLIENTS": f"127.0.0.1:{gateway.gateway_port}",
        }

        def ask(*options: str) -> tuple[str, str]:
            done = runs.raydebug("memory", *options, env=environment, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            print(done.stdout, done.stderr)
            return done.stdout, done.stderr

        node, head, _, process = [line for line in ask()[0].splitlines() if line.strip()]
        use = r"\S+ [GM]iB of \S+ GiB in use   /dev/shm .*   page cache .*   container "
        assert re.match(rf"node 127\.0\.0\.1   {use}", node)
        assert head.split() == ["process", "pid", "now", "peak", "shared"]
        assert str(program.pid) in process
        shown, said = ask("--growth", "2", "--seconds", "1.5")
        assert re.search(r"^grows: .*, kept by reward\.py KEPT\[\*\]$", shown, re.M)
        assert f"next: raydebug memory --pid {program.pid}  " in said
        assert "reward.py KEPT[*]: " in ask("--pid", str(program.pid))[0]
        document = json.loads(ask("--growth", "2", "--seconds", "1.5", "--json")[0])
        assert (document["version"], document["grows"][0]["holder"]) == (1, "reward.py KEPT[*]")
        assert runs.raydebug("memory", "--pid", "1", env=environment).stderr.startswith(
            "error: no processes have the id 1"
        )
        done = runs.raydebug("memory", "--growth", "2", env=environment)
        assert done.stderr.splitlines()[0] == "error: no process of this job says its step"


# What grows


def look(at_s: float, step: int | None, **bytes_of: int) -> Look:
    """Return a look at one process that holds so many bytes under each name."""
    process = {"pid": 7, "ip": None, "job": "j", "actor": "RewardLoopWorker", "rank": None}
    rows = [{"holder": name, "kind": "tensor", "what": "[9]", "count": size // 1000, "bytes": size}
            for name, size in bytes_of.items()]  # fmt: skip
    answer = {"process": process, "instance": "i", "state": "answered", "answer": {"pss": 1}, "cause": ""}
    return Look([answer], {"i": {"holders": rows}}, step, at_s)


def test_growth_is_even() -> None:
    """What grows in each step is named with its rate; what came once, comes and goes, or shrinks is not."""
    looks = [look(0, 3, KEPT=10**6, batch=5 * 10**6, once=0), look(9, 4, KEPT=2 * 10**6, batch=9 * 10**6, once=10**7),
             look(99, 5, KEPT=3 * 10**6, batch=4 * 10**6, once=10**7)]  # fmt: skip
    (found,) = find_growth(looks)
    assert found.text() == "RewardLoopWorker, +1e+03 tensors a step [9] (+977 KiB), kept by KEPT"


def test_growth_of_a_dict_with_new_keys() -> None:
    """Keys are no part of a name: a dict that gets new ones is one holder."""
    looks = [look(at, None, **{f"by_uid['{n}']": 10**6 for n in range(at)}) for at in (2, 4, 6)]
    (found,) = find_growth(looks)
    assert (found.holder, found.per, round(found.bytes)) == ("by_uid[*]", "second", 10**6)


def test_growth_of_what_has_no_step() -> None:
    """A look in which no process says a step has the others judged by their times; a process that came later is not."""
    (found,) = find_growth([look(0, 3, KEPT=10**6), look(1, None, KEPT=2 * 10**6), look(2, 5, KEPT=3 * 10**6)])
    assert found.per == "second"
    late = look(0, 3)
    late.census.clear()
    assert find_growth([late, look(1, 4, KEPT=2 * 10**6), look(2, 5, KEPT=3 * 10**6)]) == []


def test_memory_that_no_object_holds() -> None:
    """A process that grows, of which no object does, is named as such."""
    looks = [look(at, at) for at in range(3)]
    for at, one in enumerate(looks):
        one.processes[0]["answer"] = {"pss": (at + 1) * 20 * 2**20}
    (found,) = find_growth(looks)
    assert found.text() == "RewardLoopWorker, +20 MiB a step, of which raydebug sees no holder"


@pytest.mark.parametrize("is_there", [True, False], ids=["silent", "not there"])
def test_a_process_without_an_answer_at_first(is_there: bool) -> None:  # noqa: FBT001
    """A process that was silent at the first look, or came after it, has not grown; nor have children that were."""
    first, last = look(0, 0), look(1, 1)
    (process,) = last.processes
    process["answer"] = {"pss": 900 * 2**20, "parent": 7}
    child: Any = {**process, "instance": "c", "process": {**process["process"], "pid": 8}}
    first = replace(first, processes=[{**one, "answer": None} for one in (process, child)] if is_there else [child])
    process["answer"] = {"pss": 900 * 2**20}
    assert find_growth([first, replace(last, processes=[process, child])]) == []


@pytest.mark.parametrize("where", ["processes", "others"])
def test_children_of_the_process_that_is_asked(where: str) -> None:
    """Child processes are counted, also where `--pid` asks for their parent alone."""
    looks = []
    for at in range(3):
        one = look(at, at)
        child = {**one.processes[0], "answer": {"parent": 7, "forked": "train.py:3 f"}}
        children = [{**child, "instance": f"c{n}", "process": {**child["process"], "pid": 10 + n}} for n in range(at)]
        looks.append(replace(one, **{where: [*getattr(one, where), *children]}))
    (found,) = find_growth(looks)
    assert found.text() == "RewardLoopWorker, +1 child processes a step, forked at train.py:3 f"


# One process


def test_a_process_says_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process says its memory and its node's; the phase of its maximum is the one that ended with a higher peak."""
    peaks = iter([100, 300, 300, 400])
    monkeypatch.setattr(process_memory, "_peak_kib", 0)
    monkeypatch.setattr(process_memory, "_peak_phase", "")
    monkeypatch.setattr(spans, "recorders", [process_memory.note_peak])
    usage = process_memory.resource.getrusage
    monkeypatch.setattr(process_memory.resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=next(peaks)))
    with spans.span("gen"):
        pass
    with spans.span("update_actor"):
        pass
    assert process_memory._peak_phase == "update_actor"
    monkeypatch.setattr(process_memory.resource, "getrusage", usage)
    found = process_memory.read_memory()
    assert found["rss"] >= found["pss"] > 10**6
    assert found["node"]["total"] > found["node"]["available"] > 0
    assert (found["peak_phase"], found["parent"]) == ("update_actor", os.getppid())


class FakeNvml:
    """The driver's library with two GPUs; the first one has two processes, of which one has an unknown size."""

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802 - NVML's name, as those below
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, info: Any) -> int:  # noqa: N802
        info._obj.total, info._obj.used = 80 * GIB, (50 if handle.value == 1 else 1) * GIB
        return 0

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, uuid: Any, _length: Any) -> int:  # noqa: N802
        uuid.value = f"GPU-{handle.value}".encode()
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: ctypes.c_void_p, count: Any, those: Any) -> int:  # noqa: N802
        count._obj.value = 2 if handle.value == 1 else 0
        those[0].pid, those[0].used = os.getpid(), 45 * GIB
        those[1].pid, those[1].used = 1, 2**64 - 1
        return 0


def test_gpus_by_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's bytes by process, torch's and vLLM's, without what sleeps, are joined; the rest is its own row."""
    monkeypatch.setattr(memory_in_use, "_nvml", FakeNvml)
    numbers = {"reserved_bytes.all.current": 12 * GIB}
    cuda = SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1, memory_stats=lambda _: numbers,
                           get_device_properties=lambda _: SimpleNamespace(uuid="1"))  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    data = [SimpleNamespace(handle=(0, 20 * GIB, 1, 1), is_asleep=False),
            SimpleNamespace(handle=(0, 8 * GIB, 1, 1), is_asleep=True)]  # fmt: skip
    allocator = SimpleNamespace(instance=SimpleNamespace(pointer_to_data=dict(enumerate(data))))
    monkeypatch.setitem(sys.modules, "vllm.device_allocator.cumem", SimpleNamespace(CuMemAllocator=allocator))
    found = process_memory.read_memory()["gpus"]
    assert found[0] == {"gpu": "GPU-1", "used": 50 * GIB, "total": 80 * GIB, "own": 45 * GIB,
                        "reserved": 12 * GIB, "pool": 28 * GIB, "asleep": 8 * GIB}  # fmt: skip
    shown = look(0, 1)
    shown.processes[0]["answer"] = {"rss": GIB, "gpus": found}
    document = screen.document(shown, {}, [])
    first, second = (screen.gpu_line(one) for one in document["gpus"])
    pool = "vLLM's sleep pool 28.0 GiB (8.00 GiB of it sleeps, not on the GPU)"
    assert first == f"  GPU-1   50.0 GiB of 80.0 GiB in use   torch 12.0 GiB   {pool}   the rest 18.0 GiB"
    assert second.endswith("torch 0 MiB   vLLM's sleep pool 0 MiB   the rest 1.00 GiB")
    assert screen.process_row(document["processes"][0])[6:8] == ["12.0 GiB", "33.0 GiB"]


def test_change_per_step() -> None:
    """The change of a process per step is the median between the ends of steps, without the first one."""
    steps = [{"end_s": at} for at in (10.0, 20.0, 30.0, 40.0)]
    samples = [(1.0, 100.0), (9.0, 500.0), (19.0, 510.0), (29.0, 520.0), (39.0, 600.0)]
    run = SimpleNamespace(steps=steps, memory=[SimpleNamespace(process="W", node="n", samples=samples)])
    assert screen.per_step(run) == {("W", "n"): 45 * 2**20}
    assert screen.per_step(None) == {}


def test_changes_of_workers() -> None:
    """A worker is known by its class, below its name too; those of one class on a node share what these have."""
    names = ["make.<locals>.WorkerDict rank 1", "pt_main of make.<locals>.WorkerDict rank 1", "AgentLoopWorker"]
    steps = [{"end_s": at} for at in (1.0, 2.0, 3.0)]
    samples = [(at, 80 * at) for at in range(4)]
    run = SimpleNamespace(
        steps=steps, memory=[SimpleNamespace(process=name, node="n", samples=samples) for name in names]
    )
    answer = look(0, 1).processes[0]
    actors = {"WorkerDict aWorkerDict_0:1": 1, "AgentLoopWorker agent_0": None, "AgentLoopWorker agent_1": None}
    those: Any = [{**answer, "process": {**answer["process"], "ip": "n", "actor": actor, "rank": rank}}
                  for actor, rank in actors.items()]  # fmt: skip
    child: Any = {**those[0], "process": {**those[0]["process"], "child_of": 7}}
    one = Look([*those[:2], child], {}, 1, 0.0, those[2:])
    shown = screen.document(one, screen.per_step(run), [])["processes"]
    assert [row["per_step"] for row in shown] == [80 * 2**20, 40 * 2**20, None]


def test_a_node_whose_first_process_is_silent() -> None:
    """The line of a node is from the first process that says it."""
    one = look(0, 1)
    silent: Any = {**one.processes[0], "answer": None, "state": "silent"}
    one.processes[0]["answer"] = {"node": {"total": GIB, "available": 0, "cached": 0}}
    document = screen.document(replace(one, processes=[silent, *one.processes]), {}, [])
    assert screen.node_line(document["nodes"][0]).startswith("node this node   1.00 GiB of 1.00 GiB in use")


def test_a_pid_that_two_nodes_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process id that two nodes have is refused, with both; with the node it is one process."""
    one: Any = look(0, 1).processes[0]
    there = [{**one, "instance": name, "process": {**one["process"], "ip": ip}}
             for name, ip in (("a", "10.0.0.4"), ("b", "10.0.0.5"))]  # fmt: skip
    monkeypatch.setattr("raydebug.memory.look.ask_processes", lambda *_, **__: there)
    monkeypatch.setattr("raydebug.memory.look.fetch_step", lambda *_: None)
    with pytest.raises(RaydebugError, match="2 processes have the id 7") as refused:
        look_at(None, "j", pid="7")
    assert refused.value.fix == "name one: 7@10.0.0.4"
    assert [process["instance"] for process in look_at(None, "j", pid="7@10.0.0.5").processes] == ["b"]


OPEN = "from raydebug.worker import control_channel\ncontrol_channel.open_channel()\n"


# Snapshots of a GPU's allocator


def made_snapshot(kept: int, *, oom: bool = False) -> dict[str, Any]:
    """Return a snapshot in torch's format."""

    def frame(file: str, line: int, name: str) -> dict[str, Any]:
        return {"filename": file, "line": line, "name": name}

    inside = [frame("/x/site-packages/torch/nn/modules/linear.py", 134, "forward")]
    forward = [*inside, frame("/job/train.py", 40, "forward")]
    blocks = [{"size": 2**21, "state": "active_allocated", "frames": forward}] * 64
    blocks += [{"size": 2**20, "state": "active_allocated", "frames": [frame("/job/train.py", 71, "log_step")]}] * kept
    blocks += [{"size": 2**24, "state": "inactive", "frames": []}] * 4
    blocks += [{"size": 2**22, "state": "active_awaiting_free"}]
    entry = {"action": "oom", "size": 2**25, "device_free": 2**20, "frames": [*inside, frame("/job/train.py", 40, "f")]}
    total = sum(one["size"] for one in blocks)
    return {"segments": [{"total_size": total, "blocks": blocks}], "device_traces": [[entry] if oom else []]}


@pytest.fixture
def snapshots(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old.pickle", tmp_path / "new.pickle"
    old.write_bytes(pickle.dumps(made_snapshot(24)))
    new.write_bytes(pickle.dumps(made_snapshot(160, oom=True)))
    return old, new


def test_two_snapshots(snapshots: tuple[Path, Path]) -> None:
    """Two snapshots give the line that grew; an out of memory with enough free in small pieces is said to be one."""
    old, new = (read_gpu_snapshot(one) for one in snapshots)
    whole, failed, cause, grown = gpu_memory_lines(new, old)
    assert whole.startswith("GPU memory of torch: 288.0 MiB live of 356.0 MiB reserved; free in it 64.0 MiB, largest")
    assert whole.endswith("largest block 16.0 MiB; waits for a stream 4.0 MiB")
    assert failed == "out of memory: 32.0 MiB asked at /job/train.py:40 f; the GPU had 1.0 MiB free"
    assert cause.startswith("cause: enough is free, in pieces that are too small")
    assert grown == "  +136.0 MiB  +136 tensors  /job/train.py:71 log_step, now 160.0 MiB"
    assert gpu_memory_lines(old)[1] == "   128.0 MiB  64 tensors  /job/train.py:40 forward"
    assert summarize({"segments": []})["lines"] == []
    page = gpu_memory_page("new.pickle", new, old, "<old>")
    assert "/job/train.py:71 log_step" in page
    assert "&lt;old&gt;" in page
    assert "http" not in page.partition("</style>")[2].replace("http-equiv", "")


class Runs:
    """Code in a pickle."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/raydebug-was-here",)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (pickle.dumps(Runs()), "UnpicklingError: it asks for posix.system, which is no data"),
        (pickle.dumps({"segments": [{"total_size": 1, "blocks": [Runs()]}]}), "it asks for posix.system"),
        (b"cbuiltins\neval\n.", "it asks for builtins.eval"),
        (pickle.dumps([1]), "TypeError"),
        (pickle.dumps({"segments": [{"total_size": -1, "blocks": []}]}), "a size is no number of bytes"),
        (b"", "EOFError"),
        (b"Nr\0\0\0\4.", "MemoryError"),  # a memo of 2**26 entries
        (b"\x80\x04\x95", "UnpicklingError"),
        (pickle.dumps({"segments": [{"total_size": 1, "blocks": [{"size": "1", "state": []}]}]}), "ValueError"),
    ],
)  # fmt: skip
def test_hostile_snapshots(content: bytes, cause: str, tmp_path: Path) -> None:
    """A pickle with code in it is refused and runs nothing; so is whatever is no snapshot."""
    path = tmp_path / "bad.pickle"
    path.write_bytes(content)
    with pytest.raises(RaydebugError) as refused:
        read_gpu_snapshot(path)
    assert cause in refused.value.cause
    assert not Path("/tmp/raydebug-was-here").exists()


# In a process that has no freed memory to take first.
READS = """
import pathlib, sys
from raydebug.errors import RaydebugError
from raydebug.snapshot import gpu_memory
gpu_memory.CGROUP = pathlib.Path(sys.argv[1])
try:
    gpu_memory.read_gpu_snapshot(pathlib.Path(sys.argv[2]))
except RaydebugError as refused:
    print(refused.cause)
"""


def test_snapshot_larger_than_the_free_memory(tmp_path: Path) -> None:
    """A snapshot takes no more memory than its cgroup has free, and is refused with the reason."""
    path = tmp_path / "large.pickle"
    path.write_bytes(pickle.dumps([[{"size": number}] for number in range(200_000)]))
    (tmp_path / "memory.current").write_text("0\n")
    for limit, cause in ((str(2**21), "MemoryError: reading it takes more than 2 MiB"), ("max", "TypeError")):
        (tmp_path / "memory.max").write_text(limit)
        done = subprocess.run(
            [sys.executable, "-c", READS, tmp_path, path], capture_output=True, text=True, check=False
        )
        assert cause in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--output", "x.html"], "--output does not stand alone"),
        (["--seconds", "5"], "--seconds does not stand alone"),
        (["--growth", "2", "--snapshot", "x"], "--growth and --snapshot do not go together"),
        (["--pid", "7", "--snapshot", "x"], "--pid and --snapshot do not go together"),
        (["--snapshot", "missing.pickle"], "this file is no snapshot of GPU memory"),
    ],
)
def test_options(options: list[str], error: str, tmp_path: Path) -> None:
    """Options that do not fit, and a file that is missing, are errors in three lines."""
    done = runs.raydebug("memory", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {error}\ncause: ")


def test_snapshots_on_the_command_line(snapshots: tuple[Path, Path], tmp_path: Path) -> None:
    """`--snapshot NEW OLD -o PAGE` prints the change, and writes the page."""
    old, new = snapshots
    done = runs.raydebug("memory", "--snapshot", str(new), str(old), "-o", str(tmp_path / "a.html"))
    assert (done.returncode, done.stderr) == (0, f"page: {tmp_path / 'a.html'}\n")
    assert "/job/train.py:71 log_step" in done.stdout
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_a_job_that_ends_before_the_step(tmp_path: Path) -> None:
    """Who waits for a step is told within seconds that no process is left."""
    with open_gateway(tmp_path) as gateway:
        gateway.start(OPEN).wait(20)
        with pytest.raises(RaydebugError, match="the job has ended"):
            wait_for_step(gateway, None, 3)


# An out of memory


class FakeTorch:
    """The parts of torch that record GPU memory."""

    def __init__(self, *, is_on: bool = False) -> None:
        self.waiting: list[Any] = []
        self.recorded: list[dict[str, Any]] = []
        self.observers: list[Any] = []
        memory = SimpleNamespace(
            _record_memory_history=lambda **how: self.recorded.append(how), _snapshot=lambda _: made_snapshot(5)
        )
        self.cuda = SimpleNamespace(_lazy_call=self.waiting.append, memory=memory)
        self._C = SimpleNamespace(_cuda_isHistoryEnabled=lambda: is_on,
                                  _cuda_attach_out_of_memory_observer=self.observers.append)  # fmt: skip


def test_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch records from its first use of CUDA; an out of memory leaves a summary in the snapshot of its crash."""
    monkeypatch.setattr(gpu_history, "last", None)
    monkeypatch.setattr(gpu_history, "_count", 0)
    torch = FakeTorch()
    gpu_history.watch(torch)
    assert (torch.recorded, torch.observers) == ([], [])
    torch.waiting[0]()
    assert torch.recorded == [{"stacks": "python", "max_entries": 200_000}]
    torch.observers[0](0, 2 * GIB, 80 * GIB, GIB)
    assert (gpu_history.last["asked"], gpu_history.last["device_free"]) == (2 * GIB, GIB)

    class OutOfMemoryError(RuntimeError):
        pass

    def document_of(error: Exception) -> SnapshotDocument:
        try:
            raise error
        except Exception as caught:
            frames = snapshot.frames_of(caught)
            return snapshot.document_of(caught, frames, snapshot.summarize(caught, frames, "crash"), "main")

    path = tmp_path / "oom.snapshot.gz"
    path.write_bytes(snapshot.compress(document_of(OutOfMemoryError("CUDA out of memory"))))
    document = read_document(path)
    assert document["gpu_memory"]["lines"][1]["line"].endswith("log_step")
    failed = "out of memory: 2.00 GiB asked"
    assert failed in crash_page(document)
    assert failed in SavedDebugger(document, Paint(), interactive=False).opening()
    assert "gpu_memory" not in document_of(ValueError("another"))


def test_a_history_of_the_users(capfd: pytest.CaptureFixture[str]) -> None:
    """Where torch records already, as for verl, that stays; a torch without these functions keeps the job running."""
    torch = FakeTorch(is_on=True)
    gpu_history.watch(torch)
    torch.waiting[0]()
    assert (torch.recorded, len(torch.observers)) == ([], 1)
    del torch._C._cuda_isHistoryEnabled
    torch.waiting[0]()
    assert "no record of GPU memory" in capfd.readouterr().err
