"""Reads traces back, and makes run folders to make them from."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parents[1] / "unit" / "recorded_trace.json.gz"


def recorded_run(folder: Path) -> Path:
    """Write the folder of a recorded run: verl 0.9.1 on two cores, five steps, two pauses in the reward function."""
    folder.mkdir(parents=True)
    for name, text in json.loads(gzip.decompress(RECORDED.read_bytes())).items():
        (folder / name).write_text(text)
    return folder


def run_folder(folder: Path, lines: list[Any], document: Mapping[str, Any] | None = None) -> Path:
    """Write the folder of a run that began at 1000 s, with these lines of spans."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"version": 1, "kind": "run", "id": folder.name, "started": 1000.0, "ended": 1100.0, **(document or {})}
    (folder / "run.json").write_text(json.dumps(about))
    text = (line if isinstance(line, str) else json.dumps(line) for line in ({"version": 1}, *lines))
    (folder / "spans.jsonl").write_text("\n".join(text) + "\n")
    return folder


def span(name: str, begin_s: float, end_s: float, **more: Any) -> dict[str, Any]:
    """Return a span of a process whose clock is the run's, at seconds since the run's start."""
    return {"name": name, "began_ns": int((1000 + begin_s) * 1e9), "ended_ns": int((1000 + end_s) * 1e9), **more}


def process(instance: str, *spans: dict[str, Any], **about: Any) -> list[dict[str, Any]]:
    """Return the lines of a process."""
    clock = {"clock": instance, "at_ns": 0, "offset_ns": 0, "error_ns": 1000}
    return [{"process": instance, "pid": 1, "wall_ns": 0, **about}, clock, {"spans": instance, "rows": [*spans]}]


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protobuf message: number, and an integer, a double or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 1:
            yield key >> 3, struct.unpack_from("<d", data, at)[0]
            at += 8
        else:
            assert key & 7 == 2
            size = varint()
            yield key >> 3, data[at : at + size]
            at += size
            assert at <= len(data)


def read_perfetto(data: bytes) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """Return the tracks of a trace by their ids, and its events in their order."""
    tracks: dict[int, dict[str, Any]] = {}
    events = []
    for number, packet in fields(data):
        assert number == 1
        found = dict(fields(packet))
        assert found[10] == 1, "each packet has a sequence"
        if 60 in found:
            about = dict(fields(found[60]))
            tracks[about[1]] = {"name": about[2].decode(), "parent": about.get(5), "order": about[12],
                                "is_counter": 8 in about}  # fmt: skip
        else:
            event = dict(fields(found[11]))
            events.append({"type": event[9], "track": event[11], "at_ns": found[8],
                           "name": event.get(23, b"").decode(), "value": event.get(44)})  # fmt: skip
    return tracks, events
