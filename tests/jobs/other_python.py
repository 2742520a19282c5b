"""A task in a worker of another Python than the driver's: `python other_python.py PYTHON`."""

from __future__ import annotations

import sys

import ray


@ray.remote
def task(x):
    for _ in range(3):
        breakpoint()
    return x + 1, sys.executable


if __name__ == "__main__":
    ray.init()
    print("went on:", *ray.get(task.options(runtime_env={"py_executable": sys.argv[1]}).remote(40)), flush=True)
