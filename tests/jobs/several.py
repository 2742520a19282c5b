"""Actors on chosen nodes: `python several.py stop n3`, `fail n2`, `work SECONDS` (one on each node), `ranks`."""

from __future__ import annotations

import os
import socket
import sys
import time

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ray


def step(number):
    return sum(i * number for i in range(1000))


@ray.remote(num_cpus=0)
class Trainer:
    def stop(self, x):
        host, secret = socket.gethostname(), x + 1
        breakpoint()
        return f"{host} {secret}"

    def fail(self, x):
        host, secret = socket.gethostname(), x + 1
        raise ValueError(f"boom {secret} on {host}")

    def work(self, seconds):
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            number += 1
            step(number)
            time.sleep(0.01)
        return socket.gethostname()

    def about(self):
        return os.environ.get("SLURM_PROCID")


def nodes():
    """Return the id of each node that is alive, by host name."""
    return {node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}


def trainer_on(node_id):
    return Trainer.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote()


def main(how, what):
    if how in ("stop", "fail"):
        trainer = trainer_on(nodes()[what])
        return ray.get(getattr(trainer, how).remote(40))
    trainers = [trainer_on(node_id) for _, node_id in sorted(nodes().items())]
    if how == "ranks":
        return ray.get([one.about.remote() for one in trainers])
    return ray.get([one.work.remote(float(what)) for one in trainers])


if __name__ == "__main__":
    ray.init()
    print("working", flush=True)
    print("done:", main(*sys.argv[1:3]), flush=True)
