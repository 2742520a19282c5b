"""One of two ranks, with a tensor of each kind for the tests of `tensor` and `diff`; values differ by `rank`."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._flat_param import FlatParamHandle, HandleShardingStrategy
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=2)
mesh, plane = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (1, 2))


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1, bias=False))


def plain() -> dict[str, torch.Tensor]:
    long = torch.zeros(1 << 21)
    long[7] = rank
    return {
        "bf16": torch.arange(6, dtype=torch.bfloat16) + 0.25 * rank,
        "odd": torch.tensor([1.0, float("nan"), float("inf")] if rank else [1.0, 2.0, float("inf")]),
        "sizes": torch.ones(2, 3 + rank),
        "empty": torch.empty(0, 4),
        "learned": torch.nn.Parameter(torch.ones(2) * (1 + rank)),
        "long": long,
        "huge": torch.zeros(1, dtype=torch.float64).expand((1 << 25) + 1),
        "whole": torch.tensor([1 << 40, rank]),
        "flags": torch.tensor([True, bool(rank)]),
        "turned": torch.tensor([1 + 2j, 3 - 1j]).conj() * (1 + rank),
        "view": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "eight": torch.tensor([1.0, 2.0 + 2 * rank]).to(torch.float8_e4m3fn),
        "meta": torch.empty(5, device="meta"),
        "rows": torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)], layout=torch.jagged),
        "split": torch.nested.nested_tensor([torch.ones(2 + rank), torch.ones(3 - rank)], layout=torch.jagged),
        "holes": torch.nested.narrow(
            torch.arange(12.0).reshape(3, 4), 1, torch.tensor([0, 1, 0]), torch.tensor([2, 3, 4]), layout=torch.jagged
        ),
        "strided": torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)]),
        "places": torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (4,)),
        "by_rows": torch.eye(3).to_sparse_csr(),
    }


def flat_shard() -> torch.Tensor:
    """FSDP1 wraps no model without an accelerator; its flat parameter can be made and sharded all the same."""
    module = model()
    handle = FlatParamHandle(
        list(module.parameters()), module, torch.device("cpu"), HandleShardingStrategy.FULL_SHARD,
        offload_params=False, mp_param_dtype=None, mp_reduce_dtype=None, keep_low_precision_grads=False,
        process_group=dist.group.WORLD, use_orig_params=False,
    )  # fmt: skip
    handle.shard()
    return handle.flat_param


def distributed() -> dict[str, torch.Tensor]:
    table, ours = torch.arange(24.0).reshape(6, 4), torch.ones(2) * (rank + 1)
    new = fully_shard(model(), mesh=mesh)
    new(torch.ones(1, 3) * (rank + 1)).sum().backward()
    return {
        "shard": distribute_tensor(table, mesh, [Shard(0)]),
        "uneven": distribute_tensor(torch.arange(3.0), mesh, [Shard(0)]),
        "hybrid": distribute_tensor(table, plane, [Replicate(), Shard(1)]),
        "lonely": distribute_tensor(torch.ones(1), mesh, [Shard(0)]),
        "copy": distribute_tensor(table, mesh, [Replicate()]),
        "mixed": DTensor.from_local(ours, mesh, [Shard(0)]) if rank else ours,
        "broken": DTensor.from_local(ours, mesh, [Replicate()], run_check=False),
        "share": DTensor.from_local(ours, mesh, [Partial()]),
        "weight": new[0].weight,
        "gradient": new[0].weight.grad,
        "flat": flat_shard(),
    }


t = {**plain(), **distributed()}
breakpoint()
dist.barrier()
dist.destroy_process_group()
