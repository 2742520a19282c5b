"""The training step, where verl 0.9 hands it to its workers: in the batch."""

from __future__ import annotations

import sys

import pytest

from raydebug.worker.training_step import step_of


def worker_of(batch: object) -> int | None:
    """Say the step that a frame with this batch belongs to."""
    held = batch  # noqa: F841 - a local variable is what is looked at
    return step_of(sys._getframe())


@pytest.mark.parametrize("rows", [True, False], ids=["for each row", "once"])
def test_step_of_a_tensordict(rows: bool) -> None:
    """A TensorDict's step is read from its fields, whether verl gave one for the batch or one for each row."""
    import torch
    from tensordict import NonTensorData, NonTensorStack, TensorDict

    step = NonTensorStack(NonTensorData(7), NonTensorData(7)) if rows else NonTensorData(7)
    assert worker_of(TensorDict({"x": torch.ones(2), "global_steps": step}, batch_size=[2])) == 7
    assert worker_of(TensorDict({"x": torch.ones(2)}, batch_size=[2])) is None
    assert worker_of(TensorDict({"global_steps": torch.ones(2)}, batch_size=[2])) is None
