"""Find the training step of a frame in its callers. Reads plain attributes: runs no user code."""

from __future__ import annotations

from types import FrameType
from typing import Any

# verl 0.9.1 counts in `self.global_steps` of its trainer and passes it along with the batch: in a DataProto's
# `meta_info["global_steps"]`, in a TensorDict's "global_steps", once for the batch or once for each of its rows
# (tensordict 0.10 NonTensorData, NonTensorStack). transformers 5.9 Trainer counts in `self.state.global_step`.
NAMES = ("global_steps", "global_step")
MAX_FRAMES = 60


def step_of(frame: FrameType | None) -> int | None:
    """Return the step in the nearest caller that has one, or None."""
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        local = frame.f_locals
        found = _number_in(local)
        if found is None:
            found = _of_object(local.get("self"))
        if found is None:
            found = next((n for value in list(local.values()) if (n := _of_batch(value)) is not None), None)
        if found is not None:
            return found
        frame = frame.f_back
    return None


def _number_in(names: Any) -> int | None:
    if type(names) is not dict and not hasattr(names, "get"):
        return None
    for name in NAMES:
        value = names.get(name)
        if type(value) is int:
            return value
    return None


def _attributes(instance: Any) -> dict[str, Any]:
    try:
        attributes = object.__getattribute__(instance, "__dict__")
    except Exception:  # noqa: BLE001 - an object without a plain __dict__ knows no step
        return {}
    return attributes if type(attributes) is dict else {}


def _of_object(instance: Any) -> int | None:
    if instance is None:
        return None
    attributes = _attributes(instance)
    found = _number_in(attributes)
    return _number_in(_attributes(attributes.get("state"))) if found is None else found


def _of_batch(value: Any) -> int | None:
    attributes = _attributes(value)
    about = attributes.get("meta_info")
    if type(about) is dict:
        return _number_in(about)
    fields = attributes.get("_tensordict")
    if type(fields) is not dict:
        return None
    found = next((fields[name] for name in NAMES if name in fields), None)
    rows = _attributes(found).get("tensordicts")
    if type(rows) is list and rows:
        found = rows[0]
    held = _attributes(found).get("_non_tensordict")
    number = held.get("data") if type(held) is dict else None
    return number if type(number) is int else None
