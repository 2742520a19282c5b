"""Summaries of tensors in snapshots, the values that are never read, and the names of torch that the code uses."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from typing import Any

import numpy
import pytest
import torch

from raydebug.snapshot.values import tensor_line
from raydebug.worker import snapshot, tensor_summary
from raydebug.worker.saved_values import Values


@pytest.fixture(autouse=True)
def elements_read(monkeypatch):
    """How many elements each reading of a tensor has; none is taken for slow, however busy the machine is."""
    read: list[int] = []
    original = tensor_summary._add_values

    def add_values(summary: Any, pick: Any, limit: int) -> None:
        def counted(counts: list[int], steps: list[int]) -> Any:
            read.append(len(found := pick(counts, steps)))
            return found

        original(summary, counted, limit)

    monkeypatch.setattr(tensor_summary, "_add_values", add_values)
    monkeypatch.setattr(tensor_summary, "SLOW_S", 60.0)
    return read


def summary_of(value: Any, **options: Any) -> dict[str, Any]:
    """Return the summary of a tensor."""
    values = Values(time.monotonic() + 10, 10**6, **options)
    index = values.add([("x", value)], 3)["x"]
    found: dict[str, Any] = dict(values.saved[index]["tensor"])
    json.dumps(found, allow_nan=False)
    return found


def test_values_of_a_small_tensor():
    """The summary has shape, dtype, first values, the numbers of NaN and Inf, and statistics of the other values."""
    found = summary_of(torch.tensor([[1.0, float("nan")], [float("inf"), 3.0]], dtype=torch.bfloat16))
    assert (found["shape"], found["dtype"], found["device"], found["stride"]) == ([2, 2], "bfloat16", "cpu", [2, 1])
    assert (found["nan"], found["inf"], found["min"], found["max"], found["mean"]) == (1, 1, 1.0, 3.0, 2.0)
    assert found["first"] == [1.0, "nan"]
    assert (found["sampled"], found["bytes"]) == (4, 8)


def test_a_large_tensor_is_sampled(elements_read):
    """Of 256 MiB at most 4,096 elements are read, beside the first ones and a probe; so of a transposed view."""
    weights = torch.zeros(8192, 8192)
    weights[0, :3] = torch.tensor([1.0, 2.0, 3.0])
    found, view = summary_of(weights), summary_of(weights.t())
    assert found["first"][:4] == [1.0, 2.0, 3.0, 0.0]
    assert found["sampled"] == view["sampled"] == 4096
    assert elements_read == [tensor_summary.FIRST, tensor_summary.PROBE, 4096] * 2
    assert (view["stride"], view["storage"]) == ([1, 8192], found["storage"])


def test_a_slow_tensor_is_read_no_further(monkeypatch, elements_read):
    """Of a tensor whose first elements are slow to read, such as a file that is mapped, no others are read."""
    monkeypatch.setattr(tensor_summary, "SLOW_S", 0.0)
    assert summary_of(torch.zeros(8192, 8192))["sampled"] == tensor_summary.PROBE
    assert elements_read == [tensor_summary.FIRST, tensor_summary.PROBE]


class OwnTensor(torch.Tensor):
    """A subclass whose methods must not be called."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        os._exit(9)

    @property
    def shape(self) -> Any:
        os._exit(9)

    def __repr__(self, **_: Any) -> str:
        os._exit(9)


class OwnDispatch(torch.Tensor):
    """A wrapper that overrides all operators, also those for its shape."""

    @staticmethod
    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (2, 3), dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        os._exit(9)


@pytest.mark.parametrize(
    ("value", "unread"),
    [
        (torch.zeros(2, 3).as_subclass(OwnTensor), "a subclass"),
        (OwnDispatch(), "a subclass"),
        (torch.zeros(2, 3, device="meta"), "on a device: a read would wait for it"),
        (torch.zeros(2, 3, dtype=torch.complex64), "complex numbers"),
        (torch.eye(2, 3).to_sparse(), "not strided"),
        (numpy.zeros((2, 3)).view(numpy.memmap), "a subclass"),
        (numpy.array([["a"] * 3] * 2), "values of type U"),
    ],
    ids=["subclass", "dispatch", "device", "complex", "sparse", "memmap", "texts"],
)
def test_what_is_not_read(value: Any, unread: str):
    """A subclass, a tensor on a device, a sparse or mapped one has its shape, and the reason why it has no values."""
    found = summary_of(value)
    assert (found["shape"], found["unread"]) == ([2, 3], unread)


def test_a_nested_tensor():
    """A batch of verl's has rows of different lengths: the size that each row has is a symbol, which JSON lacks."""
    batch = torch.nested.nested_tensor([torch.ones(2), torch.ones(5)], layout=torch.jagged)
    found = summary_of(batch)
    assert found["shape"][0] == 2
    assert re.fullmatch(r"j\d+", found["shape"][1])
    assert (found["unread"], "storage" in found) == ("not strided", False)
    assert tensor_line({"type": "NestedTensor", "tensor": found}).startswith("NestedTensor  [2xj")  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (torch.tensor(3), 1),
        (torch.zeros(0, 4), 0),
        (torch.arange(10)[::3], 4),
        (torch.randn(5, requires_grad=True) * 2, 5),
        (torch.nn.Parameter(torch.ones(3)), 3),
        (torch.randn(1).expand(100_000, 100), 4050),
        (numpy.arange(12.0).reshape(3, 4).T, 12),
        (numpy.float32([1.5]), 1),
    ],
)
def test_every_layout(value: Any, sampled: int):
    """Scalars, empty, strided, expanded and grad-requiring tensors, and arrays, have their values."""
    assert summary_of(value)["sampled"] == sampled


def test_after_an_error_of_cuda():
    """After a CUDA error, also one in the chain of the exception, no tensor is read."""

    def work() -> None:
        weights = torch.zeros(3)
        try:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        except RuntimeError as error:
            raise ValueError(f"step failed, {weights.shape}") from error

    try:
        work()
    except ValueError as error:
        frames = snapshot.frames_of(error)
        summary = snapshot.summarize(error, frames, "crash")
        document = json.loads(gzip.decompress(snapshot.write(error, frames, summary, "MainThread")))
    weights = document["values"][document["frames"][0]["locals"]["weights"]]["tensor"]
    assert (weights["shape"], weights["unread"]) == ([3], "after a CUDA error")
