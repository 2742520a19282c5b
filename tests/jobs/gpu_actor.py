"""An actor that owns a GPU: `python gpu_actor.py breakpoint|crash|work`."""

from __future__ import annotations

import sys
import time

import torch

import ray


@ray.remote(num_gpus=1)
class Trainer:
    def __init__(self):
        self.weight = torch.full((4,), 41.0, device="cuda")

    def breakpoint(self):
        weight = self.weight + 1
        breakpoint()
        return weight.sum().item()

    def crash(self):
        weight = self.weight + 1
        return weight @ torch.ones(5, device="cuda")

    def work(self):
        step, weight = 0, self.weight
        end = time.monotonic() + 15
        while time.monotonic() < end:
            weight = weight * 1.0
            torch.cuda.synchronize()
            step += 1
        return step > 0


ray.init()
print("done:", ray.get(getattr(Trainer.remote(), sys.argv[1]).remote()))
