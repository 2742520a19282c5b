"""Two ranks, of which one fails, as its caller hears; and a third process that only hears of that."""

from __future__ import annotations

import os
import sys

import ray


@ray.remote(num_cpus=0)
class Trainer:
    def step(self, rank):
        print("reward at rank", os.environ["RANK"])
        print("to stderr", file=sys.stderr)
        if rank == 1:
            raise ValueError(f"NaN at rank {rank}")
        return rank


@ray.remote(num_cpus=0)
class Runner:
    def run(self, trainers):
        return ray.get([trainer.step.remote(rank) for rank, trainer in enumerate(trainers)])


if __name__ == "__main__":
    ray.init()
    ranks = [Trainer.options(runtime_env={"env_vars": {"RANK": str(rank)}}).remote() for rank in range(2)]
    ray.get([rank.__ray_ready__.remote() for rank in ranks])  # else one may fail before the other has begun
    ray.get(Runner.remote().run.remote(ranks))
