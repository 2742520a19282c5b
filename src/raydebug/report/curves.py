"""The curves of the timeline: step durations, memory of processes and nodes, memory and load of GPUs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raydebug.render import duration
from raydebug.report import units
from raydebug.report.page import SERIES, Markup, join, number, percent, span, tag
from raydebug.report.plot import (
    COLUMNS,
    Axis,
    Point,
    area,
    ceiling,
    downsample,
    draw_curve,
    peak,
    plot,
    round_mib,
    scale_labels,
    stack,
    stretched,
)  # fmt: skip
from raydebug.report.waterfall import times, track
from raydebug.runs.record import NODE, GpuLoad, ProcessMemory, Run

MOST_GPUS = 16


def step_row(run: Run, axis: Axis) -> list[Markup]:
    """Return the row of step durations."""
    if not run.steps:
        return []
    seconds = [step["seconds"] for step in run.steps]
    high = ceiling(max(seconds))
    if len(run.steps) <= COLUMNS // 2:
        drawn = join(
            tag("rect", tag("title", f"step {step['step']}: {duration(took)}"), x=axis.at(step["end_s"] - took),
                width=axis.span(max(0.0, step["end_s"] - took), step["end_s"]), y=percent(1 - took / high),
                height=percent(took / high), class_="step")
            for step, took in zip(run.steps, seconds, strict=True)
        )  # fmt: skip
    else:
        points = [(step["end_s"], step["seconds"]) for step in run.steps]
        drawn = stretched(draw_curve(axis, points, 0.0, high, "s1"))
    median = duration(run.median_step_s)
    label = f"duration of {units.counted(run.step_count, 'step')}: median {median}"
    spread = f"{duration(min(seconds))} to {duration(max(seconds))}"
    how = [tag("b", median), span("unit", "median"), span("range", spread)]
    drawing = plot(axis, drawn, scale_labels(duration(high)), label=label, class_="curves low")
    return [track(["step duration", times(run.step_count)], drawing, how, "curved")]


def gpu_row(gpu: GpuLoad, axis: Axis) -> Markup:
    """Return the row of a GPU: memory in use and utilisation, both in percent."""
    most = peak(gpu.samples)
    total = gpu.total_mib or most or 1.0
    used = [(at, 100 * value / total) for at, value, _ in gpu.samples if math.isfinite(value)]
    busy = [(at, value) for at, _, value in gpu.samples if math.isfinite(value)]
    held = downsample(used)
    full = held.high or held.middle
    shapes = [
        tag("path", d=area(axis, [(x, 0.0) for x, _ in full], full, 0.0, 100.0), class_="area s1"),
        draw_curve(axis, busy, 0.0, 100.0, "halo")[-1],
        draw_curve(axis, busy, 0.0, 100.0, "s2")[-1],
    ]
    mean = sum(value for _, value in busy) / len(busy) if busy else None
    of = f" of {units.mebibytes(gpu.total_mib)}" if gpu.total_mib else ""
    mean_words = "? busy" if mean is None else f"{number(round(mean))} % busy"
    label = f"{gpu.name}: memory at most {units.mebibytes(most)}{of}, {mean_words} on average"
    drawing = plot(axis, stretched(shapes), scale_labels("100 %"), label=label, class_="curves low")
    how = [tag("b", units.mebibytes(most)), span("unit", f"at most{of}"), span("range", f"{mean_words} (line)")]
    return track([gpu.name, span("where", f" {gpu.node}") if gpu.node else None], drawing, how, "curved")


MOST_NODES = 8
SCALED = 8  # a node with more times the memory of the run's processes does not set the scale
_LETTERS = "ABCDEF"
_ROOM = 0.1  # of a plot's height: smallest thickness of a band with a letter
_COLUMNS_OF_A_LETTER = 12


@dataclass(frozen=True)
class NodeMemory:
    """A node's memory."""

    name: str
    processes: list[ProcessMemory]  # of the run, the largest first
    bands: list[int]  # of each process in the plot; the last band is for all others
    columns: list[tuple[float, list[float]]]  # memory of each band over time
    whole: list[Point]  # memory of all processes of the node, also of other programs; empty if unknown

    @property
    def most(self) -> float:
        """The highest sum of the run's processes at one moment."""
        return max((sum(values) for _, values in self.columns), default=0.0)

    @property
    def top(self) -> float:
        """The highest value of its plot: of the whole node, unless the run's processes were one pixel of it."""
        return self.most if 0 < self.most * SCALED < self.whole_most else max(self.most, self.whole_most)

    @property
    def whole_most(self) -> float:
        """The highest memory of the whole node."""
        return max((y for _, y in self.whole), default=0.0)


def memory_rows(run: Run, axis: Axis) -> list[Markup]:
    """Return a row for each node, all with the same scale."""
    named: dict[str, list[ProcessMemory]] = {}
    for process in run.memory:
        named.setdefault(process.node, []).append(process)
    nodes = [_node(name, processes, axis) for name, processes in named.items()]
    # The largest nodes are drawn; the note of the section has the number of all.
    kept = sorted(nodes, key=lambda node: -node.most)[:MOST_NODES]
    high = round_mib(max((node.top for node in kept), default=0.0))
    return [_memory_row(node, axis, high) for node in nodes if node in kept]


def memory_sum(run: Run, axis: Axis) -> list[Point]:
    """Return the memory of all processes of the run by column; if none is known, that of the nodes."""
    own = [process for process in run.memory if process.process != NODE]
    series = [process.samples for process in own or run.memory]
    return [(x, values[0]) for x, values in stack(series, [0] * len(series), axis.length)] if series else []


def _node(name: str, found: Sequence[ProcessMemory], axis: Axis) -> NodeMemory:
    processes = sorted((p for p in found if p.process != NODE), key=lambda process: -peak(process.samples))
    own = len(processes) if len(processes) <= SERIES else SERIES - 1
    bands = [min(index, own) for index in range(len(processes))]
    columns = stack([process.samples for process in processes], bands, axis.length)
    whole = [point for process in found if process.process == NODE for point in process.samples]
    return NodeMemory(name, processes, bands, columns if processes else [], whole)


def _memory_row(node: NodeMemory, axis: Axis, high: float) -> Markup:
    shapes, letters = _bands(node, axis, high)
    is_drawn = node.whole and node.whole_most <= high
    line = [draw_curve(axis, node.whole, 0.0, high, style)[-1] for style in ("halo", "whole")] if is_drawn else []
    most = units.mebibytes(node.whole_most)
    whole = f"; all of the node {most}" if node.whole else ""
    count = units.counted(len(node.processes), "process", "processes")
    label = f"memory of {count}: at most {units.mebibytes(node.most)} at once{whole}"
    scale = scale_labels(f"{high / 1024:g} GiB" if high >= 1024 else f"{high:g} MiB")
    drawing = plot(axis, stretched(shapes, line), letters, scale, label=label, class_="curves")
    how = [
        [tag("b", units.mebibytes(node.most)), span("unit", "at most")] if node.processes else None,
        span("range", f"whole node{' (line)' if is_drawn else ''} {most}") if node.whole else None,
        _legend(node) if node.processes else None,
    ]
    what = ["memory", span("where", f" {node.name}") if node.name else None]
    return track(what, drawing, how, "curved tall")


def _bands(node: NodeMemory, axis: Axis, high: float) -> tuple[list[Markup], list[Markup]]:
    """Return the areas of the bands, and the letters of those with room."""
    floor: Sequence[Point] = [(x, 0.0) for x, _ in node.columns]
    shapes: list[Markup] = []
    letters: list[Markup] = []
    for band in range(max(node.bands, default=-1) + 1):
        top = [(x, below + values[band]) for (x, below), (_, values) in zip(floor, node.columns, strict=True)]
        shapes.append(tag("path", d=area(axis, floor, top, 0.0, high), class_=f"area {_colour(band, node.bands)}"))
        if place := _label_place(floor, top, high):
            x, y = axis.at(place[0]), percent(place[1])
            letters.append(tag("text", _LETTERS[band], x=x, y=y, dy="4", class_="letter"))
        floor = top
    return shapes, letters


def _label_place(lower: Sequence[Point], upper: Sequence[Point], high: float) -> Point | None:
    """Return the place for the letter of a band, close to the middle; None if it is too thin."""
    thick = [(over - under) / high for (_, under), (_, over) in zip(lower, upper, strict=True)]
    enough = max(_ROOM, 0.8 * max(thick))
    roomy = [index for index, room in enumerate(thick) if room >= enough]
    if len(roomy) < _COLUMNS_OF_A_LETTER:
        return None
    index = min(roomy, key=lambda index: abs(index - len(thick) // 2))
    return upper[index][0], 1 - (upper[index][1] + lower[index][1]) / 2 / high


def _colour(band: int, bands: Sequence[int]) -> str:
    is_rest = band == SERIES - 1 and bands.count(band) > 1
    return f"s{SERIES if is_rest else band + 1}"


def _legend(node: NodeMemory) -> Markup:
    """Return the legend of letters and processes, the uppermost band first."""
    entries = []
    for band in range(max(node.bands), -1, -1):
        inside = [process for process, of in zip(node.processes, node.bands, strict=True) if of == band]
        name = inside[0].process if len(inside) == 1 else f"{len(inside)} others"
        most = units.mebibytes(max(peak(process.samples) for process in inside))
        size = most if len(inside) == 1 else f"each up to {most}"
        swatch = span(f"swatch {_colour(band, node.bands)}", _LETTERS[band])
        entries.append(tag("li", swatch, span("name", name), span("size", size)))
    return tag("ul", entries, class_="legend", aria_label="processes")
