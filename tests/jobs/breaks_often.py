"""A task that comes to a breakpoint again and again, at a time that it says: `python breaks_often.py COUNT`."""

import sys
import time

import ray


@ray.remote
def work(count):
    for number in range(count):
        at = time.time()
        print(f"breakpoint {number} at {at}", flush=True)
        breakpoint()
    return "done: all"


if __name__ == "__main__":
    ray.init()
    print(ray.get(work.remote(int(sys.argv[1]))))
