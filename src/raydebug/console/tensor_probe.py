"""What `tensor EXPR` runs inside the paused process: the source of `describe` is sent as it stands here.

It may use nothing but builtins and what the process has loaded already, and never copies a large tensor: reductions run
where the tensor lives, over pieces of at most PIECE elements, and only their results leave the device.
"""

from __future__ import annotations

from typing import Any


def describe(value: Any, first: int = 8, piece: int = 1 << 24) -> str:
    """Return JSON that tells shape, dtype, device, spread, NaN and Inf counts and first values of a tensor or array."""
    import json
    import math
    import sys

    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    out: dict[str, Any] = {"type": type(value).__module__ + "." + type(value).__qualname__}
    is_torch = torch is not None and isinstance(value, torch.Tensor)
    if not is_torch and not (numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))):
        return json.dumps({"error": "not a tensor or an array: " + out["type"]})

    def plain(item: Any) -> Any:
        return repr(item) if not isinstance(item, (int, float, bool, str)) or item != item else item

    def torch_pieces(part: Any) -> Any:
        if part.numel() <= piece:
            yield part.reshape(-1)
        elif part.is_contiguous():
            yield from part.view(-1).split(piece)
        else:
            rows = max(1, part.shape[0] * piece // part.numel())
            for rest in part.split(rows) if part.shape[0] > 1 else (part[0],):
                yield from torch_pieces(rest)

    def torch_moments(part: Any) -> list[float]:
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

    def numpy_moments(part: Any) -> list[float]:
        part = numpy.abs(part) if part.dtype.kind == "c" else part
        wide = part.astype(numpy.float64)
        finite = numpy.isfinite(wide)
        bad = [int(numpy.isnan(wide).sum()), int(numpy.isinf(wide).sum())]
        wide = wide[finite]
        if not wide.size:
            return [0, *bad]
        mean = wide.mean()
        return [wide.size, *bad, *map(float, (wide.min(), wide.max(), mean, ((wide - mean) ** 2).sum()))]

    def numpy_pieces(part: Any) -> Any:
        flat = part.reshape(-1) if part.flags.c_contiguous or part.size <= piece else part.flat
        for start in range(0, part.size, piece):
            yield flat[start : start + piece]

    def spread(pieces: Any, moments: Any, sample: int) -> None:
        count, nan, inf, low, high, mean, square = 0, 0, 0, math.inf, -math.inf, 0.0, 0.0
        for part in pieces:
            held, bad_nan, bad_inf, *rest = moments(part)
            nan, inf = nan + bad_nan, inf + bad_inf
            if held:  # Chan's way to join means and squares of parts, exact where sums of squares are not
                low, high, shift = min(low, rest[0]), max(high, rest[1]), rest[2] - mean
                square += rest[3] + shift * shift * count * held / (count + held)
                mean += shift * held / (count + held)
                count += held
        out.update(nan=nan, inf=inf, finite=count)
        if count:
            out.update(min=low, max=high, mean=mean)
            if count > sample:
                out["std"] = math.sqrt(square / (count - sample))

    if is_torch:
        out.update(shape=list(value.shape), dtype=str(value.dtype).removeprefix("torch."), device=str(value.device))
        out.update(requires_grad=bool(value.requires_grad), numel=value.numel())
        try:
            with torch.no_grad():
                local = value.detach()
                if hasattr(local, "to_local") and hasattr(local, "placements"):
                    out["placements"] = [str(placement) for placement in local.placements]
                    local = local.to_local()
                    out["local_shape"] = list(local.shape)
                if local.is_sparse:
                    out["layout"], local = "sparse", local._values()
                if local.device.type == "meta":
                    out["note"] = "a meta tensor holds no values"
                elif local.numel():
                    head = local
                    while head.dim() > 1:
                        head = head[0] if local.numel() > piece and not local.is_contiguous() else head.flatten()
                    out["first"] = [plain(item) for item in head.reshape(-1)[:first].tolist()]
                    spread(torch_pieces(local), torch_moments, 1)
        except Exception as error:  # noqa: BLE001 - a subclass may refuse any of it; what is known still is worth a look
            out["note"] = "values not read: " + type(error).__name__ + ": " + str(error)
        return json.dumps(out)

    array = numpy.asarray(value)
    out.update(shape=list(array.shape), dtype=str(array.dtype), device="cpu", numel=array.size)
    if array.size:
        out["first"] = [plain(item) for item in array.flat[:first].tolist()]
        if array.dtype.kind in "buifc":
            spread(numpy_pieces(array), numpy_moments, 0)
    return json.dumps(out)
