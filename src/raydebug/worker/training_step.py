"""The training step that a frame belongs to, from plain attributes of its callers: no user code runs."""

from __future__ import annotations

from itertools import islice
from types import FrameType, GetSetDescriptorType
from typing import Any

from raydebug.worker.frame_locals import CO_OPTIMIZED, locals_of
from raydebug.worker.frames import outwards

# verl 0.9.1 counts in `self.global_steps` of its trainer and passes it along with the batch: in a DataProto's
# `meta_info["global_steps"]`, in a TensorDict's "global_steps", once for the batch or once for each of its rows
# (tensordict 0.10 NonTensorData, NonTensorStack). transformers 5.9 Trainer counts in `self.state.global_step`.
STEP_NAMES = ("global_steps", "global_step")
MAX_FRAMES = 60


def step_of(frame: FrameType | None) -> int | None:
    """Return the step in the nearest caller that has one, or None."""
    steps = map(step_of_frame, islice(outwards(frame), MAX_FRAMES))
    return next((step for step in steps if step is not None), None)


def step_of_frame(frame: FrameType) -> int | None:
    """Return the step that a frame itself has, or None."""
    if not frame.f_code.co_flags & CO_OPTIMIZED and frame.f_code.co_name != "<module>":
        return None  # the body of a class: its namespace may be an object of the user's
    local = locals_of(frame)
    found = _number_in(local)
    if found is None:
        found = _of_object(local.get("self"))
    if found is None:
        found = next((n for value in list(local.values()) if (n := _of_batch(value)) is not None), None)
    return found


def _number_in(names: Any) -> int | None:
    if type(names) is not dict and not hasattr(names, "get"):
        return None
    for name in STEP_NAMES:
        value = names.get(name)
        if type(value) is int:
            return value
    return None


def attributes_of(instance: Any) -> dict[str, Any]:
    """Return the plain attributes of an object, without calling its class; those of its `__slots__` are left out."""
    for base in type.__dict__["__mro__"].__get__(type(instance)):
        member = type.__dict__["__dict__"].__get__(base).get("__dict__")
        if member is not None:  # a property of the user's is not called
            attributes = member.__get__(instance) if type(member) is GetSetDescriptorType else None
            return attributes if type(attributes) is dict else {}
    return {}


def _of_object(instance: Any) -> int | None:
    if instance is None:
        return None
    attributes = attributes_of(instance)
    found = _number_in(attributes)
    return _number_in(attributes_of(attributes.get("state"))) if found is None else found


def _of_batch(value: Any) -> int | None:
    attributes = attributes_of(value)
    about = attributes.get("meta_info")
    if type(about) is dict:
        return _number_in(about)
    fields = attributes.get("_tensordict")
    if type(fields) is not dict:
        return None
    found = next((fields[name] for name in STEP_NAMES if name in fields), None)
    rows = attributes_of(found).get("tensordicts")
    if type(rows) is list and rows:
        found = rows[0]
    held = attributes_of(found).get("_non_tensordict")
    number = held.get("data") if type(held) is dict else None
    return number if type(number) is int else None
