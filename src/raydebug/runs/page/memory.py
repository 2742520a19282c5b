"""Memory over time, by node: what the run's processes hold, stacked, and what all processes of the node hold. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raydebug.runs.memory import NODE
from raydebug.runs.page import words
from raydebug.runs.page.colours import SERIES
from raydebug.runs.page.document import Process, Run
from raydebug.runs.page.markup import Markup, percent, tag
from raydebug.runs.page.plot import Axis, area, draw_curve, plot, round_mib, scale_labels, stretched
from raydebug.runs.page.thinning import Point, peak, stack
from raydebug.runs.page.waterfall import track

MOST_NODES = 8
_LETTERS = "ABCDEF"
_ROOM = 0.1  # of a drawing's height: a band at least so thick has room for its letter
_COLUMNS_OF_A_LETTER = 12


@dataclass(frozen=True)
class Node:
    """A node's memory.

    Args:
        name: its address.
        processes: of the run, those with most memory first.
        bands: the band of each process in the drawing; the last one is for all the rest.
        columns: what the bands hold over time.
        whole: what all processes of the node hold, those of others too; empty where that is not known.
    """

    name: str
    processes: list[Process]
    bands: list[int]
    columns: list[tuple[float, list[float]]]
    whole: list[Point]

    @property
    def most(self) -> float:
        """The most that the run's processes held at one moment."""
        return max((sum(values) for _, values in self.columns), default=0.0)

    @property
    def top(self) -> float:
        """The highest value of its drawing."""
        return max(self.most, max((y for _, y in self.whole), default=0.0))


def memory_rows(run: Run, axis: Axis) -> list[Markup]:
    """Return a drawing for each node, on one scale for all of them."""
    named: dict[str, list[Process]] = {}
    for process in run.memory:
        named.setdefault(process.node, []).append(process)
    nodes = [_node(name, processes, axis) for name, processes in named.items()]
    # The nodes with most are drawn; the note of the section says how many there are.
    kept = sorted(nodes, key=lambda node: -node.most)[:MOST_NODES]
    high = round_mib(max((node.top for node in kept), default=0.0))
    return [_memory_row(node, axis, high) for node in nodes if node in kept]


def memory_sum(run: Run, axis: Axis) -> list[Point]:
    """Return what all processes of the run hold together, by column; without any, what the nodes hold."""
    own = [process for process in run.memory if process.name != NODE]
    series = [points_of(process) for process in own or run.memory]
    return [(x, values[0]) for x, values in stack(series, [0] * len(series), axis.length)] if series else []


def points_of(process: Process) -> list[Point]:
    """Return the samples of a process as points."""
    return [(sample[0], sample[1]) for sample in process.samples]


def _node(name: str, found: Sequence[Process], axis: Axis) -> Node:
    processes = sorted((p for p in found if p.name != NODE), key=lambda process: -peak(process.samples))
    own = len(processes) if len(processes) <= SERIES else SERIES - 1
    bands = [min(index, own) for index in range(len(processes))]
    columns = stack([points_of(process) for process in processes], bands, axis.length)
    whole = [point for process in found if process.name == NODE for point in points_of(process)]
    return Node(name, processes, bands, columns if processes else [], whole)


def _memory_row(node: Node, axis: Axis, high: float) -> Markup:
    shapes, letters = _bands(node, axis, high)
    line = [draw_curve(axis, node.whole, 0.0, high, style)[-1] for style in ("halo", "whole")] if node.whole else []
    whole = f"; all of the node {words.mebibytes(max(y for _, y in node.whole))}" if node.whole else ""
    count = words.counted(len(node.processes), "process", "processes")
    label = f"memory of {count}: at most {words.mebibytes(node.most)} at once{whole}"
    scale = scale_labels(words.round_size(high))
    drawing = plot(axis, stretched(shapes, line), letters, scale, label=label, class_="curves")
    how = [
        [tag("b", words.mebibytes(node.most)), tag("span", "at most", class_="unit")] if node.processes else None,
        tag("span", f"whole node (line) {words.mebibytes(max(y for _, y in node.whole))}", class_="range")
        if node.whole else None,
        _legend(node) if node.processes else None,
    ]  # fmt: skip
    what = ["memory", tag("span", f" {node.name}", class_="where") if node.name else None]
    return track(what, drawing, how, "curved tall")


def _bands(node: Node, axis: Axis, high: float) -> tuple[list[Markup], list[Markup]]:
    """Return the areas of the bands, and the letters in those that have room."""
    floor: list[Point] = [(x, 0.0) for x, _ in node.columns]
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
    """Return where a band has room for its letter, close to the middle; None where it has none."""
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


def _legend(node: Node) -> Markup:
    """Return who is which letter; the uppermost in the drawing first."""
    entries = []
    for band in range(max(node.bands), -1, -1):
        inside = [process for process, of in zip(node.processes, node.bands, strict=True) if of == band]
        name = inside[0].name if len(inside) == 1 else f"{len(inside)} others"
        most = words.mebibytes(max(peak(process.samples) for process in inside))
        size = most if len(inside) == 1 else f"each up to {most}"
        swatch = tag("span", _LETTERS[band], class_=f"swatch {_colour(band, node.bands)}")
        entries.append(tag("li", swatch, tag("span", name, class_="name"), tag("span", size, class_="size")))
    return tag("ul", entries, class_="legend", aria_label="processes")
