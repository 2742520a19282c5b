"""The curves of the timeline: how long steps took, memory by process, GPUs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from raydebug.runs.page import words
from raydebug.runs.page.colours import SERIES
from raydebug.runs.page.document import Gpu, Process, Run
from raydebug.runs.page.markup import Markup, join, number, percent, tag
from raydebug.runs.page.plot import Axis, area, ceiling, draw_curve, plot, scale_labels, stretched
from raydebug.runs.page.thinning import COLUMNS, Point, stack, thin
from raydebug.runs.page.waterfall import track

MOST_NODES = 8
MOST_GPUS = 16
_LETTERS = "ABCDEF"
_ROOM = 0.1  # of a drawing's height: a band at least so thick has room for its letter


def round_mib(value: float) -> float:
    """Return a round size that is not below a value, in MiB."""
    return 1024 * ceiling(value / 1024) if value > 1024 else ceiling(value)


def step_row(run: Run, axis: Axis) -> list[Markup]:
    """Return how long each step took, at its end."""
    if not run.steps:
        return []
    took = [step.seconds for step in run.steps]
    high = ceiling(max(took))
    if len(run.steps) <= COLUMNS // 2:
        bars = [
            tag("rect", tag("title", f"step {s.step}: {words.seconds(s.seconds)}"), x=axis.at(s.end_s - s.seconds),
                width=axis.span(max(0.0, s.end_s - s.seconds), s.end_s), y=percent(1 - s.seconds / high),
                height=percent(s.seconds / high), class_="step")
            for s in run.steps
        ]  # fmt: skip
        drawn = join(bars)
    else:
        points = [(step.end_s, step.seconds) for step in run.steps]
        drawn = stretched(draw_curve(axis, points, 0.0, high, "s1"))
    median = sorted(took)[len(took) // 2]
    label = f"duration of {words.counted(len(took), 'step')}: median {words.seconds(median)}"
    how = [tag("b", words.seconds(median)), tag("span", "median", class_="unit"),
           tag("span", f"{words.seconds(min(took))} to {words.seconds(max(took))}", class_="range")]  # fmt: skip
    drawing = plot(axis, drawn, scale_labels(words.seconds(high)), label=label, class_="curves low")
    return [track(["step duration", _times(len(took))], drawing, how, "curved")]


def _times(count: int) -> Markup:
    return tag("span", f" \N{MULTIPLICATION SIGN}{count:,}", class_="times")


def memory_rows(run: Run, axis: Axis) -> list[Markup]:
    """Return a drawing for each node: what its processes hold, one on top of the other, on one scale for all nodes."""
    nodes: dict[str, list[Process]] = {}
    for process in run.memory:
        nodes.setdefault(process.node, []).append(process)
    # The nodes with most are drawn; the note of the section says how many there are.
    order = sorted(nodes, key=lambda node: -sum(peak(process.samples) for process in nodes[node]))[:MOST_NODES]
    drawn = [(node, *_bands(nodes[node])) for node in nodes if node in order]
    stacks = [stack([[(s[0], s[1]) for s in p.samples] for p in ps], of, axis.length) for _, ps, of in drawn]
    high = round_mib(max((sum(values) for rows in stacks for _, values in rows), default=0.0))
    return [_memory_row(node, ps, of, rows, axis, high)
            for (node, ps, of), rows in zip(drawn, stacks, strict=True)]  # fmt: skip


def memory_sum(run: Run, axis: Axis) -> list[Point]:
    """Return what all processes of all nodes hold together, by column."""
    series = [[(sample[0], sample[1]) for sample in process.samples] for process in run.memory]
    return [(x, values[0]) for x, values in stack(series, [0] * len(series), axis.length)] if series else []


def peak(samples: Sequence[tuple[float, ...]], column: int = 1) -> float:
    """Return the highest value of a column of samples; 0 where none is known."""
    return max((value for sample in samples if (value := sample[column]) >= 0), default=0.0)


def _bands(processes: Sequence[Process]) -> tuple[list[Process], list[int]]:
    """Return processes, those with most memory first, and the band of each: the last one is for all the rest."""
    ordered = sorted(processes, key=lambda process: -peak(process.samples))
    own = len(ordered) if len(ordered) <= SERIES else SERIES - 1
    return ordered, [min(index, own) for index in range(len(ordered))]


def _memory_row(
    node: str, processes: Sequence[Process], bands: Sequence[int],
    rows: Sequence[tuple[float, list[float]]], axis: Axis, high: float,
) -> Markup:  # fmt: skip
    floor: list[Point] = [(x, 0.0) for x, _ in rows]
    shapes: list[Markup] = []
    letters: list[Markup] = []
    for band in range(max(bands) + 1):
        top = [(x, below + values[band]) for (x, below), (_, values) in zip(floor, rows, strict=True)]
        colour = _colour(band, bands)
        shapes.append(tag("path", d=area(axis, floor, top, 0.0, high), class_=f"area {colour}"))
        if place := _label_place(floor, top, high):
            x, y = axis.at(place[0]), percent(place[1])
            letters.append(tag("text", _LETTERS[band], x=x, y=y, dy="4", class_="letter"))
        floor = top
    most = max(sum(values) for _, values in rows)
    count = words.counted(len(processes), "process", "processes")
    label = f"memory of {count}: at most {words.mebibytes(most)} at once"
    drawing = plot(axis, stretched(shapes), letters, scale_labels(words.round_size(high)), label=label, class_="curves")
    how = [tag("b", words.mebibytes(most)), tag("span", "at most", class_="unit"), _legend(processes, bands)]
    what = ["memory", tag("span", f" {node}", class_="where") if node else None]
    return track(what, drawing, how, "curved tall")


def _label_place(lower: Sequence[Point], upper: Sequence[Point], high: float) -> Point | None:
    """Return where a band has room for its letter, close to the middle; None where it has none."""
    thick = [(over - under) / high for (_, under), (_, over) in zip(lower, upper, strict=True)]
    enough = max(_ROOM, 0.8 * max(thick))
    middle = len(thick) // 2
    index = min((i for i, room in enumerate(thick) if room >= enough), key=lambda i: abs(i - middle), default=None)
    return None if index is None else (upper[index][0], 1 - (upper[index][1] + lower[index][1]) / 2 / high)


def _colour(band: int, bands: Sequence[int]) -> str:
    is_rest = band == SERIES - 1 and bands.count(band) > 1
    return f"s{SERIES if is_rest else band + 1}"


def _legend(processes: Sequence[Process], bands: Sequence[int]) -> Markup:
    """Return who is which letter; the uppermost in the drawing first."""
    entries = []
    for band in range(max(bands), -1, -1):
        inside = [process for process, of in zip(processes, bands, strict=True) if of == band]
        name = inside[0].name if len(inside) == 1 else f"{len(inside)} others"
        most = words.mebibytes(max(peak(process.samples) for process in inside))
        size = most if len(inside) == 1 else f"each up to {most}"
        swatch = tag("span", _LETTERS[band], class_=f"swatch {_colour(band, bands)}")
        entries.append(tag("li", swatch, tag("span", name, class_="name"), tag("span", size, class_="size")))
    return tag("ul", entries, class_="legend", aria_label="processes")


def gpu_rows(run: Run, axis: Axis) -> list[Markup]:
    """Return a drawing for each GPU: memory in use and how busy it was, both as a part of all there is."""
    return [_gpu_row(gpu, axis) for gpu in run.gpus[:MOST_GPUS]]


def _gpu_row(gpu: Gpu, axis: Axis) -> Markup:
    most = peak(gpu.samples)
    total = gpu.total_mib or most or 1.0
    used = [(at, 100 * value / total) for at, value, _ in gpu.samples if math.isfinite(value)]
    busy = [(at, value) for at, _, value in gpu.samples if math.isfinite(value)]
    held = thin(used)
    full = held.high or held.middle
    shapes = [
        tag("path", d=area(axis, [(x, 0.0) for x, _ in full], full, 0.0, 100.0), class_="area s1"),
        draw_curve(axis, busy, 0.0, 100.0, "halo")[-1],
        draw_curve(axis, busy, 0.0, 100.0, "s2")[-1],
    ]
    mean = sum(value for _, value in busy) / len(busy) if busy else None
    of = f" of {words.mebibytes(gpu.total_mib)}" if gpu.total_mib else ""
    mean_words = "? busy" if mean is None else f"{number(round(mean))} % busy"
    label = f"{gpu.name}: memory at most {words.mebibytes(most)}{of}, {mean_words} on average"
    drawing = plot(axis, stretched(shapes), scale_labels("100 %"), label=label, class_="curves low")
    how = [tag("b", words.mebibytes(most)), tag("span", f"at most{of}", class_="unit"),
           tag("span", f"{mean_words} (line)", class_="range")]  # fmt: skip
    return track([gpu.name, tag("span", f" {gpu.node}", class_="where") if gpu.node else None], drawing, how, "curved")
