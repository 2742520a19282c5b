"""Programs that hang in a known way, and slow ones that do not: `python planted.py HOW`."""

from __future__ import annotations

import asyncio
import ctypes
import queue
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import ray

FOREVER_S = 600


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

    def crunch(self):
        total = 0
        for number in range(10**9):
            total += number % 7
        return total

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
class AsyncActor:
    async def generate(self):
        return await asyncio.get_running_loop().create_future()

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
    refs = [Actor.remote().reward.remote(server.getsockname()[1])]
    ray.get(refs)


def mailbox():
    actor = Actor.remote()
    actor.train.remote()
    ray.get(actor.status.remote())


HANGS = {
    "locks": lambda: ray.get(Actor.remote().locks.remote()),
    "actor_locks": lambda: ray.get(actor_locks()),
    "queue": lambda: ray.get(Actor.remote().produce.remote()),
    "http": never_answers,
    "placing": lambda: ray.get(needs_many_gpus.remote()),
    "mailbox": mailbox,
    "gil": lambda: ray.get(Actor.remote().hold.remote()),
    "sleep": lambda: ray.get(Actor.remote().nap.remote()),
    "poll": lambda: ray.get(Actor.remote().poll.remote()),
    "child": lambda: ray.get(Actor.remote().build.remote()),
    "future": lambda: ray.get(AsyncActor.remote().generate.remote()),
    # Slow, but no hang.
    "crunch": lambda: ray.get(Actor.remote().crunch.remote()),
    "steps": lambda: ray.get(Actor.remote().steps.remote()),
    "serve": lambda: ray.get(AsyncActor.remote().serve.remote()),
}


if __name__ == "__main__":
    ray.init()
    print("begins", flush=True)
    HANGS[sys.argv[1]]()
