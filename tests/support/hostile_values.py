"""Values whose every method ends the process, hangs or raises: what a snapshot must not touch."""

from __future__ import annotations

import os
import time
from typing import Any

LEFT_ALONE = ("__new__", "__init__", "__init_subclass__", "__subclasshook__", "__del__", "__getstate__", "__doc__")
MORE = ("__getattr__", "__bool__", "__call__", "__get__", "__fspath__", "__index__", "__array__", "__torch_function__")
BASES = (object, int, str, float, list, dict, tuple, set, frozenset, bytes, bytearray, Exception)


def ends(*_: Any, **__: Any) -> Any:
    """End the process."""
    os._exit(9)


def hangs(*_: Any, **__: Any) -> Any:
    """Wait for longer than any test."""
    time.sleep(1000)


def raises(*_: Any, **__: Any) -> Any:
    """Raise what is no Exception."""
    raise SystemExit("called")


class Meta(type):
    """A metaclass whose classes may not be compared, hashed or looked at."""

    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = __repr__ = __getattribute__ = ends  # type: ignore[assignment]


def hostile(base: type, act: Any) -> Any:
    """Return a value of a subclass of `base`, of which everything calls `act`."""
    names = {*MORE, *(n for b in BASES for n in dir(b) if n.startswith("__"))} - {*LEFT_ALONE, "__class__"}
    namespace: dict[str, Any] = dict.fromkeys(names, act)
    namespace |= {name: property(act) for name in ("__class__", "__dict__", "items", "keys", "shape", "value")}
    return base.__new__(type(f"Hostile_{base.__name__}_{act.__name__}", (base,), namespace))


ALL = [hostile(base, act) for base in BASES for act in (ends, hangs, raises)]
OF_META = object.__new__(Meta("OfMeta", (), {}))


class Silent(Exception):
    """An exception whose text, cause and attributes may not be asked for."""

    __str__ = __repr__ = __getattribute__ = ends  # type: ignore[assignment]
    __cause__ = property(ends)  # type: ignore[assignment]
