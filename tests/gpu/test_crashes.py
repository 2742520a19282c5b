"""Crashes on a GPU as post-mortem pauses."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(240)
POST_MORTEM = {"RAY_DEBUG_POST_MORTEM": "1"}

OUT_OF_MEMORY = """
import torch
torch.cuda.set_per_process_memory_fraction(0.05)
def grow(size):
    kept = torch.ones(8, device="cuda")
    return torch.empty(size, device="cuda")
grow(1 << 40)
"""


def test_out_of_memory(serve, look):
    """An out-of-memory error of CUDA pauses at its frame, and the tensors that are there can be read."""
    program = serve(OUT_OF_MEMORY, **POST_MORTEM)
    assert program.pause["exception"].startswith("OutOfMemoryError: CUDA out of memory")
    assert program.pause["function"] == "grow"
    said = look(program.id, "p size", "tensor kept", "c")
    assert "1099511627776" in said
    assert "min 1  max 1" in said
    assert program.process.wait(60) == 1
    assert "OutOfMemoryError" in program.complained


DEVICE_ASSERT = """
import torch
def pick(index):
    weights = torch.arange(4.0, device="cuda")
    picked = weights[index]
    torch.cuda.synchronize()
    return picked
pick(torch.tensor([7], device="cuda"))
"""


def test_device_assert(serve, look):
    """After a device-side assert the pause still works: Python values are shown, tensors say why they are not read."""
    program = serve(DEVICE_ASSERT, **POST_MORTEM)
    assert program.pause["exception"].startswith("AcceleratorError: CUDA error: device-side assert")
    assert program.pause["function"] == "synchronize", "the innermost frame is torch's own"
    assert "device-side assert triggered" in look(program.id, "u", "p weights"), "a script ends at a failed command"
    said = look(program.id, "u", "p type(index)", "tensor weights", "p weights.shape", "c")
    assert "<class 'torch.Tensor'>" in said
    assert "values not read: AcceleratorError: CUDA error: device-side assert triggered" in said
    assert "torch.Size([4])" in said
    assert program.process.wait(60) == 1
