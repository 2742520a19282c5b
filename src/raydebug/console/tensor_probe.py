"""Describe a tensor inside the paused process, for `tensor EXPR` and `diff EXPR`; sent as source.

It uses only the standard library and modules that the process has loaded already, and never copies a large tensor:
reductions run on the tensor's device, over pieces of at most PIECE elements, and only their results leave the device.

No function here communicates: a collective on one rank alone would hang until the other ranks join it. The mesh of a
DTensor and the shard of this rank are known locally.
"""

from __future__ import annotations

import array
import base64
import hashlib
import json
import math
import re
import sys
from typing import Any

PIECE = 1 << 24  # elements
COMPARED_ELEMENTS = 1 << 20  # of a tensor that is compared element by element: 8 MiB as float64
HASHED_BYTES = 1 << 28  # of a tensor; a larger one is compared by its sums
TEXT_CHARS = 2000

Facts = dict[str, object]


def describe(value: Any, first: int = 8, piece: int = PIECE) -> str:
    """Return JSON with shape, dtype, device, spread, NaN and Inf counts and first values of a tensor or array."""
    return json.dumps(_described(value, first, piece)[0])


def summarise(value: Any, key: str) -> str:
    """Return JSON for the comparison of values of several processes.

    Args:
        value: anything. The elements of a tensor with at most COMPARED_ELEMENTS are kept in sys, to be fetched.
        key: the key of the kept elements.
    """
    found, numbers = _described(value, 0, PIECE)
    if numbers is None:
        text = value if isinstance(value, str) else repr(value)
        # Equal objects have different addresses.
        same = re.sub(r" at 0x[0-9a-f]+", " at 0x...", text)
        shown = repr(same[:TEXT_CHARS]) if isinstance(value, str) else same[:TEXT_CHARS]
        digest = hashlib.blake2b(same.encode("utf-8", "replace")).hexdigest()
        more = max(0, len(same) - TEXT_CHARS)
        return json.dumps({"type": found["type"], "text": shown, "more": more, "hash": digest})
    if "note" in found:
        return json.dumps(found)
    try:
        found["hash"] = _hash(numbers)
        size = int(numbers.numel() if hasattr(numbers, "numel") else numbers.size)
        if 0 < size <= COMPARED_ELEMENTS:
            kept = sys.__dict__.setdefault("_raydebug_packed", {})
            flat = numbers.reshape(-1).tolist()
            if isinstance(flat[0], complex):
                flat = [part for item in flat for part in (item.real, item.imag)]
            kept[key] = base64.b64encode(array.array("d", flat).tobytes()).decode("ascii")
            found["packed"] = len(kept[key])
    except Exception as error:  # noqa: BLE001 - the facts so far can still be compared
        found["note"] = "values not compared: " + type(error).__name__ + ": " + str(error)
    return json.dumps(found)


def _described(value: Any, first: int, piece: int) -> tuple[Facts, Any]:
    """Return the facts, and the array of elements; None if the value is not a tensor."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    out: Facts = {"type": type(value).__module__ + "." + type(value).__qualname__}
    if torch is not None and hasattr(torch, "Tensor") and isinstance(value, torch.Tensor):
        return out, _describe_torch(torch, value, out, first, piece)
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return out, _describe_numpy(numpy, value, out, first, piece)
    return {**out, "error": f"not a tensor or an array: {out['type']}"}, None


def _describe_torch(torch: Any, value: Any, out: Facts, first: int, piece: int) -> Any:
    out.update(shape=[], dtype=str(value.dtype).removeprefix("torch."), device=str(value.device))
    out.update(requires_grad=bool(value.requires_grad), numel=int(value.numel()))
    local = value
    try:
        with torch.no_grad():
            out["shape"] = sizes(value)
            local = stored(torch, value, out)
            if local.device.type == "meta":
                out["note"] = "a meta tensor holds no values"
            elif local.numel():
                head = local
                while head.dim() > 1:
                    head = head[0] if local.numel() > piece and not local.is_contiguous() else head.flatten()
                out["first"] = [_plain(item) for item in head.reshape(-1)[:first].tolist()]
                _spread(out, (_torch_moments(torch, part) for part in _torch_pieces(local, piece)), 1)
    except Exception as error:  # noqa: BLE001 - a subclass may refuse any operation; the facts so far are still shown
        out["note"] = "values not read: " + type(error).__name__ + ": " + str(error)
    return local


def _describe_numpy(numpy: Any, value: Any, out: Facts, first: int, piece: int) -> Any:
    values = numpy.asarray(value)
    out.update(shape=list(values.shape), dtype=str(values.dtype), device="cpu", numel=values.size)
    if values.size:
        out["first"] = [_plain(item) for item in values.flat[:first].tolist()]
        if values.dtype.kind in "buifc":
            _spread(out, (_numpy_moments(numpy, part) for part in _numpy_pieces(values, piece)), 0)
    return values


def _plain(item: Any) -> Any:
    return repr(item) if not isinstance(item, (int, float, bool, str)) or item != item else item


def _torch_pieces(part: Any, piece: int) -> Any:
    if part.numel() <= piece:
        yield part.reshape(-1)
    elif part.is_contiguous():
        yield from part.view(-1).split(piece)
    else:
        rows = max(1, part.shape[0] * piece // part.numel())
        for rest in part.split(rows) if part.shape[0] > 1 else (part[0],):
            yield from _torch_pieces(rest, piece)


def _torch_moments(torch: Any, part: Any) -> list[float]:
    exact = not (part.is_floating_point() or part.is_complex())
    part = part.abs() if part.is_complex() else part
    wide = part.to(torch.float64 if exact and part.device.type != "mps" else torch.float32)
    finite = torch.isfinite(wide)
    held = int(finite.sum())
    bad = [int(torch.isnan(wide).sum()), int(torch.isinf(wide).sum())] if held < wide.numel() else [0, 0]
    wide = wide if held == wide.numel() else wide[finite]
    if not held:
        return [0, *bad]
    mean = wide.mean(dtype=wide.dtype)
    square = (wide - mean).square_().sum()
    return [held, *bad, *torch.stack([wide.min(), wide.max(), mean, square]).tolist()]


def _numpy_pieces(part: Any, piece: int) -> Any:
    flat = part.reshape(-1) if part.flags.c_contiguous or part.size <= piece else part.flat
    for start in range(0, part.size, piece):
        yield flat[start : start + piece]


def _numpy_moments(numpy: Any, part: Any) -> list[float]:
    part = numpy.abs(part) if part.dtype.kind == "c" else part
    wide = part.astype(numpy.float64)
    finite = numpy.isfinite(wide)
    bad = [int(numpy.isnan(wide).sum()), int(numpy.isinf(wide).sum())]
    wide = wide[finite]
    if not wide.size:
        return [0, *bad]
    mean = wide.mean()
    return [wide.size, *bad, *map(float, (wide.min(), wide.max(), mean, ((wide - mean) ** 2).sum()))]


def _spread(out: Facts, moments: Any, sample: int) -> None:
    count, nan, inf, low, high, mean, square = 0, 0, 0, math.inf, -math.inf, 0.0, 0.0
    for held, bad_nan, bad_inf, *rest in moments:
        nan, inf = nan + bad_nan, inf + bad_inf
        if held:  # Chan's parallel update of mean and variance: a plain sum of squares loses digits
            low, high, shift = min(low, rest[0]), max(high, rest[1]), rest[2] - mean
            square += rest[3] + shift * shift * count * held / (count + held)
            mean += shift * held / (count + held)
            count += held
    out.update(nan=nan, inf=inf, finite=count)
    if count:
        out.update(min=low, max=high, mean=mean, norm=math.sqrt(square + count * mean * mean))
        if count > sample:
            out["std"] = math.sqrt(square / (count - sample))


def _hash(numbers: Any) -> str | None:
    """Return a hash of all bytes; None if there are too many, or the elements are objects."""
    if hasattr(numbers, "numel"):
        return digest(sys.modules["torch"], numbers)
    if numbers.dtype.hasobject or numbers.nbytes > HASHED_BYTES:
        return None
    return hashlib.blake2b(numbers.tobytes()).hexdigest()


# The part of a tensor that this process stores


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
