"""Snapshots with torch, omegaconf, tensordict and verl's batches, opened by a Python that cannot import them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CRASH = """
import sys
from pathlib import Path

import numpy, torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto

from raydebug.worker import snapshot


def update(data, config, grads):
    weights = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    view, rewards = weights.detach().t(), numpy.array([1.0, float("nan"), 3.0])
    raise ValueError("bad batch")


try:
    batch = TensorDict({"input_ids": torch.arange(6).reshape(2, 3)}, batch_size=[2])
    config = OmegaConf.create({"actor": {"optim": {"lr": 1e-6}}, "steps": [1, 2]})
    grads = torch.full((2, 2), float("inf"), dtype=torch.bfloat16)
    update(DataProto(batch=batch, meta_info={"step": 3}), config, grads)
except ValueError as error:
    frames = snapshot.frames_of(error)
    document = snapshot.document_of(error, frames, snapshot.summarize(error, frames, "crash"), "MainThread")
    Path(sys.argv[1]).write_bytes(snapshot.compress(document))
"""
OPEN = """
import sys
sys.modules.update(dict.fromkeys(("torch", "numpy", "omegaconf", "tensordict", "verl", "ray", "vllm")))
from raydebug.cli import main
main()
"""


@pytest.mark.timeout(120)
def test_tensors_and_batches(tmp_path: Path) -> None:
    """Offline, tensors have statistics, NaN counts and shared memory, and configs and batches have their content."""
    path = tmp_path / "t.snapshot.gz"
    subprocess.run([sys.executable, "-c", CRASH, str(path)], check=True, timeout=100)
    looks = ["tensor weights", "tensor view", "p view.shape", "p rewards", "p grads", "p data.meta_info", "p config",
             "p data.batch['input_ids']", "p len(data.batch['input_ids'])", "tensors"]  # fmt: skip
    argv = [sys.executable, "-c", OPEN, "open", str(path), *(word for look in looks for word in ("-x", look))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    ids = "<torch.Tensor  [2x3]  int64  cpu  min 0  max 5  mean 2.5>"
    lines = done.stdout.splitlines()
    assert lines[:17] == [
        "torch.Tensor  [3x4]  float32  cpu  requires_grad",
        "  min -1  max 1  mean 0",
        "  NaN 0  Inf 0",
        "  first [-1, -0.818182, -0.636364, -0.454545, ...]",
        "  shares memory with view",
        "torch.Tensor  [4x3]  float32  cpu",
        "  min -1  max 1  mean 0",
        "  NaN 0  Inf 0",
        "  first [-1, -0.272727, 0.454545, ...]",
        "  shares memory with weights",
        "torch.Size([4, 3])",
        "<numpy.ndarray  [3]  float64  cpu  min 1  max 3  mean 2  NaN 1>",
        "<torch.Tensor  [2x2]  bfloat16  cpu  Inf 4>",
        "{'step': 3}",
        "{'actor': {'optim': {'lr': 1e-06}}, 'steps': [1, 2]}",
        ids,
        "2",
    ]
    assert sorted(line.split()[0] for line in lines[17:]) == [
        *("data.batch['input_ids']", "grads", "rewards", "view", "weights"),
    ]
