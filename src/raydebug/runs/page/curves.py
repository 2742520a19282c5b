"""The curves of the timeline: how long steps took, and how full and busy the GPUs were. Pure."""

from __future__ import annotations

import math

from raydebug.runs.page import words
from raydebug.runs.page.document import Gpu, Run
from raydebug.runs.page.markup import Markup, join, number, percent, tag
from raydebug.runs.page.plot import Axis, area, ceiling, draw_curve, plot, scale_labels, stretched
from raydebug.runs.page.thinning import COLUMNS, peak, thin
from raydebug.runs.page.waterfall import track

MOST_GPUS = 16


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
