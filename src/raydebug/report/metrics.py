"""The metrics of the training: the last steps as a table, and a small curve for each metric. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from raydebug.render import duration
from raydebug.report import units
from raydebug.report.document import Run, Step
from raydebug.report.page import Markup, table_head, tag, wide_table
from raydebug.report.plot import Axis, Point, draw_curve, stretched

LAST_STEPS = 12
TABLE_METRICS = 5
FIRST_METRICS = 12  # the rest is folded
MOST_METRICS = 240
_COLUMNS = 120  # a small curve is about 240 pixels wide
# The metrics that are shown first, by a word of their names; all others keep their order.
_WANTED = [re.compile(word) for word in ("reward|score", "loss", r"\bkl|_kl", "entropy", "grad_norm", "length", "lr")]


def metric_names(steps: Sequence[Step]) -> list[str]:
    """Return the names of all metrics, the most wanted first."""
    names = list(dict.fromkeys(name for step in steps for name in step.metrics))
    shortest = sorted(range(len(names)), key=lambda i: (names[i].count("/") + len(names[i]) / 100, i))
    first = []
    for word in _WANTED:  # of each kind the mean: critic/rewards/mean before critic/rewards/max
        means = [names[i] for i in shortest if word.search(names[i]) and names[i] not in first]
        first += [name for name in means if name.endswith("mean")][:1] or means[:1]
    return first + [name for name in names if name not in first]


def steps_section(run: Run) -> Markup | None:
    """Return the last steps and the curves of the metrics; None for a run without steps."""
    if not run.steps:
        return None
    names = metric_names(run.steps)
    over = f"Steps {run.steps[0].step:,} to {run.steps[-1].step:,}, from left to right."
    if len(run.steps) > 2 * _COLUMNS:
        over += f" {len(run.steps):,} values are drawn as {_COLUMNS} means, shaded from lowest to highest."
    return tag(
        "section",
        tag("h2", "Steps", id="steps"),
        _table(run.steps, names[:TABLE_METRICS]),
        [tag("h3", "Metrics"), tag("p", over, class_="note"), charts(names, [run.steps])] if names else None,
    )


def charts(names: Sequence[str], runs: Sequence[Sequence[Step]]) -> list[Markup | None]:
    """Return a small curve for each metric; all but the first ones are folded."""
    drawn = [_chart(name, runs) for name in names[:MOST_METRICS]]
    more = drawn[FIRST_METRICS:]
    left_out = len(names) - len(drawn)
    folded = [tag("summary", units.counted(len(more), "more metric")), tag("ul", more, class_="metrics")]
    return [
        tag("ul", drawn[:FIRST_METRICS], class_="metrics"),
        tag("details", folded) if more else None,
        tag("p", f"{left_out:,} metrics are not shown; run.json has them.", class_="note") if left_out else None,
    ]


def _chart(name: str, runs: Sequence[Sequence[Step]]) -> Markup:
    """Return the curve of a metric over the steps of one or two runs, with its last value and its range."""
    curves = [[(float(s.step), s.metrics[name]) for s in sorted(steps, key=lambda s: s.step) if name in s.metrics]
              for steps in runs]  # fmt: skip
    known = [y for points in curves for _, y in points if math.isfinite(y)]
    first = min((points[0][0] for points in curves if points), default=0.0)
    last = max((points[-1][0] for points in curves if points), default=1.0)
    axis = Axis(max(last - first, 1.0))
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    margin = (high - low or abs(high) or 1.0) * 0.06
    drawn = [
        draw_curve(axis, [(x - first, y) for x, y in points], low - margin, high + margin, which, _COLUMNS)
        for points, which in zip(curves, ("s1", "s2 dashed"), strict=False)
    ]
    values = [units.figure(points[-1][1]) if points else "-" for points in curves]
    label = f"{name}: {' and '.join(values)} at the end, from {units.figure(low)} to {units.figure(high)}"
    letters = [""] if len(runs) == 1 else list("AB")
    last_values = [
        tag("b", tag("span", letter and f"{letter} ", class_="unit"), value)
        for letter, value in zip(letters, values, strict=True)
    ]
    odd = [_odd(points, letter and f"{letter}: ") for letter, points in zip(letters, curves, strict=True)]
    drawing = tag("svg", stretched(drawn), class_="plot small", role="img", aria_label=label)
    spread = f"{units.figure(low)} to {units.figure(high)}" if low < high else "always" if known else "no finite value"
    return tag(
        "li", tag("div", name, class_="name"), drawing,
        tag("div", last_values, tag("span", spread, class_="range"), class_="values"), odd,
    )  # fmt: skip


def _odd(points: Sequence[Point], whose: str) -> Markup | None:
    """Return the step at which a metric became NaN or infinite, a frequent cause of failed trainings."""
    bad = [(int(step), value) for step, value in points if not math.isfinite(value)]
    if not bad:
        return None
    more = f" and {len(bad) - 1:,} more" if bad[1:] else ""
    return tag("div", f"{whose}{units.figure(bad[0][1])} at step {bad[0][0]:,}{more}", class_="odd")


def _table(steps: Sequence[Step], names: Sequence[str]) -> Markup:
    shown = steps[-LAST_STEPS:]
    head = ["step", "ended at", "took", *names]
    rows = [
        tag("tr", tag("th", f"{step.step:,}", scope="row"), tag("td", units.since_start(step.end_s)),
            tag("td", duration(step.seconds)),
            [tag("td", units.figure(step.metrics[name]) if name in step.metrics else "") for name in names])
        for step in shown
    ]  # fmt: skip
    caption = f"The last {len(shown)} of {len(steps):,} steps" if len(steps) > len(shown) else "All steps"
    return wide_table(caption, "numbers", tag("caption", caption), table_head(head), rows)
