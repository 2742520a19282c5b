"""Update Ray's C++ settings in a fork; Ray reads them from the environment when its library is loaded.

Source: ray 2.60.0, src/ray/common/ray_config.cc: the constructor reads RAY_* once, `Config.initialize(b"")` reads them
again, all but the three of ray_internal_flag_def.h. Two of these differ from worker to worker, JOB_ID and RAYLET_PID:
a zygote loads Ray with a mark in their place, and a fork writes the value over the mark. They are std::string of the
old ABI (libstdc++ basic_string.h _Rep: length, capacity, reference count, characters), in the wheels for Linux.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import struct
import sys
from collections.abc import Mapping

MARKS = {"RAY_JOB_ID": b"f1e2d3c4", "RAY_RAYLET_PID": b"0918273645"}  # a job id has 8 digits; a pid at most 10
LIBRARY = "/ray/_raylet.so"
_places: dict[str, int] = {}


class NotFound(Exception):
    """Ray's settings are not in the expected place."""


def load_with_marks() -> None:
    """Import Ray with the marks in the environment, and find where it stores them.

    Raises:
        NotFound: a mark is not stored in exactly one place.
    """
    os.environ.update({name: mark.decode() for name, mark in MARKS.items()})
    try:
        importlib.import_module("ray")
    finally:
        for name in MARKS:
            del os.environ[name]
    written, heaps = _regions()
    with open("/proc/self/mem", "rb", 0) as memory:

        def read(start: int, end: int) -> bytes:
            memory.seek(start)
            return memory.read(end - start)

        own = [read(*region) for region in written]
        for name, mark in MARKS.items():
            places = set()
            head = struct.pack("<QQ", len(mark), len(mark))
            for start, end in heaps:
                data = read(start, end)
                for match in re.finditer(re.escape(mark + b"\0"), data):
                    at = match.start()
                    if data[at - 24 : at - 8] == head and any(struct.pack("<Q", start + at) in o for o in own):
                        places.add(start + at)
            if len(places) != 1:
                raise NotFound(f"{name} is in {len(places)} places of Ray's library")
            _places[name] = places.pop()


def is_found() -> bool:
    """Return whether every mark was found."""
    return set(_places) == set(MARKS)


def _regions() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    written, heaps, after = [], [], False
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, rights, *rest = line.split()
            start, end = (int(part, 16) for part in span.split("-"))
            path = rest[3] if len(rest) > 3 else ""
            if path.endswith(LIBRARY):
                after = True
                if rights.startswith("rw"):
                    written.append((start, end))
                continue
            if after and not path and rights.startswith("rw"):
                written.append((start, end))  # the library's .bss follows, without a file
            after = False
            if path in ("", "[heap]") and rights.startswith("rw"):
                heaps.append((start, end))
    return written, heaps


def refresh(environ: Mapping[str, str]) -> None:
    """Load the settings from this process's environment into Ray."""
    if "ray._raylet" not in sys.modules:
        return
    for name, mark in MARKS.items():
        value = environ.get(name, "").encode()
        if name == "RAY_RAYLET_PID" and value:
            value = value.rjust(len(mark), b"0")
        if len(value) not in (0, len(mark)):
            raise NotFound(f"{name} is {environ.get(name)!r}")
        place = _places[name]
        if value:
            ctypes.memmove(place, value, len(value))
        else:
            ctypes.memset(place, 0, 1)
            ctypes.memmove(place - 24, struct.pack("<Q", 0), 8)
    sys.modules["ray._raylet"].Config.initialize(b"")
