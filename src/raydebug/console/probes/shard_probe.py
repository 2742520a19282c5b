"""Find the part of a tensor that this process stores, and its values; sent as source, before tensor_probe.

No function here communicates: a collective on one rank alone would hang until the other ranks join it. The mesh of a
DTensor and the shard of this rank are known locally.
"""

from __future__ import annotations

import hashlib
from typing import Any

Facts = dict[str, Any]
HASHED_BYTES = 1 << 28  # of a tensor; a larger one is compared by its sums


def stored(torch: Any, value: Any, out: Facts) -> Any:
    """Return the values that this process stores for a tensor, as a dense tensor, and describe them in `out`.

    Args:
        torch: the module that the process has imported.
        value: a tensor of any layout.
        out: receives, of a part: `placements`, `local_shape`, `part` (index, count) and `partial`; of a layout that is
            not dense: `layout`, and `places`, a hash of the positions of the values.
    """
    local = value.detach()
    if hasattr(local, "placements") and hasattr(local, "to_local"):
        _describe_shard(value, out)
        local = local.to_local()
        out["local_shape"] = list(local.shape)
    elif getattr(value, "_is_flat_param", False):
        _describe_flat_shard(torch, value, out)
    if local.is_nested:
        return _rows(torch, local, out)
    if local.layout != torch.strided:
        return _sparse(torch, local, out)
    return local.resolve_conj().resolve_neg() if local.is_complex() or local.is_neg() else local


def sizes(value: Any) -> list[Any]:
    """Return the shape of a tensor; of a nested one with the range of its row sizes, such as `3..8`."""
    if not value.is_nested:
        return [size if type(size) is int else str(size) for size in value.shape]
    rows = [list(row.shape) for row in value.detach().unbind()]
    columns = [sorted(set(column)) for column in zip(*rows, strict=False)]
    return [len(rows), *(column[0] if len(column) == 1 else f"{column[0]}..{column[-1]}" for column in columns)]


def _describe_shard(value: Any, out: Facts) -> None:
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


def _describe_flat_shard(torch: Any, value: Any, out: Facts) -> None:
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
    dense = local.layout == torch.jagged and local.lengths() is None  # else there is padding between its rows
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
    """Return a hash of all bytes of a dense tensor; None if it is too large or a meta tensor."""
    if numbers.device.type == "meta" or numbers.numel() * numbers.element_size() > HASHED_BYTES:
        return None
    return hashlib.blake2b(numbers.reshape(-1).cpu().contiguous().view(torch.uint8).numpy()).hexdigest()
