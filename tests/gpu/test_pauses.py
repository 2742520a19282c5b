"""Pauses of a process that has a CUDA context: values are right, nothing is left on the device, work continues."""

from __future__ import annotations

import pytest

from gpu_programs import ended

pytestmark = pytest.mark.timeout(240)

TENSORS = """
import torch
x = torch.arange(6, dtype=torch.bfloat16, device="cuda").reshape(2, 3)
x[1, 2] = float("nan")
turned = torch.arange(6.0, device="cuda").reshape(2, 3).t()
whole = torch.full((64 << 20,), 0.5, device="cuda")  # 256 MiB
torch.cuda.synchronize()
before = torch.cuda.memory_allocated()
breakpoint()
print("left", torch.cuda.memory_allocated() - before, flush=True)
"""


def test_tensors(serve, look):
    """`tensor` reads bf16, transposed and large tensors on the GPU, and leaves no memory of the GPU allocated."""
    program = serve(TENSORS)
    said = look(program.id, "tensor x", "tensor turned", "tensor whole", "p x.shape", "c")
    assert "torch.Tensor  [2x3]  bfloat16  cuda:0\n  min 0  max 4  mean 2" in said
    assert "NaN 1  Inf 0  (the line above is of the 5 finite values)" in said
    assert "torch.Tensor  [3x2]  float32  cuda:0\n  min 0  max 5  mean 2.5" in said
    assert "torch.Tensor  [67108864]  float32  cuda:0\n  min 0.5  max 0.5  mean 0.5" in said
    assert "torch.Size([2, 3])" in said
    assert ended(program) == (0, "left 0\n")


FULL = """
import torch
torch.cuda.init()
torch.cuda.set_per_process_memory_fraction(0.02)
whole = torch.ones(int(torch.cuda.get_device_properties(0).total_memory * 0.018) // 4, device="cuda")
whole[5] = 9
breakpoint()
print("left", whole.max().item(), flush=True)
"""


def test_full_device(serve, look):
    """On a GPU without free memory `tensor` says that it could not read the values; the program is unharmed."""
    program = serve(FULL)
    said = look(program.id, "tensor whole", "tensor whole[:8]", "c")
    assert "values not read: OutOfMemoryError" in said or "max 9" in said
    assert "first [1, 1, 1, 1, 1, 9, 1, 1]" in said
    assert ended(program) == (0, "left 9.0\n")


BUSY_STREAM = """
import time, torch
x = torch.zeros(4, device="cuda")
torch.cuda.synchronize()
torch.cuda._sleep(int(6e9))  # clock cycles: seconds of work ahead on this stream
x += 3
breakpoint()
print(x.tolist(), flush=True)
"""


def test_busy_stream(serve, look):
    """A tensor whose stream is still busy is read when the work ahead of it is done: the value is the final one."""
    program = serve(BUSY_STREAM)
    assert "min 3  max 3  mean 3" in look(program.id, "tensor x", "c")
    assert ended(program) == (0, "[3.0, 3.0, 3.0, 3.0]\n")


SHARDED = """
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl", init_method="file://" + os.environ["MEETING"], rank=0, world_size=1,
                        device_id=torch.device("cuda:0"))
model = torch.nn.Linear(8, 4, bias=False, device="cuda")
torch.nn.init.constant_(model.weight, 0.25)
fully_shard(model, mesh=init_device_mesh("cuda", (1,)))
model(torch.ones(2, 8, device="cuda")).sum().backward()
weight, gradient = model.weight, model.weight.grad
breakpoint()
print("went on", gradient.to_local().sum().item(), flush=True)
dist.destroy_process_group()
"""


def test_sharded(serve, look, tmp_path):
    """FSDP2's weights and gradients (DTensor over NCCL) show shape, placement and this rank's values, no collective."""
    program = serve(SHARDED, MEETING=str(tmp_path / "meeting"))
    said = look(program.id, "tensor weight", "tensor gradient", "c")
    assert "[4x8]  float32  cuda:0" in said
    assert "by Shard(dim=0)" in said or "by S(0)" in said
    assert "min 0.25  max 0.25" in said
    assert "min 2  max 2" in said
    code, out = ended(program)
    assert (code, out) == (0, "went on 64.0\n"), program.complained


COMPILED = """
import torch
def double(x):
    y = x * 2
    breakpoint()
    return y + 1
compiled = torch.compile(double)
print(compiled(torch.ones(4, device="cuda")).tolist(), flush=True)
"""


def test_compiled(serve, look):
    """A breakpoint in a function compiled by inductor pauses, its tensors are read, and the result is right."""
    program = serve(COMPILED)
    assert program.pause["compiled"] is True
    assert "min 1  max 1" in look(program.id, "tensor x", "c")
    assert ended(program) == (0, "[3.0, 3.0, 3.0, 3.0]\n")


GRAPHS = """
import torch
x = torch.zeros(4, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    x += 1  # warms up, as torch's manual asks for
side.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x += 1
for step in range(3):
    graph.replay()
    breakpoint()
print(x.tolist(), flush=True)
"""


def test_between_replays(serve, look):
    """Pauses between replays of a CUDA graph show each replay's values; looking does not disturb the next one."""
    program = serve(GRAPHS)
    for step in (2, 3, 4):
        assert f"min {step}  max {step}" in look(program.id, "tensor x", "c")
    assert ended(program) == (0, "[4.0, 4.0, 4.0, 4.0]\n")


CUDAGRAPH_TREES = """
import torch
def double(x):
    return (x * 2).relu() + 1
compiled = torch.compile(double, mode="reduce-overhead")
given = torch.ones(4, device="cuda")
for step in range(4):
    torch.compiler.cudagraph_mark_step_begin()
    out = compiled(given)
    breakpoint()
    print(out.tolist(), flush=True)
"""


def test_cudagraph_trees(serve, look):
    """Beside CUDA graphs of torch.compile (mode reduce-overhead) each step's output is read and stays right."""
    program = serve(CUDAGRAPH_TREES)
    for _ in range(4):
        assert "min 3  max 3" in look(program.id, "tensor out", "c")
    assert ended(program) == (0, "[3.0, 3.0, 3.0, 3.0]\n" * 4)


TRITON = """
import torch, triton, triton.language as tl
@triton.jit
def add_one(x, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(x + at, tl.load(x + at) + 1)
x = torch.zeros(8, device="cuda")
breakpoint()
print(x.tolist(), flush=True)
"""


def test_triton_at_a_pause(serve, look):
    """A Triton kernel is compiled and launched from the console at a pause."""
    program = serve(TRITON)
    assert "min 1  max 1" in look(program.id, "!add_one[(1,)](x, 8)", "tensor x", "c")
    assert ended(program) == (0, f"{[1.0] * 8}\n")
