"""Programs that fail in torch: `python torch_cases.py NAME`; see cases.toml."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from datetime import timedelta

import torch
from torch import distributed, multiprocessing
from torch.utils.data import DataLoader


def join(rank=0, ranks=1, backend="gloo", timeout_s=5):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    limit = timedelta(seconds=timeout_s)
    distributed.init_process_group(backend, rank=rank, world_size=ranks, timeout=limit)


# The ranks do not meet


def alone():
    join()


def no_nccl():
    join(backend="nccl")


def no_master():
    os.environ["MASTER_ADDR"] = "10.0.0.9"
    join(rank=1, ranks=2, timeout_s=10)


def other_rank_missing():
    join(ranks=2, timeout_s=5)


# A collective does not end


def reduce_without_rank_1(rank):
    join(rank, 2)
    if rank == 1:
        time.sleep(15)
    distributed.all_reduce(torch.ones(4))


def barrier_without_rank_1(rank):
    join(rank, 2)
    if rank == 0:
        distributed.monitored_barrier(timeout=timedelta(seconds=3))
    time.sleep(8)


def collective_timeout():
    multiprocessing.spawn(reduce_without_rank_1, nprocs=2)


def barrier_timeout():
    multiprocessing.spawn(barrier_without_rank_1, nprocs=2)


# Data loaders


class Rows(torch.utils.data.Dataset):
    def __init__(self, read):
        self.read = read

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.read(index)


def load(read):
    for batch in DataLoader(Rows(read), batch_size=2, num_workers=2):
        print(batch.shape)


def loader_segfault():
    load(lambda _: ctypes.string_at(0))


def loader_killed():
    load(lambda _: os.kill(os.getpid(), signal.SIGKILL))


def loader_shm():
    load(lambda _: torch.ones(2**20))


def loader_error():
    load(lambda index: torch.ones(4) / (index // index))


# Numbers


def nan_sample():
    torch.multinomial(torch.tensor([0.5, float("nan")]), 1)


def nan_policy():
    torch.distributions.Categorical(logits=torch.tensor([[0.0, float("nan")]])).sample()


def nan_gradient():
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.sqrt().sum().sub(1e9).exp().log().backward()
    torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


def wrong_shape():
    torch.nn.Linear(8, 2)(torch.ones(4, 16))


def too_large():
    torch.ones(10**13)


# Checkpoints


def save(path="model.pt"):
    torch.save({"weight": torch.ones(2**20)}, path)


def save_to_full_disk():
    save("full/model.pt")


def load_cut():
    save()
    os.truncate("model.pt", 10_000)
    torch.load("model.pt")


def load_other_shape():
    torch.save(torch.nn.Linear(8, 4).state_dict(), "model.pt")
    torch.nn.Linear(8, 2).load_state_dict(torch.load("model.pt"))


class State:
    step = 1


def load_own_class():
    torch.save({"state": State()}, "state.pt")
    torch.load("state.pt")


# Devices and compilers


def no_cuda():
    torch.ones(4, device="cuda")


def compiled():
    print(torch.compile(lambda x: (x.sin() + x.cos()).relu())(torch.ones(1000)))


# Several processes


def rank_killed():
    import ray

    @ray.remote(num_cpus=0)
    class Trainer:
        def train(self, rank, ranks):
            join(rank, ranks, timeout_s=8)
            for step in range(20):
                if rank == 2 and step == 10:
                    os.kill(os.getpid(), signal.SIGKILL)
                try:
                    distributed.all_reduce(torch.ones(4))
                except RuntimeError:
                    traceback.print_exc()
                    raise
                time.sleep(0.1)

    ray.init(num_cpus=4, include_dashboard=False)
    trainers = [Trainer.remote() for _ in range(4)]
    trained = [trainer.train.remote(rank, 4) for rank, trainer in enumerate(trainers)]
    ray.wait(trained, num_returns=4)
    ray.get(trained)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
