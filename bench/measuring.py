"""Runs programs of this folder: heads up, repetitions, heads down, whatever happens between."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import os
import platform
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from bench import figures, heads
from bench.doors import Side, side
from bench.figures import RAYDEBUG, STOCK, Samples

REPETITIONS = 15
RESULTS = Path(__file__).with_name("results.json")
Measure = Callable[[list[Side], int], Awaitable[Samples]]


class Collected:
    """Values of one program, by figure and side."""

    def __init__(self) -> None:
        self.samples: Samples = {}

    def add(self, key: str, side_name: str, value: float) -> None:
        """Enter the value of one repetition."""
        self.samples.setdefault(key, {}).setdefault(side_name, []).append(round(value, 6))


def run(programs: Sequence[Measure], repetitions: int, *, needs_heads: bool = True) -> Samples:
    """Run programs one after the other over one pair of heads; Ctrl-C and SIGTERM end the heads too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.ExitStack() as stack:
            clusters = stack.enter_context(heads.both()) if needs_heads else ()
            stack.callback(_ignore_interrupts)  # a second Ctrl-C must not leave a head behind
            return asyncio.run(_measure(programs, repetitions, clusters))
    except KeyboardInterrupt:
        print("interrupted: both heads are down, nothing was written")
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


async def _measure(programs: Sequence[Measure], repetitions: int, clusters: Sequence[Any]) -> Samples:
    async with contextlib.AsyncExitStack() as stack:
        named = zip((RAYDEBUG, STOCK), clusters, strict=False)
        sides = [await stack.enter_async_context(side(name, cluster)) for name, cluster in named]
        samples: Samples = {}
        for program in programs:
            samples |= await program(sides, repetitions)
        return samples


def run_alone(program: Measure, *, needs_heads: bool = True) -> None:
    """Be the command line of one program: its table, or with --json its raw numbers."""
    options = parse(argparse.ArgumentParser())
    samples = run([program], options.repetitions, needs_heads=needs_heads)
    print(json.dumps({"machine": machine(), "figures": figures.document(samples)}, indent=1) if options.json else "")
    if not options.json:
        print(figures.table(samples))


def save(part: dict[str, Any]) -> None:
    """Put a part of the results into results.json, and make RESULTS.md from all of it."""
    results = {**json.loads(RESULTS.read_text(encoding="utf-8")), **part}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    RESULTS.with_name("RESULTS.md").write_text(figures.page(results), encoding="utf-8")


def save_program(name: str, title: str, about: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Save and print the table of a program that runs by itself.

    Args:
        name: its module in this folder.
        title: the heading of its table.
        about: where and how it was measured.
        columns: the heads of the table.
        rows: its cells, as Markdown.
    """
    programs = json.loads(RESULTS.read_text(encoding="utf-8"))["programs"]
    programs[name] = {"title": title, "about": about, "columns": list(columns), "rows": [list(row) for row in rows]}
    save({"programs": programs})
    print("\n".join(" | ".join(row) for row in (columns, *rows)))


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add what all programs take, and read the command line."""
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--json", action="store_true", help="print the raw numbers")
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """Say where and with what was measured."""
    versions = {name: importlib.metadata.version(name) for name in ("raydebug", "ray", "debugpy")}
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": os.cpu_count(),
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions,
        "load": [round(value, 2) for value in os.getloadavg()],
    }
