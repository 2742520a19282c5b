"""Lanes in Perfetto's own format: protobuf, written by hand. Pure.

Source: perfetto v52 protos/perfetto/trace/trace_packet.proto (timestamp 8, sequence id 10, track_event 11,
track_descriptor 60), track_event/track_event.proto (type 9, track_uuid 11, name 23, debug_annotations 4,
double_counter_value 44), track_descriptor.proto (uuid 1, name 2, parent_uuid 5, counter 8, child_ordering 11,
sibling_order_rank 12), counter_descriptor.proto (unit_name 6), debug_annotation.proto (name 10, uint 3, int 4,
double 5, string 6).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from raydebug.trace.lanes import Group

_BEGIN, _END, _MARK, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_EXPLICIT = 3  # TrackDescriptor.ChildTracksOrdering
_SEQUENCE = 1
_LEAD_NS = 10**9  # a clock of 0 would count as none


def encode(groups: Sequence[Group], start: float) -> bytes:
    """Return the groups as a trace; its time begins a second before `start`, seconds since the epoch."""
    packets: list[bytes] = []
    track = 0

    def describe(name: str, parent: int | None, order: int, counter: str | None = None) -> int:
        nonlocal track
        track += 1
        body = _number(1, track) + _text(2, name) + (b"" if parent is None else _number(5, parent))
        body += b"" if counter is None else _bytes(8, _text(6, counter))
        packets.append(_packet(_bytes(60, body + _number(11, _EXPLICIT) + _number(12, order))))
        return track

    def add(at: float, body: bytes) -> None:
        packets.append(_packet(_number(8, max(0, round((at - start) * 1e9) + _LEAD_NS)) + _bytes(11, body)))

    for place, group in enumerate(groups):
        parent = describe(group.title, None, place)
        for order, lane in enumerate(group.lanes):
            uuid = _number(11, describe(lane.title, parent, order))
            ends: list[float] = []  # of what goes on: an end comes after the ends inside of it
            for event in lane.events:
                while ends and ends[-1] <= event.start:
                    add(ends.pop(), _number(9, _END) + uuid)
                kind = _MARK if event.end is None else _BEGIN
                facts = b"".join(_fact(name, value) for name, value in event.facts.items() if value not in (None, ""))
                add(event.start, _number(9, kind) + uuid + _text(23, event.name) + facts)
                if event.end is not None:
                    ends.append(event.end)
            while ends:
                add(ends.pop(), _number(9, _END) + uuid)
        for order, counter in enumerate(group.counters, len(group.lanes)):
            uuid = _number(11, describe(counter.title, parent, order, counter.unit))
            for at, value in counter.points:
                add(at, _number(9, _COUNTER) + uuid + _double(44, value))
    return b"".join(packets)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode("utf-8", "backslashreplace"))


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _fact(name: str, value: Any) -> bytes:
    if isinstance(value, float):
        encoded = _double(5, value)
    elif isinstance(value, int) and 0 <= value < 2**63:
        encoded = _number(4, value)
    else:
        encoded = _text(6, str(value))
    return _bytes(4, _text(10, name) + encoded)


def _packet(body: bytes) -> bytes:
    return _bytes(1, body + _number(10, _SEQUENCE))
