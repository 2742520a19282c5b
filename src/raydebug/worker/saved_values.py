"""Read the values of a snapshot without calling any code of the user's classes.

A class may define repr, str, len, iteration, comparison, hash and getattr, for its instances or, in a metaclass, for
itself. So the methods of the built-in base types are called instead (`dict.items(x)`), and attributes are read from
`__dict__` and slots with the descriptors that Python itself created.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import sys
import time
import types
from collections.abc import Iterable, Iterator
from typing import Any, cast

from raydebug.protocol.secrets import MAX_NAME, is_secret_name
from raydebug.protocol.snapshot import CONTENT, SavedValue
from raydebug.worker import tensor_summary

MAX_ITEMS, FEW_ITEMS, MAX_ATTRIBUTES, MAX_CHARS, MAX_BYTES_SHOWN = 16, 8, 40, 400, 64
SAMPLED, FEW_SAMPLED = 4096, 512  # elements of a tensor
MARGIN_CHARS = 256  # read beyond MAX_CHARS, so that a secret at the end is complete; cut off after it is hidden
MAX_INT_BITS = 1024
VALUE_COST = 60  # bytes of a value in JSON, beside its text
COVERED_LEVELS = 3  # of containers and attributes below a secret's name
KEY_MARK = "PRIVATE KEY-----"

_MODULE, _QUALNAME, _MRO = (type.__dict__[name] for name in ("__module__", "__qualname__", "__mro__"))
_NAMESPACE, _FLAGS = type.__dict__["__dict__"], type.__dict__["__flags__"]
_OF_MODULE: Any = vars(types.ModuleType)["__dict__"]
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class of a program, not of Python's core
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, set, frozenset, collections.deque)
_NAMED: tuple[Any, ...] = (types.FunctionType, types.BuiltinFunctionType)
_CONSTANTS: tuple[Any, ...] = (bool, type(None), type(...), range)
_BASES: tuple[Any, ...] = (
    *(str, *_CONSTANTS, int, float, *_CONTAINERS, bytes, bytearray, complex, type, types.ModuleType, *_NAMED),
    *(types.MethodType, memoryview),
)
# Classes of the standard library, written in C, whose own repr calls no code of a subclass; by their module.
_SHOWN = {"datetime": ("datetime", "date", "time", "timedelta"), "decimal": ("Decimal",)}


def type_name(kind: Any) -> str:
    """Return the qualified name of a class: `dict`, `my.module.Batch`."""
    module, name = _MODULE.__get__(kind), _QUALNAME.__get__(kind)
    if type(name) is not str:
        return "?"
    return name[:200] if type(module) is not str or module == "builtins" else f"{module}.{name}"[:300]


class _Kind:
    """How to read the instances of a class."""

    def __init__(self, kind: Any) -> None:
        torch, numpy = (getattr(sys.modules.get(name), "__dict__", {}) for name in ("torch", "numpy"))
        self.kind = kind
        self.name = type_name(kind)
        self.is_heap = bool(_FLAGS.__get__(kind) & _HEAP_TYPE)
        self.base: Any = next((base for base in _BASES if issubclass(kind, base)), None)
        arrays = [array for array in (torch.get("Tensor"), numpy.get("ndarray")) if array is not None]
        self.is_array = self.base is None and any(issubclass(kind, array) for array in arrays)
        self.content = CONTENT.get(self.name.partition(".")[0], ()) if self.is_heap else ()
        shown = (getattr(sys.modules.get(at), name, None) for at, names in _SHOWN.items() for name in names)
        self.shown: Any = None  # the built-in class whose repr describes it
        if self.base is None:
            self.shown = next((base for base in shown if type(base) is type and issubclass(kind, base)), None)
        self.item = None  # for a numpy scalar: returns it as a Python number
        if "generic" in numpy and not self.is_heap and issubclass(kind, numpy["generic"]):
            self.item = numpy["generic"].item

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """The names of the items of a named tuple."""
        spaces = (_NAMESPACE.__get__(base) for base in _MRO.__get__(self.kind)) if self.is_heap else ()
        found = next((space["_fields"] for space in spaces if "_fields" in space), ()) if self.base is tuple else ()
        return found if type(found) is tuple and all(type(field) is str for field in found) else ()

    @functools.cached_property
    def members(self) -> list[tuple[str, Any]]:
        """The descriptors of its `__dict__` and slots that Python created."""
        found: list[tuple[str, Any]] = []
        for base in _MRO.__get__(self.kind):
            is_heap = _FLAGS.__get__(base) & _HEAP_TYPE
            for name, member in _NAMESPACE.__get__(base).items():
                if type(member) is types.GetSetDescriptorType and member.__name__ == "__dict__":
                    found.insert(0, ("", member))
                elif is_heap and type(member) is types.MemberDescriptorType and type(name) is str:
                    found.append((name, member))
        return found

    def attributes_of(self, instance: object) -> list[tuple[str, object]]:
        """Return the first attributes of an instance."""
        found: list[tuple[str, object]] = []
        for name, member in self.members:
            with contextlib.suppress(AttributeError):  # a slot that is empty
                value = member.__get__(instance)
                if name:
                    found.append((name, value))
                elif type(value) is dict:
                    pairs = list(itertools.islice(value.items(), MAX_ATTRIBUTES + 1))
                    found += [(key, one) for key, one in pairs if type(key) is str]
        return found


def _name_in(value: object) -> str:
    """Return a text or bytes as a name that may tell of a secret; empty for other values."""
    kind: Any = type(value)
    if issubclass(kind, str):
        return str.__getitem__(cast("str", value), slice(MAX_NAME + 1))
    if issubclass(kind, bytes):
        return bytes.__getitem__(cast("bytes", value), slice(MAX_NAME + 1)).decode("latin-1")
    return ""


def _item_names(items: list[Any], length: int) -> Iterator[str]:
    """Yield the name of each item: the word before it, if that is an option or the first of a pair."""
    before = ""
    for item in items:
        yield before if length == 2 or before.startswith("-") else ""
        before = _name_in(item)


def _own_repr(value: Any, kind: Any) -> str:
    """Return what the built-in class of a value says of it; of a time zone, which may be the user's, the class."""
    zone = getattr(kind, "tzinfo", None)  # of datetime and time
    own = None if zone is None else zone.__get__(value)
    if own is None:
        return str(kind.__repr__(value))
    names = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    plain = kind(*(getattr(kind, name).__get__(value) for name in names if hasattr(kind, name)))
    return f"{kind.__repr__(plain)[:-1]}, tzinfo={type_name(type(own))})"


def attributes_of(instance: object) -> list[tuple[str, object]]:
    """Return the first attributes in the `__dict__` and slots of an object; no code of its class is called."""
    return _Kind(type(instance)).attributes_of(instance)


class Values:
    """The values of a snapshot; an object that is reached twice is saved once.

    Args:
        until: time (time.monotonic()) at which no further value is read.
        left_bytes: limit for their JSON.
        read_tensors: False after a CUDA error: tensors are then described without calling an operator of torch.
    """

    def __init__(self, until: float, left_bytes: int, *, read_tensors: bool = True) -> None:
        self.saved: list[SavedValue] = []
        self.hidden: list[str] = []  # texts that were redacted because of their name
        self.until, self.left_bytes, self._read_tensors = until, left_bytes, read_tensors
        self._covered: list[int] = []  # containers and objects below which all texts are secrets
        self._kinds: dict[int, _Kind] = {}  # by the id of the class
        self._seen: dict[int, int] = {}  # index of an object, by its id
        self._levels: dict[int, int] = {}  # with which containers and objects are opened, by their index
        self._kept: list[object] = []  # keeps the objects alive: Python reuses the id of a freed object
        self._queue: collections.deque[tuple[int, object, int]] = collections.deque()

    def spent(self) -> str:
        """Return which limit is reached: `size` or `time`; empty if none is."""
        if self.left_bytes <= 0:
            return "size"
        return "time" if time.monotonic() > self.until else ""

    def add(self, named: Iterable[tuple[str, object]], depth: int) -> dict[str, int]:
        """Read variables, breadth first, and return their indices.

        `depth` is how many levels of containers and attributes to open; with 1 fewer items are saved.
        """
        self._items, self._sampled = (MAX_ITEMS, SAMPLED) if depth > 1 else (FEW_ITEMS, FEW_SAMPLED)
        found = {name: self._place(value, depth, name) for name, value in named}
        while self._queue:
            index, value, remaining = self._queue.popleft()
            entry, cut = self.saved[index], self.spent()
            if cut:
                entry["cut"] = cut
                continue
            entry.pop("cut", None)
            try:
                self._open(entry, value, self._kinds[id(type(value))], remaining - 1)
            except Exception:  # noqa: BLE001 - another thread changed it, or no memory is left: keep what was read
                entry["cut"] = "items"
        return found

    def hide_covered(self) -> None:
        """Hide the texts below containers and objects with a secret's name; keys of a dict stay."""
        for index in self._covered:
            self._hide_below(self.saved[index], COVERED_LEVELS)

    def _hide_below(self, entry: SavedValue, levels: int) -> None:
        below = [*entry.get("items", ()), *(item for _, item in entry.get("pairs", ()))]
        for child in (self.saved[number] for number in (*below, *entry.get("attributes", {}).values())):
            if "text" in child and ("length" in child or child["type"] == "memoryview"):
                text = child.pop("text")
                child["redacted"] = True
                if not text.replace("_", "").isalpha():  # a plain word is in too many texts
                    self.hidden.append(text)
            elif levels > 1:
                self._hide_below(child, levels - 1)

    def _place(self, value: object, depth: int, name: str = "") -> int:
        if type(value) is types.MappingProxyType and issubclass(type(shown := gc.get_referents(value)[0]), dict):
            value = shown
        known = self._seen.get(id(value))
        if known is not None:
            self._cover(known, name)
            if depth > self._levels.get(known, depth):  # it was reached before with fewer levels left
                self._open_later(known, value, depth)
            return known
        kind = self._kinds.get(id(type(value)))
        if kind is None:
            kind = self._kinds[id(type(value))] = _Kind(type(value))
        index = len(self.saved)
        entry: SavedValue = {"type": kind.name}
        self.saved.append(entry)
        self.left_bytes -= VALUE_COST
        try:
            if self._is_scalar(entry, value, kind, name):
                return index
            self._seen[id(value)] = index
            self._kept.append(value)
            self._cover(index, name)
            if kind.is_array:
                entry["tensor"] = tensor_summary.summarize(value, kind.kind, self._sampled if self._read_tensors else 0)
                self.left_bytes -= 300
            elif kind.base is not None:
                entry["length"] = kind.base.__len__(value)
        except Exception:  # noqa: BLE001 - another thread changed it, or no memory is left: keep what was read
            entry["cut"] = "items"
        if "tensor" not in entry and "cut" not in entry:
            self._open_later(index, value, depth)
        return index

    def _cover(self, index: int, name: str) -> None:
        if name and is_secret_name(name):
            self._covered.append(index)

    def _open_later(self, index: int, value: object, depth: int) -> None:
        self._levels[index] = depth
        if depth > 0 or self._kinds[id(type(value))].content:
            self._queue.append((index, value, depth))
        else:
            self.saved[index]["cut"] = "depth"

    def _is_scalar(self, entry: SavedValue, value: Any, kind: _Kind, name: str) -> bool:
        """Describe a value that contains no others; return False for one that does."""
        base = kind.base
        if base is str:
            entry["length"] = str.__len__(value)
            text = str.__getitem__(value, slice(MAX_CHARS + MARGIN_CHARS))
            self._text_unless_secret(entry, name, text, text[:MARGIN_CHARS])
        elif base is int:
            bits = int.bit_length(value)
            self._text(entry, int.__repr__(value) if bits <= MAX_INT_BITS else f"(a number of {bits} bits)")
        elif kind.item is not None:
            number = kind.item(value)
            self._text(entry, repr(number) if type(number) in (*_CONSTANTS, int, float, complex) else "?")
        elif base is float or base is complex:
            self._text(entry, base.__repr__(value))
        elif base in _CONSTANTS:
            self._text(entry, repr(value))
        elif base is bytes or base is bytearray:
            entry["length"] = base.__len__(value)
            start = bytes(base.__getitem__(value, slice(MAX_BYTES_SHOWN)))
            self._text_unless_secret(entry, name, repr(start), start.decode("latin-1"))
        elif base is memoryview:
            start = bytes(value.cast("B")[:MAX_BYTES_SHOWN])
            more = "..." if value.nbytes > len(start) else ""
            self._text_unless_secret(entry, name, f"memoryview({start!r}{more})", start.decode("latin-1"))
        elif kind.shown is not None:
            self._text(entry, _own_repr(value, kind.shown)[: MAX_CHARS + MARGIN_CHARS])
        elif base is type:
            self._text(entry, type_name(value))
        elif base is types.ModuleType:
            own = _OF_MODULE.__get__(value).get("__name__")
            self._text(entry, own if type(own) is str else "?")
        elif base is types.MethodType:
            self._text(entry, type_name(type(types.MethodType.__dict__["__self__"].__get__(value))))
            function = types.MethodType.__dict__["__func__"].__get__(value)
            if type(function) is types.FunctionType:
                self._text(entry, function.__qualname__)
        elif base in _NAMED:
            self._text(entry, value.__qualname__)
        else:
            return False
        return True

    def _text_unless_secret(self, entry: SavedValue, name: str, text: str, secret: str) -> None:
        if is_secret_name(name):
            entry["redacted"] = True
            if not name.endswith("token") or any(map(str.isdigit, secret)):  # of a tokenizer: it is in other texts too
                self.hidden.append(secret)
        else:
            self._text(entry, text)

    def _text(self, entry: SavedValue, text: str) -> None:
        entry["text"] = text
        self.left_bytes -= len(text) if text.isascii() and text.isprintable() else 6 * len(text)  # escapes

    def _open(self, entry: SavedValue, value: Any, kind: _Kind, depth: int) -> None:
        base = kind.base
        if base is dict:
            pairs = list(itertools.islice(dict.items(value), self._items))
            entry["pairs"] = [
                (self._place(key, 0), self._place(item, depth, key if type(key) is str else _name_in(key)))
                for key, item in pairs
            ]
        elif base is not None:
            items = list(itertools.islice(base.__iter__(value), self._items))
            names = itertools.chain(kind.fields or _item_names(items, entry["length"]), itertools.repeat(""))
            entry["items"] = [self._place(item, depth, name) for item, name in zip(items, names, strict=False)]
            if any(KEY_MARK in name for item in items if (name := _name_in(item))):  # a key as a list of lines
                self._covered.append(self._seen[id(value)])
        if base is not None and entry["length"] > self._items:
            entry["cut"] = "items"
        if base is None or kind.is_heap:
            attributes = kind.attributes_of(value)
            if content := [item for item in attributes if item[0] in kind.content]:
                attributes, depth = content, depth + 1  # a config is saved as deep as a dict
            elif depth < 0:
                entry["cut"] = "depth"
                return
            entry["attributes"] = {
                name[:200]: self._place(item, depth, name) for name, item in attributes[:MAX_ATTRIBUTES]
            }
            self.left_bytes -= 20 * len(entry["attributes"])
            if len(attributes) > MAX_ATTRIBUTES:
                entry["cut"] = "items"
