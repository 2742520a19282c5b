"""Which part of a tensor a process holds, and the values that it stores for it; sent along with tensor_probe.py.

Nothing here communicates: a collective that one rank runs alone would hang until the others run it too. What a DTensor
knows of its mesh, and which shard is stored here, this process knows by itself.
"""

from __future__ import annotations

import hashlib
from typing import Any

Facts = dict[str, Any]
HASHED_BYTES = 1 << 28  # of a tensor; beyond it equality is judged by its sums


def stored(torch: Any, value: Any, out: Facts) -> Any:
    """Return the values that this process stores for a tensor, as a plain dense tensor, and tell what they are.

    Args:
        torch: the module, as the process has it.
        value: a tensor of any layout.
        out: takes `shape`; of a part `placements`, `local_shape`, `part` (its index, and how many there are) and
            `partial`; of a layout that is not dense `layout`, and `places`, a hash of where the values stand.
    """
    local = value.detach()
    if hasattr(local, "placements") and hasattr(local, "to_local"):
        _tell_shard(value, out)
        local = local.to_local()
        out["local_shape"] = list(local.shape)
    elif getattr(value, "_is_flat_param", False):
        _tell_flat_shard(torch, value, out)
    if local.is_nested:
        return _rows(torch, local, out)
    if local.layout != torch.strided:
        return _sparse(torch, local, out)
    return local.resolve_conj().resolve_neg() if local.is_complex() or local.is_neg() else local


def sizes(value: Any) -> list[Any]:
    """Return a tensor's shape; of a nested one the range of its rows' sizes, such as `3..8`."""
    if not value.is_nested:
        return [size if type(size) is int else str(size) for size in value.shape]
    rows = [list(row.shape) for row in value.detach().unbind()]
    columns = [sorted(set(column)) for column in zip(*rows, strict=False)]
    return [len(rows), *(column[0] if len(column) == 1 else f"{column[0]}..{column[-1]}" for column in columns)]


def _tell_shard(value: Any, out: Facts) -> None:
    # Source: torch 2.13 distributed/tensor/placement_types.py: Shard, _StridedShard, Replicate, Partial.
    out["placements"] = [str(placement) for placement in value.placements]
    mesh, at = value.device_mesh, value.device_mesh.get_coordinate()
    index, count = 0, 1
    for axis, placement in enumerate(value.placements):
        if not placement.is_replicate():
            count *= mesh.size(axis)
            index = index * mesh.size(axis) + (at[axis] if at is not None else 0)
        if placement.is_partial():
            out["partial"] = True
    if count > 1:
        out["part"] = [index, count]


def _tell_flat_shard(torch: Any, value: Any, out: Facts) -> None:
    # Source: torch 2.13 distributed/fsdp/_flat_param.py: FlatParameter's _unpadded_unsharded_size and _sharded_size.
    whole, sharded = value._unpadded_unsharded_size.numel(), value._sharded_size.numel()
    if value.numel() == sharded and sharded < whole:
        out["placements"] = [f"a flat parameter of FSDP1 with {whole} elements"]
        out["local_shape"] = list(value.shape)
        out["part"] = [torch.distributed.get_rank() if torch.distributed.is_initialized() else 0, -(-whole // sharded)]


def _rows(torch: Any, local: Any, out: Facts) -> Any:
    rows = local.unbind()
    out["layout"] = f"nested, {len(rows)} rows"
    out["places"] = hashlib.blake2b(repr([list(row.shape) for row in rows]).encode()).hexdigest()
    dense = local.layout == torch.jagged and local.lengths() is None  # else there are values between its rows
    return local.values() if dense else torch.cat([row.reshape(-1) for row in rows])


def _sparse(torch: Any, local: Any, out: Facts) -> Any:
    out["layout"] = str(local.layout).removeprefix("torch.").replace("sparse_coo", "sparse")
    if local.layout == torch.sparse_coo:
        values, places = local._values(), [local._indices()]
    elif local.layout in (torch.sparse_csr, torch.sparse_bsr):
        values, places = local.values(), [local.crow_indices(), local.col_indices()]
    else:
        values, places = local.values(), [local.ccol_indices(), local.row_indices()]
    out["places"] = [digest(torch, place) for place in places]
    return values


def digest(torch: Any, numbers: Any) -> str | None:
    """Return a hash of all bytes of a dense tensor; None for one that is too large for it, or has none."""
    if numbers.device.type == "meta" or numbers.numel() * numbers.element_size() > HASHED_BYTES:
        return None
    return hashlib.blake2b(numbers.reshape(-1).cpu().contiguous().view(torch.uint8).numpy()).hexdigest()
