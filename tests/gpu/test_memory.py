"""The memory of a process on a real GPU: the driver's numbers, torch's, and what an out of memory leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raydebug.snapshot.gpu_memory import read_gpu_snapshot

pytestmark = pytest.mark.timeout(240)

SIZES = """
import json, torch
from raydebug.worker import process_memory as memory
assert "gpus" not in memory.read_memory() or all("reserved" not in one for one in memory.read_memory()["gpus"])
assert not torch.cuda.is_initialized()
kept = torch.ones(2**26, device="cuda")
print(json.dumps(memory.read_memory()["gpus"]))
"""
OUT_OF_MEMORY = """
import json, sys, torch
from raydebug.worker import gpu_history
gpu_history.watch(torch)
torch.cuda.set_per_process_memory_fraction(0.05)
def keep():
    return torch.ones(2**20, device="cuda")
kept = [keep() for _ in range(10)]
torch.cuda.memory._dump_snapshot(sys.argv[1])
try:
    torch.empty(1 << 40, device="cuda")
except torch.OutOfMemoryError:
    print(json.dumps(gpu_history.last))
"""


def run(program: str, *arguments: str) -> Any:
    """Run a program, and return what it prints."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sizes() -> None:
    """The driver and torch agree about a tensor of 256 MiB; asking makes no CUDA context."""
    (one,) = [gpu for gpu in run(SIZES) if gpu.get("reserved")]
    assert one["reserved"] >= 2**28
    assert one["reserved"] <= one["used"] < one["total"]


def test_out_of_memory(tmp_path: Path) -> None:
    """An out of memory leaves what was live, by line, and what was asked; torch's own file of it says the same."""
    path = tmp_path / "snapshot.pickle"
    found = run(OUT_OF_MEMORY, str(path))
    assert found["asked"] == 2**42
    assert found["lines"][0]["line"].endswith(" keep")
    assert (found["lines"][0]["count"], found["lines"][0]["bytes"]) == (10, 10 * 2**22)
    assert read_gpu_snapshot(path)["lines"][0] == found["lines"][0]
