"""What threads and tasks of this process wait for, and who has it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import multiprocessing
import os
import socket
import sys
import threading
import time
import tracemalloc
import types
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import pytest

from raydebug.protocol.records import StacksRecord, ThreadStack, read
from raydebug.worker import stacks, thread_waits
from raydebug.worker.stacks import read_open_files

Start = Callable[..., threading.Thread]


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    """What all threads of a test wait for in the end."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def begin(stop: threading.Event) -> Iterator[Start]:
    """Start a thread by its name; it ends with the test."""
    started: list[threading.Thread] = []

    def start(name: str, function: Callable[..., object], *args: object) -> threading.Thread:
        started.append(threading.Thread(target=function, args=args, name=name, daemon=True))
        started[-1].start()
        time.sleep(0.2)
        return started[-1]

    yield start
    stop.set()
    for one in started:
        one.join(5)


def look() -> dict[str, ThreadStack]:
    """Return the stacks of this process by name, as the gateway reads them."""
    return {one["name"]: one for one in read(stacks.collect(), StacksRecord)["threads"]}


def test_thread_that_is_joined(begin: Start, stop: threading.Event) -> None:
    """A thread that joins another one awaits what that one is."""
    worker = begin("fetcher", stop.wait)
    begin("joins", worker.join)
    seen = look()
    assert seen["joins"]["awaits"][0] in seen["fetcher"]["holds"]


def test_future_of_a_pool(begin: Start, stop: threading.Event) -> None:
    """A thread that waits for a future awaits the thread of the pool that works for it, not another one."""
    with ThreadPoolExecutor(2, "pool") as pool:
        futures = [pool.submit(stop.wait) for _ in range(2)]
        begin("waits", futures[1].result)
        seen = look()
        stop.set()
    assert [name for name in ("pool_0", "pool_1") if seen["waits"]["awaits"][0] in seen[name]["holds"]] == ["pool_1"]


def test_tasks_of_asyncio(begin: Start, stop: threading.Event) -> None:
    """A task awaits the tasks that it gathers, and a task in an executor the thread that works for it."""

    async def in_executor() -> None:
        await asyncio.get_running_loop().run_in_executor(None, stop.wait)

    async def run() -> None:
        inner = asyncio.create_task(in_executor(), name="inner")
        await asyncio.create_task(gather(inner), name="outer")

    async def gather(inner: asyncio.Task[None]) -> None:
        await asyncio.gather(inner, asyncio.sleep(0))

    begin("loop", lambda: asyncio.run(run()))
    seen = look()
    assert seen["task outer"]["awaits"][0] in seen["task inner"]["holds"]
    (thread,) = [one for name, one in seen.items() if name.startswith("asyncio_")]
    assert seen["task inner"]["awaits"][0] in thread["holds"]


@pytest.mark.parametrize("how", ["group", "shield"])
def test_tasks_of_a_group(begin: Start, stop: threading.Event, how: str) -> None:
    """A task awaits those of its TaskGroup, and the one that it shields from cancellation."""

    async def run() -> None:
        async def tool() -> None:
            await asyncio.to_thread(stop.wait)

        async def rollout() -> None:
            if how == "shield":
                await asyncio.shield(asyncio.create_task(tool(), name="inner"))
                return
            async with asyncio.TaskGroup() as group:
                group.create_task(tool(), name="inner")

        await asyncio.create_task(rollout(), name="outer")

    begin("loop", lambda: asyncio.run(run()))
    seen = look()
    assert {*seen["task inner"]["holds"]} & {*seen["task outer"]["awaits"]}


def test_result_of_a_loop_in_another_thread(begin: Start, stop: threading.Event) -> None:
    """A thread that waits for a coroutine in the loop of another thread awaits its task."""
    loop = asyncio.new_event_loop()
    begin("loop", loop.run_forever)

    async def generate() -> None:
        await asyncio.Event().wait()

    future = asyncio.run_coroutine_threadsafe(generate(), loop)

    def wait() -> None:
        with contextlib.suppress(CancelledError):
            future.result()

    begin("waits", wait)
    seen = look()
    future.cancel()
    loop.call_soon_threadsafe(loop.stop)
    (task,) = [one for name, one in seen.items() if name.startswith("task ")]
    assert seen["waits"]["awaits"] == task["holds"]


def test_socket_and_pipe(begin: Start) -> None:
    """A thread that reads a socket or a pipe names its other end; the process names its ports and pipes."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    reader, writer = multiprocessing.Pipe(duplex=False)

    def receive() -> None:
        client.recv(1)

    begin("receives", receive)
    begin("reads", reader.recv)
    record = stacks.collect()
    seen = {one["name"]: one for one in record["threads"]}
    server.accept()[0].sendall(b"x")
    writer.send(1)
    assert port in record["listens"]
    assert seen["reads"]["pipe"] in record["pipes"]
    assert seen["receives"]["host"] == f"127.0.0.1:{port}"


def test_queue_of_vllm(begin: Start, stop: threading.Event) -> None:
    """A thread that reads vLLM's queue names its shared memory, and each process that has it open names it too."""
    ring = SharedMemory(create=True, size=64)
    queue = types.SimpleNamespace(buffer=types.SimpleNamespace(shared_memory=ring), stop=stop)
    scope: dict[str, Any] = {}
    source = "def dequeue(self):\n    self.stop.wait()\n"
    exec(compile(source, "/x/vllm/distributed/device_communicators/shm_broadcast.py", "exec"), scope)
    begin("dequeues", scope["dequeue"], queue)
    record = stacks.collect()
    ring.close()
    ring.unlink()
    (seen,) = [one for one in record["threads"] if one["name"] == "dequeues"]
    assert seen["pipe"] < 0
    assert seen["pipe"] in record["pipes"]


class Bindings:
    """Functions of C under the names of waits, as a library of the user's may have them."""

    acquire = connect = sleep = staticmethod(hashlib.pbkdf2_hmac)


bindings, lock = Bindings(), threading.Lock()
SLOW = "sha256", b"x", b"y", 3_000_000


def sleeps() -> None:
    time.sleep(1.0)


def acquires() -> None:
    if lock.acquire(timeout=1.0):
        lock.release()


def receives() -> None:
    near, _far = socket.socketpair()
    near.settimeout(1.0)
    with contextlib.suppress(TimeoutError):
        near.recv(1)


def computes() -> None:
    bindings.acquire(*SLOW), bindings.connect(*SLOW)


def sleeps_in_words() -> None:
    hashlib.pbkdf2_hmac(*SLOW)  # not time.sleep(1), nor lock.acquire()


def computes_or_sleeps() -> None:
    hashlib.pbkdf2_hmac(*SLOW) if lock.locked() else time.sleep(1)


@pytest.mark.parametrize(
    ("function", "in_call"),
    [(sleeps, "sleep"), (acquires, "acquire"), (receives, "socket"), (computes, None), (sleeps_in_words, None),
     (computes_or_sleeps, None)],
)  # fmt: skip
def test_what_is_called_decides(begin: Start, function: Callable[[], None], in_call: str | None) -> None:
    """A wait in C is known by the object that is called: no name, comment or other call of the line counts."""
    with lock:
        begin("calls", function).join(0.1)
        assert look()["calls"].get("in_call") == in_call


def test_sockets_stay_blocking() -> None:
    """To look at open files changes no socket, also where the program has set a default timeout."""
    server = socket.create_server(("127.0.0.1", 0))
    sockets = [server, socket.create_connection(server.getsockname()), *socket.socketpair()]
    socket.setdefaulttimeout(30)
    try:
        ports, _ = read_open_files()
    finally:
        socket.setdefaulttimeout(None)
    found = [os.get_blocking(one.fileno()) for one in sockets]
    for one in sockets:
        one.close()
    assert (bool(ports), found) == (True, [True] * 4)


@pytest.mark.parametrize(
    "given", [[None] * 10**6, dict.fromkeys(range(10**6)), set(range(10**6))], ids=lambda it: type(it).__name__
)
def test_a_large_container_is_not_copied(given: Any) -> None:
    """Of a container of the user's only the first values are read."""
    stack: Any = {}
    tracemalloc.start()
    try:
        thread_waits._some(given)
        thread_waits._add_objects(stack, "polls", [given])
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_dicts_that_hold_themselves_or_are_shared(begin: Start, stop: threading.Event) -> None:
    """A look at a loop whose dicts know their parent, or hold others many times, ends; one at gathers, too."""
    parent: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for _ in range(40):
        shared = {"left": shared, "right": shared}
    parent |= {"child": {"parent": parent}, "itself": parent, "shared": shared}

    def poll() -> None:
        registry = parent
        while not stop.is_set():
            time.sleep(0.5)
        del registry

    async def gather() -> None:
        future = asyncio.create_task(asyncio.to_thread(stop.wait), name="inner")
        nested: Any = future
        for _ in range(40):
            nested = asyncio.gather(asyncio.shield(nested), nested)
        await nested

    begin("polls", poll)
    begin("loop", lambda: asyncio.run(gather()))
    seen = look()
    assert "polls" not in seen["polls"]
    assert {*seen["task inner"]["holds"]} & {*[ids for name in seen for ids in seen[name].get("awaits", [])]}


async def test_code_of_the_users_classes_is_not_called() -> None:
    """Threads and awaitables whose classes answer for missing attributes are not asked."""
    asked: list[str] = []

    class Asked:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            raise AttributeError(name)

    class Steps(Asked):
        def __await__(self) -> Any:
            return self

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> None:
            return None

        @property
        def cr_frame(self) -> None:
            asked.append("cr_frame")

    class Worker(Asked, threading.Thread):
        pass

    async def wait() -> None:
        await Steps()

    stop = threading.Event()
    worker = Worker(target=stop.wait, name="worker")
    worker.start()
    task = asyncio.create_task(wait(), name="steps")
    await asyncio.sleep(0)
    found = look()
    stop.set()
    task.cancel()
    worker.join()
    assert {"worker", "task steps"} <= {*found}
    assert asked == []


def test_loop_that_polls(begin: Start, stop: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that sleeps shows the objects in its locals and in those of its `self`, of exact types only."""

    class ObjectRef:
        def __init__(self, name: str) -> None:
            self.name = name

        def hex(self) -> str:
            return self.name

    class Hostile(ObjectRef):
        def hex(self) -> str:
            raise SystemExit

    class Loop:
        def __init__(self) -> None:
            self.pending = {"a": ObjectRef("aa"), "b": Hostile("bb")}

        def poll(self, refs: list[ObjectRef]) -> None:
            while not stop.is_set():
                time.sleep(0.5)

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(ObjectRef=ObjectRef))
    begin("polls", Loop().poll, [ObjectRef("cc")])
    assert sorted(look()["polls"]["polls"]) == ["aa", "cc"]
    for number in range(12):
        begin(f"many {number}", Loop().poll, [ObjectRef(f"{number:028x}") for number in range(5000)])
    record = stacks.collect()
    assert sum(len(one.get("polls", [])) for one in record["threads"]) == stacks.MAX_OBJECTS


def test_groups_of_rays_collectives(
    begin: Start, stop: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A process shows its groups of ray.util.collective, and the call that a thread is in."""
    folder = tmp_path / "ray" / "util" / "collective"
    folder.mkdir(parents=True)
    source = "def broadcast(tensor, src_rank=0, group_name='default'):\n    wait()\n"
    (folder / "collective.py").write_text(source)
    group = types.SimpleNamespace(_rank=1, _world_size=2)
    module: Any = types.ModuleType("ray.util.collective.collective")
    module._group_mgr = types.SimpleNamespace(_name_group_map={"sync": group, "other": group})
    module.wait = stop.wait
    exec(compile(source, str(folder / "collective.py"), "exec"), vars(module))  # noqa: S102
    monkeypatch.setitem(sys.modules, "ray.util.collective.collective", module)
    begin("syncs", module.broadcast, None, 0, "sync")
    groups = {one["name"]: one for one in read(stacks.collect(), StacksRecord)["collectives"]}
    assert [(one["op"], one["done"]) for one in groups["sync"]["calls"]] == [("broadcast", False)]
    assert (groups["other"]["calls"], groups["other"]["rank"], groups["other"]["ranks"]) == ([], 1, [0, 1])


@pytest.mark.parametrize("is_task", [False, True], ids=["thread", "task"])
def test_deep_stack(begin: Start, stop: threading.Event, is_task: bool) -> None:
    """A deep recursion leaves out frames in the middle: what waits is inside, and for what is outside."""

    def recurse(depth: int) -> None:
        stop.wait() if depth == 0 else recurse(depth - 1)

    async def recurse_in_task(depth: int) -> None:
        await (asyncio.sleep(60) if depth == 0 else recurse_in_task(depth - 1))

    def compute_score() -> None:
        recurse(90)

    async def compute_in_task() -> None:
        stopped = asyncio.create_task(recurse_in_task(90), name="deep")
        await asyncio.to_thread(stop.wait)
        stopped.cancel()

    begin("score", (lambda: asyncio.run(compute_in_task())) if is_task else compute_score)
    record = {one["name"]: one for one in read(stacks.collect(), StacksRecord)["threads"]}
    frames = record["task deep" if is_task else "score"]["frames"]
    assert len(frames) == stacks.MAX_FRAMES
    inner, outer = ("sleep", "recurse_in_task") if is_task else ("Condition.wait", "compute_score")
    assert frames[0]["function"] == inner
    assert any(one["function"].endswith(outer) for one in frames[-4:])
