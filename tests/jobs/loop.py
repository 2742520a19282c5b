"""Two actors of a training group that work on and on: `python loop.py SECONDS`."""

import os
import sys
import time

import ray


def update(step):
    return 10 - step


@ray.remote
class Rank:
    def __init__(self, rank):
        os.environ["RANK"] = str(rank)
        self.global_steps = 0

    def train(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.global_steps += 1
            update(self.global_steps)
            time.sleep(0.02)
        return self.global_steps


if __name__ == "__main__":
    ray.init()
    ranks = [Rank.remote(rank) for rank in range(2)]
    print("working", flush=True)
    print("steps", min(ray.get([rank.train.remote(float(sys.argv[1])) for rank in ranks])))
