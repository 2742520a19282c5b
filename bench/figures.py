"""The figures: what each one is, its goal, and how a list of repetitions becomes a line of the table. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

RAYDEBUG, STOCK = "raydebug", "stock"
Samples = dict[str, dict[str, list[float]]]  # figure's key -> side -> one value per repetition


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Args:
        key: its name in results.json.
        title: what is measured, in words.
        unit: ms, s, x (a multiple), ns, %.
        goal: at most this much, for raydebug; None where the figure only explains another.
    """

    key: str
    title: str
    unit: str
    goal: float | None = None


FIGURES = (
    Figure("evaluate", "evaluate at a pause (p50 of 20)", "ms", 1.5),
    Figure("step", "step + stackTrace + scopes + variables", "ms", 5.0),
    Figure("step_again", "... each of five steps immediately after it (p50)", "ms", 5.0),
    Figure("warm_stack", "warm breakpoint() -> stack shown", "s", 0.1),
    Figure("first_attachable", "first pause of a process: breakpoint() -> a client can attach", "s", 0.4),
    Figure("first_stack", "first pause of a process: breakpoint() -> stack shown", "s", 0.4),
    Figure("attach_32", "32 paused actors: all attached, with their stacks", "s", 2.0),
    Figure("paused_100", "`raydebug paused`, the whole command, 100 tasks in the cluster", "s", 0.2),
    Figure("paused_1000", "... 1,000 tasks", "s", 0.2),
    Figure("paused_9000", "... 9,000 tasks", "s", 0.2),
    Figure("help", "`raydebug --help`, the whole command (p50 of 20)", "s", 0.15),
    Figure("check_env", "`raydebug check env --fresh`, the whole command (p50 of 20)", "s", 0.3),
    Figure("gateway_idle", "processor time of an idle gateway, 32 processes dialled in", "%", 1.0),
    Figure("way_direct", "evaluate in a plain program, directly (p50 of 200)", "ms"),
    Figure("way", "... through the gateway; stock: through socat", "ms", 1.5),
    Figure("way_added", "... what it adds", "ms", 0.5),
    Figure("way_copied", "... what an asyncio relay adds that only copies (bench/copying.py)", "ms"),
    Figure("way_ratio", "... what it adds, as a multiple of what socat adds", "x"),
    Figure("way_mib_direct", "a value of 12 MiB, directly, per MiB", "ms"),
    Figure("way_mib", "... through the gateway; stock: through socat", "ms"),
    Figure("way_mib_ratio", "... as a multiple of socat's time (throughput 0.8 is 1.25)", "x", 1.25),
    Figure("start_extra", "the hook, added to the start of an empty program", "ms", 5.0),
    Figure("start_ray_extra", "the hook, added to one that imports asyncio and json, as a Ray worker does", "ms", 5.0),
    Figure("start", "`python -c pass`, whole (p50 of 20)", "ms"),
    Figure("start_ray", '`python -c "import asyncio, json"`, whole (p50 of 20)', "ms"),
    Figure("start_import", "import of the hook with all that it imports (-X importtime)", "ms"),
    Figure("start_import_own", "... of these, raydebug's own modules", "ms"),
    Figure("calls_before", "Python call in a worker, before its first pause", "x", 1.05),
    Figure("calls_attached", "... after a pause was continued, client still attached", "x"),
    Figure("calls_left", "... client has left, in the function that paused", "x", 1.05),
    Figure("calls_later", "... client has left, in a later task of the worker", "x", 1.05),
    Figure("miss_disarmed", "`raydebug.breakpoint()` outside a cluster", "ns", 30.0),
    Figure("miss_when", "`raydebug.breakpoint(when=FALSE)`; stock: `if FALSE: breakpoint()`", "ns", 80.0),
    Figure("miss_every", "`raydebug.breakpoint(every=N)`; stock: a counter by hand", "ns", 80.0),
    Figure("miss_break_if", "`--break WHERE,if=FALSE`", "ns", 80.0),
    Figure("miss_break_every", "`--break WHERE,every=N`", "ns", 80.0),
    Figure("stop_when", "`--stop-when` with four conditions, per training step", "ms", 1.0),
    Figure("nonfinite_step", "a training step of the tiny model with `--stop-on nonfinite`; stock: without", "ms"),
    Figure("nonfinite_ratio", "... as a multiple", "x"),
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
        "| figure | goal | raydebug: median (min - max) | stock: median (min - max) | goal met |",
        "|---|---|---|---|---|",
    ]
    for figure in FIGURES:
        if figure.key in samples:
            ours = samples[figure.key].get(RAYDEBUG, [])
            stock = samples[figure.key].get(STOCK, [])
            lines.append(
                f"| {figure.title} | {_goal(figure)} | {_spread(ours, figure)} | {_spread(stock, figure)} "
                f"| {_verdict(ours, figure)} |"
            )
    return "\n".join(lines) + "\n"


def _goal(figure: Figure) -> str:
    return "" if figure.goal is None else f"<= {figure.goal:g} {figure.unit}"


def _spread(values: list[float], figure: Figure) -> str:
    if not values:
        return "-"
    middle, least, most = (_number(value) for value in summary(values))
    return f"**{middle}** {figure.unit} ({least} - {most})"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def _verdict(values: list[float], figure: Figure) -> str:
    if figure.goal is None or not values:
        return ""
    return "yes" if summary(values)[0] <= figure.goal else "**no**"
