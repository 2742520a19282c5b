"""Programs that hang in a known way, and slow ones that do not: `python planted.py HOW`."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import gc
import hashlib
import http.server
import multiprocessing
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ray

FOREVER_S = 600


KEPT = []


def kept(actor):
    """Return an actor that lives as long as this program: before Ray 2.52 one without a name for it is lost at once."""
    KEPT.append(actor)
    return actor


@ray.remote(num_cpus=0)
class Actor:
    def __init__(self, peer=None):
        self.peer = peer
        self.first, self.second = threading.Lock(), threading.Lock()

    def one(self):
        with self.first:
            time.sleep(1)
            with self.second:
                return 1

    def other(self):
        with self.second:
            time.sleep(1)
            with self.first:
                return 2

    def locks(self):
        threads = [threading.Thread(target=work, name=work.__name__) for work in (self.one, self.other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def meet(self, peer):
        self.peer = peer

    def ask(self):
        time.sleep(1)
        return ray.get(self.peer.answer.remote())

    def answer(self):
        return 1

    def produce(self):
        rollouts = queue.Queue(maxsize=1)
        while True:
            rollouts.put("a rollout")

    def reward(self, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/score") as response:
            return response.read()

    def hold(self):
        return ctypes.PyDLL(None).sleep(FOREVER_S)

    def nap(self):
        time.sleep(FOREVER_S)

    def poll(self):
        while not self.first.locked():
            time.sleep(0.01)

    def build(self):
        return subprocess.run(["sleep", str(FOREVER_S)], check=True)

    def train(self):
        threading.Event().wait(FOREVER_S)

    def status(self):
        return "training"

    def work_until(self, barrier, number, port):
        if number == 5:
            self.reward(port)
        while not ray.get(barrier.is_full.remote()):
            time.sleep(0.5)

    def ping(self):
        return 1

    def count_to(self, limit):  # a reward that does not return: its lines move
        found = 0
        while found < limit:
            found = self.next_number(found)
        return found

    def next_number(self, number):
        return number + len([digit for digit in str(number) if digit == "x"])

    def stop_itself(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def in_vfork(self):
        # The child opens a FIFO before it is a program: until then the kernel keeps its parent asleep, in state D.
        path = f"{tempfile.mkdtemp()}/fifo"
        os.mkfifo(path)
        actions = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)]
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)

    def in_thread(self, port):
        thread = threading.Thread(target=self.reward, args=(port,), name="fetcher")
        thread.start()
        thread.join()

    def in_pool(self, port):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.reward, port).result()

    def wait_for_child(self, port):
        child = multiprocessing.get_context("fork").Process(target=self.reward, args=(port,))
        child.start()
        child.join()

    def ask_server(self, server):
        with urllib.request.urlopen(ray.get(server.address.remote())) as response:
            return response.read()

    def crunch(self):
        total = 0
        for number in range(10**9):
            total += number % 7
        return total

    def compile_all(self):  # in child processes, one after the other, within one call
        while True:
            subprocess.run([sys.executable, "-S", "-c", "sum(range(10**7))"], check=True)

    def save(self):  # to a slow disk, within one call
        with tempfile.TemporaryDirectory() as folder:
            while True:
                self.save_shard(f"{folder}/shard")

    def save_shard(self, path):
        with Path(path).open("wb") as file:
            for _ in range(10):
                file.write(bytes(2**20))
                os.fsync(file.fileno())
                time.sleep(0.1)

    def collect(self):  # garbage, within one call, at one line
        kept = [[number] for number in range(3_000_000)]
        while kept:
            gc.collect()

    def tokenize(self):  # in native code, within one call
        text = "a word, and another one; " * 200_000
        while True:
            re.findall(r"\w+|[^\w\s]", text)

    def score(self, number):  # a long reward that ends
        until = time.monotonic() + random.uniform(2, 5)
        while time.monotonic() < until:
            number = self.next_number(number)
        return number

    def load(self, weights):
        time.sleep(random.random())
        return len(weights)

    def steps(self):
        while True:  # of random lengths: samples at equal distances see all of them
            time.sleep(random.random())
            self.rollout()
            self.reward_all()
            self.update()

    def rollout(self):
        time.sleep(random.random())

    def reward_all(self):
        time.sleep(random.random())

    def update(self):
        time.sleep(random.random())


@ray.remote(num_cpus=0)
class Barrier:
    def is_full(self):
        return False


@ray.remote(num_cpus=0, max_concurrency=2)
class Server:
    """An HTTP server whose handler waits for a judge that never answers."""

    def __init__(self, port):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/judge")

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def address(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}/reward"


@ray.remote(num_cpus=0)
class ReplayBuffer:
    """Keeps the ids of running samples, and sleeps until they are done, as a trainer does that polls."""

    def __init__(self):
        self.running = {"sample-7": "generating"}

    def wait(self):
        while self.running:
            time.sleep(0.2)


@ray.remote(num_cpus=0)
class AsyncActor:
    async def many(self):
        self.event = asyncio.Event()
        self.others = [asyncio.create_task(asyncio.sleep(FOREVER_S), name=f"sample {n}") for n in range(5000)]
        await self.event.wait()

    async def chain(self, actor, port):
        await asyncio.gather(asyncio.create_task(self.ask(actor, port)), asyncio.sleep(FOREVER_S))

    async def ask(self, actor, port):
        return await actor.reward.remote(port)

    async def generate(self):
        return await asyncio.get_running_loop().create_future()

    async def generate_slowly(self):
        while True:
            await self.next_token()

    async def next_token(self):
        await asyncio.to_thread(self.forward, time.monotonic() + random.uniform(0.5, 3))

    def forward(self, until):
        while time.monotonic() < until:
            hashlib.sha256(bytes(2**20)).digest()

    async def serve(self):
        while True:
            await asyncio.sleep(random.random())
            await self.read()
            await self.compute()
            await self.write()

    async def read(self):
        await asyncio.sleep(random.random())

    async def compute(self):
        await asyncio.sleep(random.random())

    async def write(self):
        await asyncio.sleep(random.random())


@ray.remote(num_gpus=64, max_retries=0)
def needs_many_gpus():
    return 1


def actor_locks():
    one = Actor.options(name="one").remote()
    other = Actor.options(name="other").remote(one)
    ray.get([one.meet.remote(other), other.status.remote()])  # both run before the first asks the other
    return [one.ask.remote(), other.ask.remote()]


def never_answers():
    server = socket.create_server(("127.0.0.1", 0))
    print("the server listens at", server.getsockname()[1], flush=True)
    refs = [kept(Actor.remote()).reward.remote(server.getsockname()[1])]
    ray.get(refs)


def silent_port():
    """Return a port at which connections are taken and never answered: that of a process outside of the job."""
    program = "import socket,time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
    server = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", f"{program}time.sleep({FOREVER_S})"], stdout=subprocess.PIPE, env={}
    )
    atexit.register(server.kill)
    return int(server.stdout.readline())


def barrier():
    port, gate = silent_port(), Barrier.remote()
    actors = [Actor.options(name=f"worker-{number}").remote() for number in range(6)]
    ray.get([actor.work_until.remote(gate, number, port) for number, actor in enumerate(actors)])


def wait_and_sleep():
    refs = [kept(Actor.remote()).train.remote()]
    while refs:
        _, refs = ray.wait(refs, timeout=0.2)
        time.sleep(0.5)


def poll_get():
    ref = kept(Actor.remote()).train.remote()
    while True:
        with contextlib.suppress(ray.exceptions.GetTimeoutError):
            return ray.get(ref, timeout=0.7)


def poll_status():
    """Ask a healthy actor again and again, while the work of another one hangs."""
    healthy, ref = Actor.remote(), Actor.options(name="worker").remote().train.remote()
    while not ray.wait([ref], timeout=0)[0]:
        ray.get(healthy.ping.remote())
        time.sleep(0.2)


async def async_poll():
    ref = kept(Actor.remote()).train.remote()
    while not ray.wait([ref], timeout=0)[0]:
        await asyncio.sleep(0.3)


def replay_buffer():
    worker = Actor.options(name="agent-worker").remote()
    worker.reward.remote(silent_port())
    ray.get(ReplayBuffer.remote().wait.remote())


def in_own_thread():
    actor = Actor.remote()
    thread = threading.Thread(target=lambda: ray.get(actor.train.remote()), name="trainer")
    thread.start()
    thread.join()


def gil_of_rank():
    """Of four actors with ranks one holds Python's lock."""
    actors = [Actor.options(runtime_env={"env_vars": {"RANK": str(n), "WORLD_SIZE": "4"}}).remote() for n in range(4)]
    ray.get([actor.hold.remote() if n == 2 else actor.train.remote() for n, actor in enumerate(actors)])


def mailbox():
    actor = Actor.remote()
    actor.train.remote()
    ray.get(actor.status.remote())


def rewards():
    """Ask for one reward after the other; each takes seconds."""
    actor = Actor.remote()
    while True:
        ray.get(actor.score.remote(1))


def validation():
    """Ask many workers for an answer, again and again, and log nothing."""
    actors = [Actor.remote() for _ in range(2)]
    while True:
        ray.get([actor.rollout.remote() for actor in actors])


def weight_syncs():
    """Hand large weights to a worker, again and again."""
    actor = Actor.remote()
    while True:
        ray.get(actor.load.remote(ray.put(bytes(20 * 2**20))))


def tasks():
    """Train as a driver does: one call after the other, and each returns."""
    actor = Actor.remote()
    while True:
        ray.get([actor.rollout.remote(), actor.reward_all.remote(), actor.update.remote()])
        time.sleep(random.random())


HANGS = {
    "locks": lambda: ray.get(kept(Actor.remote()).locks.remote()),
    "actor_locks": lambda: ray.get(actor_locks()),
    "queue": lambda: ray.get(kept(Actor.remote()).produce.remote()),
    "http": never_answers,
    "placing": lambda: ray.get(needs_many_gpus.remote()),
    "mailbox": mailbox,
    "gil": lambda: ray.get(kept(Actor.remote()).hold.remote()),
    "sleep": lambda: ray.get(kept(Actor.remote()).nap.remote()),
    "poll": lambda: ray.get(kept(Actor.remote()).poll.remote()),
    "child": lambda: ray.get(kept(Actor.remote()).build.remote()),
    "future": lambda: ray.get(kept(AsyncActor.remote()).generate.remote()),
    "barrier": barrier,
    "wait_and_sleep": wait_and_sleep,
    "poll_get": poll_get,
    "poll_status": poll_status,
    "async_poll": lambda: asyncio.run(async_poll()),
    "endless_reward": lambda: ray.get(kept(Actor.remote()).count_to.remote(10)),
    "replay_buffer": replay_buffer,
    "gil_of_rank": gil_of_rank,
    "stopped": lambda: ray.get(kept(Actor.remote()).stop_itself.remote()),
    "disk": lambda: ray.get(kept(Actor.remote()).in_vfork.remote()),
    "thread": lambda: ray.get(kept(Actor.remote()).in_thread.remote(silent_port())),
    "pool": lambda: ray.get(kept(Actor.remote()).in_pool.remote(silent_port())),
    "forked": lambda: ray.get(kept(Actor.remote()).wait_for_child.remote(silent_port())),
    "server": lambda: ray.get(kept(Actor.remote()).ask_server.remote(Server.remote(silent_port()))),
    "own_thread": in_own_thread,
    "async_many": lambda: ray.get(kept(AsyncActor.remote()).many.remote()),
    "async_chain": lambda: ray.get(kept(AsyncActor.remote()).chain.remote(Actor.remote(), silent_port())),
    # Slow, but no hang.
    "crunch": lambda: ray.get(kept(Actor.remote()).crunch.remote()),
    "steps": lambda: ray.get(kept(Actor.remote()).steps.remote()),
    "tasks": tasks,
    "compile": lambda: ray.get(kept(Actor.remote()).compile_all.remote()),
    "checkpoint": lambda: ray.get(kept(Actor.remote()).save.remote()),
    "garbage": lambda: ray.get(kept(Actor.remote()).collect.remote()),
    "tokenizer": lambda: ray.get(kept(Actor.remote()).tokenize.remote()),
    "generation": lambda: ray.get(kept(AsyncActor.remote()).generate_slowly.remote()),
    "rewards": rewards,
    "validation": validation,
    "weight_syncs": weight_syncs,
    "serve": lambda: ray.get(kept(AsyncActor.remote()).serve.remote()),
}


if __name__ == "__main__":
    ray.init()
    print("begins", flush=True)
    HANGS[sys.argv[1]]()
