"""Every way in which a Ray program can stop: `python cases.py CASE`. Each prints `done: CASE` when it went on."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading

from spawned import spawned

import ray

CHILD = "secret = 41\nbreakpoint()\nprint('child went on', secret)"


@ray.remote
def task(x):
    secret = x + 1
    breakpoint()
    return secret


@ray.remote
def nested_function(x):
    def inner(y):
        secret = y + 1
        breakpoint()
        return secret

    return inner(x)


@ray.remote(num_cpus=0)
class Actor:
    def method(self, x):
        secret = x + 1
        breakpoint()
        return secret

    def thread(self, x):
        result = []

        def body():
            secret = x + 1
            breakpoint()
            result.append(secret)

        thread = threading.Thread(target=body, name="my-thread")
        thread.start()
        thread.join()
        return result[0]

    def thread_that_fails(self, x):
        def body():
            secret = x + 1
            raise ValueError(f"thread {secret}")

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()

    def fails(self, x):
        secret = x + 1
        raise ValueError(f"actor {secret}")


@ray.remote(num_cpus=0)
class AsyncActor:
    async def method(self, x):
        secret = x + 1
        breakpoint()
        return secret

    async def fails(self, x):
        secret = x + 1
        raise ValueError(f"async {secret}")


@ray.remote(num_cpus=0)
class BreaksInInit:
    def __init__(self, x):
        self.secret = secret = x + 1
        breakpoint()
        self.after = secret

    def get(self):
        return self.after


@ray.remote(num_cpus=0)
class SpawnsInInit:
    def __init__(self):
        self.child = subprocess.Popen([sys.executable, "-c", CHILD])

    def wait(self):
        breakpoint()
        return self.child.wait()


@ray.remote(num_cpus=0)
class FailsInInit:
    def __init__(self, x):
        secret = x + 1
        raise ValueError(f"init {secret}")


@ray.remote(max_retries=0)
def task_that_fails(x):
    secret = x + 1
    raise ValueError(f"task {secret}")


@ray.remote(max_retries=0)
def outer_task_that_fails(x):
    return ray.get(task_that_fails.remote(x))


@ray.remote
def with_child(how):
    if how == "child":
        return subprocess.run([sys.executable, "-c", CHILD], check=False).returncode
    if how == "fork":
        pid = os.fork()
        if pid == 0:
            spawned(41)
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    process = multiprocessing.get_context("spawn").Process(target=spawned, args=(41,))
    process.start()
    process.join()
    return process.exitcode


def driver():
    secret = 41
    breakpoint()
    print("driver went on", secret)


def fails(reference):
    try:
        ray.get(reference)
    except Exception as error:
        print("failed as it should:", str(error).strip().splitlines()[-1])
    else:
        raise AssertionError("it should have failed")


def many(count):
    actors = [Actor.remote() for _ in range(count)]
    assert ray.get([a.method.remote(i) for i, a in enumerate(actors)]) == [i + 1 for i in range(count)]


CASES = {
    "task": lambda: ray.get(task.remote(40)),
    "nested": lambda: ray.get(nested_function.remote(40)),
    # A name for each actor: before Ray 2.44 a handle that nothing holds is lost before its method is called.
    "actor": lambda: (a := Actor.remote()) and ray.get(a.method.remote(40)),
    "two_threads": lambda: (
        (a := Actor.options(max_concurrency=2).remote()) and ray.get([a.method.remote(40), a.method.remote(50)])
    ),
    "async_actor": lambda: (a := AsyncActor.remote()) and ray.get(a.method.remote(40)),
    "actor_thread": lambda: (a := Actor.remote()) and ray.get(a.thread.remote(40)),
    "driver": driver,
    "init": lambda: (a := BreaksInInit.remote(40)) and ray.get(a.get.remote()),
    "two_tasks": lambda: ray.get([task.remote(40), task.remote(50)]),
    "on_worker": lambda: ray.get(task.options(num_cpus=8).remote(40)),
    "many": lambda: many(32),
    "child": lambda: ray.get(with_child.remote("child")),
    "fork": lambda: ray.get(with_child.remote("fork")),
    "spawn": lambda: ray.get(with_child.remote("spawn")),
    "actor_child": lambda: (a := SpawnsInInit.remote()) and ray.get(a.wait.remote()),
    "pm_task": lambda: fails(task_that_fails.remote(40)),
    "pm_nested": lambda: fails(outer_task_that_fails.remote(40)),
    "pm_actor": lambda: (a := Actor.remote()) and fails(a.fails.remote(40)),
    "pm_async": lambda: (a := AsyncActor.remote()) and fails(a.fails.remote(40)),
    "pm_init": lambda: (a := FailsInInit.remote(40)) and fails(a.__ray_ready__.remote()),
    "pm_thread": lambda: (a := Actor.remote()) and ray.get(a.thread_that_fails.remote(40)),
    "pm_driver": lambda: [][secret_index()],
}


def secret_index():
    return 41


if __name__ == "__main__":
    ray.init()
    CASES[sys.argv[1]]()
    print("done:", sys.argv[1], flush=True)
