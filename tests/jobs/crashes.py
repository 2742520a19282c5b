"""Crashes of a job: `python crashes.py KIND`; `value` in the frame that raises says which."""

from __future__ import annotations

import subprocess
import sys
import time

import ray


def boom(value: str) -> None:
    raise ValueError(f"boom in {value}")


@ray.remote
def task(value: str) -> None:
    boom(value)


@ray.remote
def sleep() -> None:
    while True:  # Ray cancels a task between two lines of Python: one long sleep would never end
        time.sleep(0.1)


@ray.remote
def generate(value: str):
    yield 1
    boom(value)


@ray.remote
class Actor:
    def __init__(self, value: str = "") -> None:
        if value:
            boom(value)

    def method(self, value: str) -> None:
        boom(value)

    def child(self, value: str) -> None:
        code = f"def boom(value):\n    raise ValueError(value)\nboom({value!r})"
        subprocess.run([sys.executable, "-c", code], check=False)


@ray.remote
class AsyncActor:
    async def method(self, value: str) -> None:
        boom(value)


@ray.remote(num_cpus=0)
class Rank:
    def crash(self, until: float) -> None:
        import os

        os.environ["RANK"] = str(os.getpid())
        time.sleep(max(0.0, until - time.time()))
        try:
            boom("many")
        except ValueError:
            ray.util.pdb._is_ray_debugger_post_mortem_enabled()  # as Ray does where an exception leaves a task


def many(count: int) -> None:
    ranks = [Rank.remote() for _ in range(count)]
    ray.get([rank.__ray_ready__.remote() for rank in ranks])
    until = time.time() + 2
    ray.get([rank.crash.remote(until) for rank in ranks])


def main(kind: str) -> None:
    ray.init()
    if kind == "driver":
        boom(kind)
    elif kind == "cancelled":
        waiting = sleep.remote()
        time.sleep(1)
        ray.cancel(waiting)
        ray.get(waiting)
    elif kind == "many":
        many(int(sys.argv[2]))
    elif kind == "init":
        actor = Actor.remote(kind)  # before Ray 2.44 a handle has to be kept
        ray.get(actor.__ray_ready__.remote())
    elif kind == "async":
        actor = AsyncActor.remote()
        ray.get(actor.method.remote(kind))
    elif kind == "generator":
        for one in generate.remote(kind):
            ray.get(one)
    elif kind == "task":
        ray.get(task.remote(kind))
    else:
        actor = Actor.remote()
        ray.get((actor.child if kind == "child" else actor.method).remote(kind))


main(sys.argv[1])
