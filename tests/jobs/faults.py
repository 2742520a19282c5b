"""Paused tasks that something ends from outside: `python faults.py FAULT FILE` strikes when FILE appears."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import ray


@ray.remote(max_retries=0)
def task(x):
    secret = x + 1
    breakpoint()
    return secret


@ray.remote(num_cpus=0)
class Actor:
    def method(self, x):
        secret = x + 1
        breakpoint()
        return secret + 1


@ray.remote(max_retries=1, retry_exceptions=True)
def retried(x):
    secret = x + 1
    raise ValueError(f"attempt at {secret}")


def wait_for(file):
    while not Path(file).exists():
        time.sleep(0.05)


def fails(reference):
    try:
        ray.get(reference, timeout=30)
    except Exception as error:
        print("failed as it should:", type(error).__name__, flush=True)
    else:
        raise AssertionError("it should have failed")


def cancel(file):
    reference = task.remote(40)
    wait_for(file)
    ray.cancel(reference)
    fails(reference)


def cancel_by_force(file):
    reference = task.remote(40)
    wait_for(file)
    ray.cancel(reference, force=True)
    fails(reference)


def kill(file):
    actor = Actor.remote()
    reference = actor.method.remote(40)
    wait_for(file)
    ray.kill(actor)
    fails(reference)


@ray.remote(max_retries=0)
def work():
    while True:
        time.sleep(0.01)


def cancel_at_work(file):
    reference = work.remote()
    wait_for(file)
    ray.cancel(reference)
    fails(reference)


def retry(file):
    fails(retried.remote(40))


def stop(file):
    ray.get([task.remote(40), Actor.remote().method.remote(40)])


if __name__ == "__main__":
    ray.init()
    {
        "cancel": cancel,
        "cancel_by_force": cancel_by_force,
        "kill": kill,
        "stop": stop,
        "retry": retry,
        "cancel_at_work": cancel_at_work,
    }[sys.argv[1]](sys.argv[2])
    print("done:", sys.argv[1], flush=True)
