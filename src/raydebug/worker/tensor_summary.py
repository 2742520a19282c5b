"""Summarize a tensor or an array: with a sample of its values on a CPU, and without waiting for a GPU.

Sources: torch 2.11 and 2.13: `torch._C.DisableTorchFunctionSubclass` and `torch._C._DisableTorchDispatch` stop
the Python code of a subclass from running, `UntypedStorage._cdata` is the address of a storage. Tested by
tests/cpu/test_snapshots.py.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from raydebug.protocol.snapshot import NUMPYS, TensorSummary

FIRST = 8
PROBE, SLOW_S = 64, 0.002  # elements that are read first; if that is slow (a memory-mapped file), no more are read
NUMBERS = "biufcOmM"  # kinds of numpy's types whose names say all
AFTER_CUDA_ERROR = "after a CUDA error"


def summarize(value: Any, kind: Any, limit: int) -> TensorSummary:
    """Return the summary of a tensor or an array; `limit` is the most values to read, 0 if none may be read."""
    numpy: Any = sys.modules.get("numpy")
    if hasattr(numpy, "ndarray") and issubclass(kind, numpy.ndarray):
        return _of_array(numpy, value, kind, limit)
    torch: Any = sys.modules["torch"]
    with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
        return _of_tensor(torch, value, kind, limit)


def _of_tensor(torch: Any, x: Any, kind: Any, limit: int) -> TensorSummary:
    of = torch.Tensor  # a subclass may override these: call the descriptors of Tensor itself
    device = of.device.__get__(x)
    summary: TensorSummary = {
        "shape": _plain(of.shape.__get__(x)),
        "dtype": str(of.dtype.__get__(x)).removeprefix("torch."),
        "device": str(device),
        "requires_grad": bool(of.requires_grad.__get__(x)),
    }
    is_plain = kind is torch.Tensor or kind is torch.nn.Parameter
    with contextlib.suppress(Exception):  # sparse and quantized ones have no strides
        summary["stride"] = _plain(of.stride(x))
        if type(count := of.numel(x)) is int:
            summary["bytes"] = count * of.element_size(x)
        if is_plain:
            summary["storage"] = hex(of.untyped_storage(x)._cdata)
    why = "" if is_plain else "a subclass"
    if device.type != "cpu":
        why = "on a device: a read would wait for it"
    elif of.layout.__get__(x) is not torch.strided:
        why = "not strided"
    elif of.dtype.__get__(x).is_complex:
        why = "complex numbers"
    if not limit:
        why = AFTER_CUDA_ERROR
    if why:
        summary["unread"] = why
        return summary
    try:
        with torch.no_grad():
            bare, stride, offset = of.detach(x), summary["stride"], of.storage_offset(x)

            def pick(counts: list[int], steps: list[int]) -> list[Any]:
                strides = [one * step for one, step in zip(stride, steps, strict=True)]
                found: list[Any] = of.as_strided(bare, counts, strides, offset).reshape(-1).tolist()
                return found

            _add_values(summary, pick, limit)
    except Exception as error:  # noqa: BLE001 - a dtype without tolist, a tensor of functorch
        summary["unread"] = type(error).__name__
    return summary


def _plain(sizes: Iterable[Any]) -> list[int | str]:
    """Return sizes as they can be saved: those that a nested tensor has for each row, such as `j1`, are symbols."""
    return [size if type(size) is int else str(size) for size in sizes]


def _of_array(numpy: Any, x: Any, kind: Any, limit: int) -> TensorSummary:
    of = numpy.ndarray
    dtype = of.dtype.__get__(x)
    root = x
    while kind is of and type(of.base.__get__(root)) is of:
        root = of.base.__get__(root)
    shape = list(of.shape.__get__(x))
    summary: TensorSummary = {
        "shape": shape,
        "dtype": dtype.name if dtype.isnative and dtype.kind in NUMBERS else dtype.str,
        "device": "cpu",
        "stride": list(of.strides.__get__(x)),
        "bytes": of.nbytes.__get__(x),
        "storage": f"{NUMPYS}{id(root):#x}",
    }
    if kind is not of or dtype.kind not in "iufb" or not limit:
        summary["unread"] = "a subclass" if kind is not of else f"values of type {dtype.kind}"
        return summary

    def pick(counts: list[int], steps: list[int]) -> list[Any]:
        slices = tuple(slice(0, count * step, step) for count, step in zip(counts, steps, strict=True))
        found: list[Any] = of.__getitem__(x, (..., *slices)).ravel().tolist()
        return found

    _add_values(summary, pick, limit)
    return summary


def _sample_of(shape: list[int], limit: int) -> tuple[list[int], list[int]]:
    """Return how many elements of each dimension to read, and the step between them; at most `limit` in all."""
    counts, steps, left = [0] * len(shape), [1] * len(shape), limit
    by_size = sorted(range(len(shape)), key=shape.__getitem__)
    for position, dimension in enumerate(by_size):
        size = shape[dimension]
        wanted = max(1, math.floor(left ** (1 / (len(shape) - position)) + 1e-9))
        steps[dimension] = max(1, math.ceil(size / wanted))
        counts[dimension] = math.ceil(size / steps[dimension])
        left = max(1, left // max(1, counts[dimension]))
    return counts, steps


def _add_values(summary: TensorSummary, pick: Callable[[list[int], list[int]], list[Any]], limit: int) -> None:
    """Add the first values to a summary, and the statistics of a sample of at most `limit` values.

    `pick` returns values, given their number in each dimension and the step between them.
    """
    shape = [int(size) for size in summary["shape"]]
    if 0 in shape:
        summary["sampled"] = 0
        return
    began = time.monotonic()
    first = pick([1] * len(shape[:-1]) + [min(FIRST, side) for side in shape[-1:]], [1] * len(shape))
    values = pick(*_sample_of(shape, PROBE))
    if len(values) < math.prod(shape) and time.monotonic() - began < SLOW_S:
        values = pick(*_sample_of(shape, limit))
    summary["sampled"] = len(values)
    summary["first"] = [float(value) if math.isfinite(value) else repr(float(value)) for value in first]
    finite = values if math.isfinite(sum(values)) else [value for value in values if math.isfinite(value)]
    summary["nan"] = 0 if finite is values else sum(1 for value in values if value != value)
    summary["inf"] = len(values) - len(finite) - summary["nan"]
    if finite:
        summary["min"], summary["max"] = float(min(finite)), float(max(finite))
        summary["mean"] = math.fsum(finite) / len(finite)
