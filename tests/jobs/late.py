"""An actor class that Ray has before a second actor of it starts, once a file is there: `python late.py FILE`."""

import sys
import time
from pathlib import Path

import ray


def update(number):
    return number + 1


@ray.remote
class Worker:
    def step(self, number):
        return update(number)


if __name__ == "__main__":
    ray.init()
    first = Worker.remote()
    print("working", ray.get(first.step.remote(0)), flush=True)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
    second = Worker.remote()  # Ray 2.41: "Lost reference to actor" without a name for it
    print("done:", ray.get(second.step.remote(40)))
