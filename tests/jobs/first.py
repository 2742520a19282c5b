"""A task, an actor method and a crash: the smallest job with pauses."""

import sys
import time

import ray

ray.init()


@ray.remote
def add(x):
    y = x + 1
    breakpoint()
    return y


@ray.remote(max_retries=0)
def boom(x):
    z = x * 3
    raise ValueError(f"bad {z}")


t = time.time()
print("task", ray.get(add.remote(1)), f"{time.time() - t:.2f} s", flush=True)
try:
    ray.get(boom.remote(2))
except ValueError:
    print("boom raised", flush=True)
sys.exit(3)
