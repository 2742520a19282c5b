"""What is around a training on a GPU host: the driver as `check env` reads it, and the pre-forked pool."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_prefork import PoolUnderTest

from raydebug.check import env_machine
from raydebug.check.probes.env import gather

pytestmark = pytest.mark.timeout(240)


def test_driver():
    """`check env` reads name, driver, capability and memory of each GPU as torch reports them, and finds no fault."""
    import torch

    facts = gather({})
    assert facts["smi"] == "ok"
    assert facts["torch_cuda"] == torch.version.cuda
    assert len(facts["gpus"]) == torch.cuda.device_count()
    for number, gpu in enumerate(facts["gpus"]):
        properties = torch.cuda.get_device_properties(number)
        assert gpu["name"] == properties.name
        assert gpu["capability"] == f"{properties.major}.{properties.minor}"
        assert abs(gpu["total_mib"] - properties.total_memory / 2**20) < 0.05 * gpu["total_mib"]
    found = {finding.code for finding in env_machine.judge_gpus(facts, on_cpu=False, wants_training=True)}
    assert found <= {"env.gpu-busy"}  # another test's process may hold memory


HOLDS = """
import sys, torch
kept = torch.empty(int(float(sys.argv[1])), dtype=torch.uint8, device="cuda")
kept.fill_(1)
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.read()
"""


def test_memory_that_others_hold():
    """GPU memory that another process holds is a finding that names the GPU and how much is in use."""
    import torch

    wanted = 0.3 * torch.cuda.get_device_properties(0).total_memory
    argv = [sys.executable, "-c", HOLDS, str(wanted)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        facts = gather({})
        holder.communicate("")
    (busy,) = [f for f in env_machine.judge_gpus(facts, on_cpu=False, wants_training=True) if f.code == "env.gpu-busy"]
    assert "MiB of GPU 0 are in use" in busy.what


FORKED = """
import os, torch
assert not torch.cuda.is_initialized()
print(torch.ones(3, device="cuda").sum().item(), os.getppid(), flush=True)
"""


def test_preforked_pool(tmp_path):
    """A pre-forked process with torch imported has no CUDA context and no driver file open; its forks use CUDA."""
    pool = PoolUnderTest(tmp_path, modules="torch,triton")
    try:
        code, out, err = pool.run(FORKED)
        assert code == 0, err + pool.log
        total, parent = out.split()
        assert (total, pool.served) == ("3.0", 1), pool.log
        files = [str(fd.readlink()) for fd in Path(f"/proc/{parent}/fd").iterdir()]
        assert not [name for name in files if "nvidia" in name]
    finally:
        pool.end()
