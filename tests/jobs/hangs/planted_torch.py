"""Training ranks (gloo, CPU) that hang in a known way, and slow ones that do not: `python planted_torch.py HOW`."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time

import ray

RANKS = {"mismatch": 3, "crashed": 4, "loader": 1}  # of others 2


@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self, rank, ranks, folder, how):
        if how == "unrecorded":
            os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        self.torch, self.distributed, self.rank = torch, distributed, rank
        distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
        for _ in range(3):
            self.sync_gradients()

    def sync_gradients(self):
        self.distributed.all_reduce(self.torch.ones(1000))

    def sync_metrics(self):
        self.distributed.broadcast(self.torch.ones(4), 0)

    def mismatch(self):
        if self.rank == 2:
            self.sync_metrics()
        else:
            self.sync_gradients()

    def missing(self):
        if self.rank == 1:
            self.load_batch()
        self.sync_gradients()

    unrecorded = missing

    def load_batch(self):
        threading.Event().wait()

    def skipped(self):
        if self.rank != 1:
            self.sync_gradients()

    def crashed(self):
        if self.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(2)
        self.sync_gradients()

    def loader(self):
        from torch.utils.data import DataLoader

        lock = threading.Lock()
        lock.acquire()  # a thread that holds it is not in a fork: nothing there releases it
        for batch in DataLoader(Rows(lock), num_workers=1):
            print(batch)

    def slow(self):
        while True:
            self.compute(until=time.monotonic() + random.random())
            time.sleep(random.random())
            self.sync_gradients()

    def late(self):
        while True:
            self.compute(until=time.monotonic() + 0.05)
            if self.rank == 1:
                self.read_rows(until=time.monotonic() + 0.4)
            for _ in range(3):
                self.sync_gradients()

    def read_rows(self, until):
        while time.monotonic() < until:
            json.loads("[1, 2, 3]")

    def compute(self, until):
        values = self.torch.rand(100, 100)
        while time.monotonic() < until:
            values = self.torch.tanh(values @ values)


class Rows:
    def __init__(self, lock):
        self.lock = lock

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with self.lock:
            return index


class Side:
    """One side of a weight sync by ray.util.collective, as verl's."""

    def __init__(self, rank):
        import torch
        from ray.util import collective

        torch.set_num_threads(1)
        self.weights, self.collective = torch.ones(4), collective
        collective.init_collective_group(2, rank, "gloo", "sync")

    def update(self):
        self.collective.broadcast(self.weights, 0, "sync")

    def load_batch(self):
        threading.Event().wait()


def sync():
    trainer = ray.remote(num_cpus=0)(Side).options(name="syncTrainer").remote(0)
    rollout = ray.remote(num_cpus=0)(Side).options(name="syncRollout").remote(1)
    ray.get([rollout.update.remote(), trainer.load_batch.remote()])


def main(how):
    ray.init()
    if how == "sync":
        sync()
    folder = tempfile.mkdtemp(prefix="rdt-")
    ranks = RANKS.get(how, 2)
    # As verl names its actors; rank 1 of those that crash is the one that hears of it from no neighbour.
    trainers = [
        Trainer.options(name=f"{how}Trainer_0:{rank}").remote(rank, ranks, folder, how) for rank in range(ranks)
    ]
    steps = [getattr(trainer, how).remote() for trainer in trainers]
    ray.get(steps[1] if how == "crashed" else steps)


if __name__ == "__main__":
    main(sys.argv[1])
