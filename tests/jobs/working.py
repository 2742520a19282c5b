"""Processes that work and never stop by themselves: `python working.py HOW SECONDS`."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import ray


def step(number):
    total = 0
    for i in range(1000):
        total += i * number
    return total


def loop(seconds):
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        step(number)
        time.sleep(0.002)
    return number


@ray.remote(num_cpus=0)
class Worker:
    def train(self, seconds):
        return loop(seconds)

    def sleep(self, seconds):
        time.sleep(seconds)
        return 1

    def fork(self, seconds):
        pid = os.fork()
        if pid == 0:
            loop(seconds)
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@ray.remote(num_cpus=0)
class AsyncWorker:
    async def train(self, seconds):
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            number += 1
            step(number)
            await asyncio.sleep(0.02)
        return number


@ray.remote(max_retries=0)
def task(seconds):
    return loop(seconds)


def drive(seconds):
    end = time.monotonic() + seconds
    done = []
    while time.monotonic() < end:
        done += ray.get([ray.put(len(done))])
    return len(done)


WAYS = {
    "actor": lambda s: (w := Worker.remote()) and ray.get(w.train.remote(s)),
    "threads": lambda s: (w := Worker.options(max_concurrency=2).remote()) and ray.get(w.train.remote(s)),
    "async": lambda s: (w := AsyncWorker.remote()) and ray.get(w.train.remote(s)),
    "task": lambda s: ray.get(task.remote(s)),
    "sleep": lambda s: (w := Worker.remote()) and ray.get(w.sleep.remote(s)),
    "fork": lambda s: (w := Worker.remote()) and ray.get(w.fork.remote(s)),
    "driver": drive,
}


if __name__ == "__main__":
    ray.init()
    print("working", flush=True)
    print("done:", sys.argv[1], WAYS[sys.argv[1]](float(sys.argv[2])), flush=True)
