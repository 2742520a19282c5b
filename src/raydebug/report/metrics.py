"""The metrics of the training: the last steps as a table, and a small curve for each metric. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from raydebug.render import duration
from raydebug.report import units
from raydebug.report.page import Markup, section, span, tag, wide_table
from raydebug.report.plot import Axis, draw_curve, stretched
from raydebug.runs.record import Run, Step

LAST_STEPS = 12
TABLE_METRICS = 5
FIRST_METRICS = 12  # the rest is folded
MOST_METRICS = 240
_COLUMNS = 120  # a small curve is about 240 pixels wide
# The metrics that are shown first, by a word of their names; all others keep their order.
_WANTED = [re.compile(word) for word in ("reward|score", "loss", r"\bkl|_kl", "entropy", "grad_norm", "length", "lr")]


def metric_names(steps: Sequence[Step]) -> list[str]:
    """Return the names of all metrics, the most wanted first."""
    names = list(dict.fromkeys(name for step in steps for name in step["metrics"]))
    shortest = sorted(range(len(names)), key=lambda i: (names[i].count("/") + len(names[i]) / 100, i))
    first = []
    for word in _WANTED:  # of each kind the mean: critic/rewards/mean before critic/rewards/max
        means = [names[i] for i in shortest if word.search(names[i]) and names[i] not in first]
        first += [name for name in means if name.endswith("mean")][:1] or means[:1]
    return first + [name for name in names if name not in first]


def steps_section(run: Run, slow_step: str = "") -> Markup | None:
    """Return the last steps and the curves of the metrics, and why one was slow; None for a run without steps."""
    if not run.steps:
        return None
    names = metric_names(run.steps)
    over = f"Steps {run.steps[0]['step']:,} to {run.steps[-1]['step']:,}, from left to right."
    kept = len(run.steps)
    if run.step_count > kept:
        over += f" The record of this long run has {kept:,} of its {run.step_count:,} steps."
    if kept > 2 * _COLUMNS:
        over += f" {kept:,} values are drawn as {_COLUMNS} means, shaded from lowest to highest."
    drawn = [tag("h3", "Metrics"), tag("p", over, class_="note"), charts(names, run.steps)] if names else None
    slow = tag("p", slow_step, class_="note") if slow_step else None
    return section("Steps", slow, _table(run, names[:TABLE_METRICS]), drawn, id="steps")


def charts(names: Sequence[str], steps: Sequence[Step]) -> list[Markup | None]:
    """Return a small curve for each metric; all but the first ones are folded."""
    drawn = [_chart(name, steps) for name in names[:MOST_METRICS]]
    more = drawn[FIRST_METRICS:]
    left_out = len(names) - len(drawn)
    folded = [tag("summary", units.counted(len(more), "more metric")), tag("ul", more, class_="metrics")]
    return [
        tag("ul", drawn[:FIRST_METRICS], class_="metrics"),
        tag("details", folded) if more else None,
        tag("p", f"{left_out:,} metrics are not shown; run.json has them.", class_="note") if left_out else None,
    ]


def _chart(name: str, steps: Sequence[Step]) -> Markup:
    """Return the curve of a metric over the steps, with its last value and its range."""
    having = sorted((step for step in steps if name in step["metrics"]), key=lambda step: step["step"])
    points = [(float(step["step"]), step["metrics"][name]) for step in having]
    known = [y for _, y in points if math.isfinite(y)]
    first = points[0][0]
    axis = Axis(max(points[-1][0] - first, 1.0))
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    margin = (high - low or abs(high) or 1.0) * 0.06
    drawn = draw_curve(axis, [(x - first, y) for x, y in points], low - margin, high + margin, "s1", _COLUMNS)
    value = units.figure(points[-1][1])
    label = f"{name}: {value} at the end, from {units.figure(low)} to {units.figure(high)}"
    drawing = tag("svg", stretched(drawn), class_="plot small", role="img", aria_label=label)
    spread = f"{units.figure(low)} to {units.figure(high)}" if low < high else "always" if known else "no finite value"
    below = tag("div", tag("b", value), span("range", spread), class_="values")
    return tag("li", tag("div", name, class_="name"), drawing, below, _odd(having, name))


def _odd(steps: Sequence[Step], name: str) -> Markup | None:
    """Return the step at which a metric became NaN or infinite, a frequent cause of failed trainings."""
    bad = [(step["step"], value) for step in steps if not math.isfinite(value := step["metrics"][name])]
    if not bad:
        return None
    more = f" and {len(bad) - 1:,} more" if len(bad) > 1 else ""
    return tag("div", f"{units.figure(bad[0][1])} at step {bad[0][0]:,}{more}", class_="odd")


def _table(run: Run, names: Sequence[str]) -> Markup:
    shown = run.steps[-LAST_STEPS:]
    head = ["step", "ended at", "took", *names]
    rows = [
        tag("tr", tag("th", f"{step['step']:,}", scope="row"), tag("td", units.since_start(step["end_s"])),
            tag("td", duration(step["seconds"])),
            [tag("td", units.figure(step["metrics"][name]) if name in step["metrics"] else "") for name in names])
        for step in shown
    ]  # fmt: skip
    caption = f"The last {len(shown)} of {run.step_count:,} steps" if run.step_count > len(shown) else "All steps"
    return wide_table(caption, "numbers", head, rows, caption=caption)
