"""Reads traces back, and makes run folders to make them from."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
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
