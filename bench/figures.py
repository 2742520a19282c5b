"""The figures: what each one is, its goal, and how a list of repetitions becomes a line of the table. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

RAYDEBUG, STOCK = "raydebug", "stock"
EXPLANATION = """\
# Results

Made from results.json, which has the raw numbers; README.md defines the figures. Stock: Ray's own debugger in a head
without raydebug, debugpy's listener and adapter, the same client, alternating in the same run. Goals are multiples of
the stock tool, of `python -c pass` or of a Python call in the same run.

"""
Samples = dict[str, dict[str, list[float]]]  # figure's key -> side -> one value per repetition


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Args:
        key: its name in results.json.
        title: what is measured, in words.
        unit: ms, s, x (a multiple), ns, %.
        goal: at most this multiple of the base, for raydebug; None where the figure only explains another.
        base: what the goal is a multiple of: `stock` for the stock tool's median of the same figure, `python` for that
            of `python -c pass`, `call` for that of a Python call, empty where the figure is a share or a multiple.
    """

    key: str
    title: str
    unit: str
    goal: float | None = None
    base: str = ""


# A goal in seconds would say more of the machine than of raydebug: each is a multiple of something of the same run.
BASES = {"python": ("start", "ms"), "call": ("calls_ns", "ns")}
UNITS = {"s": 1.0, "ms": 1e-3, "ns": 1e-9}
FIGURES = (
    Figure("evaluate", "evaluate at a pause (p50 of 20)", "ms", 0.05, "stock"),
    Figure("step", "step + stackTrace + scopes + variables", "ms", 0.03, "stock"),
    Figure("step_again", "... each of five steps immediately after it (p50)", "ms", 0.03, "stock"),
    Figure("warm_stack", "warm breakpoint() -> stack shown", "s", 0.1, "stock"),
    Figure("first_attachable", "first pause of a process: breakpoint() -> a client can attach", "s", 0.6, "stock"),
    Figure("first_stack", "first pause of a process: breakpoint() -> stack shown", "s", 0.5, "stock"),
    Figure("attach_32", "32 paused actors: all attached, with their stacks", "s", 0.25, "stock"),
    Figure("paused_100", "`raydebug paused`, the whole command, 100 tasks in the cluster", "s", 16, "python"),
    Figure("paused_1000", "... 1,000 tasks", "s", 16, "python"),
    Figure("paused_9000", "... 9,000 tasks", "s", 16, "python"),
    Figure("help", "`raydebug --help`, the whole command (p50 of 20)", "s", 12, "python"),
    Figure("check_env", "`raydebug check env --fresh`, the whole command (p50 of 20)", "s", 24, "python"),
    Figure("gateway_idle", "processor time of an idle gateway, 32 processes dialled in", "%", 1.0),
    Figure("start_extra", "the hook, added to the start of an empty program", "ms", 0.3, "python"),
    Figure(
        "start_ray_extra", "... of a program that imports asyncio and json, as a Ray worker does", "ms", 0.3, "python"
    ),
    Figure("start", "`python -c pass`, whole (p50 of 20)", "ms"),
    Figure("start_ray", '`python -c "import asyncio, json"`, whole (p50 of 20)', "ms"),
    Figure("start_import", "import of the hook with all that it imports (-X importtime)", "ms"),
    Figure("start_import_own", "... of these, raydebug's own modules", "ms"),
    Figure("calls_before", "Python call in a worker, before its first pause", "x", 1.05),
    Figure("calls_attached", "... after a pause was continued, client still attached", "x"),
    Figure("calls_left", "... client has left, in the function that paused", "x", 1.05),
    Figure("calls_later", "... client has left, in a later task of the worker", "x", 1.05),
    Figure("miss_disarmed", "`raydebug.breakpoint()` outside a cluster", "ns", 1.1, "call"),
    Figure("miss_when", "`raydebug.breakpoint(when=FALSE)`; stock: `if FALSE: breakpoint()`", "ns", 3, "call"),
    Figure("miss_every", "`raydebug.breakpoint(every=N)`; stock: a counter by hand", "ns", 3, "call"),
    Figure("miss_break_if", "`--break WHERE,if=FALSE`", "ns", 3, "call"),
    Figure("miss_break_every", "`--break WHERE,every=N`", "ns", 3, "call"),
    Figure("calls_ns", "a Python call without a debugger", "ns"),
)


def summary(values: list[float]) -> tuple[float, float, float]:
    """Return median, least and greatest."""
    return statistics.median(values), min(values), max(values)


def document(samples: Samples) -> list[dict[str, object]]:
    """Return the figures that were measured, with their raw numbers."""
    return [
        {"key": f.key, "title": f.title, "unit": f.unit, "goal": f.goal, **samples[f.key]}
        for f in FIGURES
        if f.key in samples
    ]


def table(samples: Samples) -> str:
    """Return the table of results in Markdown."""
    lines = [
        "| figure | raydebug: median (min - max) | stock: median (min - max) | ratio | goal | goal met |",
        "|---|---|---|---|---|---|",
    ]
    for figure in FIGURES:
        if figure.key in samples:
            sides = (samples[figure.key].get(side, []) for side in (RAYDEBUG, STOCK))
            cells = [_spread(values, figure) for values in sides]
            lines.append("| " + " | ".join([figure.title, *cells, *_verdict(figure, samples)]) + " |")
    return "\n".join(lines) + "\n"


def _spread(values: list[float], figure: Figure) -> str:
    if not values:
        return "-"
    middle, least, most = (_number(value) for value in summary(values))
    return f"**{middle}** {figure.unit} ({least} - {most})"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def _verdict(figure: Figure, samples: Samples) -> tuple[str, str, str]:
    """Return the ratio to the base, the goal, and whether it is met; empty where there is none."""
    ours = samples[figure.key].get(RAYDEBUG, [])
    if figure.goal is None or not ours:
        return "", "", ""
    ratio, words = summary(ours)[0], f"{figure.goal:g} {figure.unit}"
    if figure.base:
        key, unit = BASES.get(figure.base, (figure.key, figure.unit))
        base = samples.get(key, {}).get(STOCK)
        if not base:
            return "", "", ""
        ratio *= UNITS[figure.unit] / (UNITS[unit] * summary(base)[0])
        words = f"{figure.goal:g} x {figure.base}"
    shown = f"{ratio:.2g} x" if figure.base else ""
    return shown, f"<= {words}", "yes" if ratio <= figure.goal else "**no**"


def page(results: dict[str, Any]) -> str:
    """Return RESULTS.md of results.json: the table of figures, then a table of each program that ran by itself."""
    samples = {
        figure["key"]: {side: figure[side] for side in (RAYDEBUG, STOCK) if side in figure}
        for figure in results["figures"]
    }
    text = f"{EXPLANATION}{machine_line(results['machine'])}\n\n{table(samples)}"
    for name, part in sorted(results["programs"].items()):
        rows = [part["columns"], ["---"] * len(part["columns"]), *part["rows"]]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        text += f"\n## {part['title']}\n\n`python -m bench.{name}`: {part['about']}\n\n" + "\n".join(lines) + "\n"
    return text


def machine_line(about: dict[str, Any]) -> str:
    """Return where and with what was measured, as a sentence."""
    return (
        "{date}, {machine}, {cores} cores, Python {python}, Ray {ray}, debugpy {debugpy}, raydebug {raydebug}; "
        "{repetitions} repetitions; load average (1, 5, 15 min) {load} before, {load_after} after."
    ).format(**about)
