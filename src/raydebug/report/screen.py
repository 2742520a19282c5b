"""One picture of a run for a terminal: as data, and drawn in as many lines as there are. Pure.

All that comes from the job is drawn with its control characters made visible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raydebug import render
from raydebug.cluster.state import DEFAULT_NAME, name_option
from raydebug.render import duration
from raydebug.report.units import figure, mebibytes
from raydebug.runs.record import NODE, GpuLoad, ProcessMemory, Run

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

# The first metric that a trainer logs counts: of verl, OpenRLHF, slime.
METRICS: Mapping[str, Sequence[str]] = {
    "reward": ("critic/rewards/mean", "critic/score/mean", "reward"),
    "KL": ("actor/kl_loss", "actor/ppo_kl", "rollout_corr/kl", "kl", "train/kl_loss", "train/ppo_kl"),
    "gradient norm": ("actor/grad_norm", "actor_grad_norm", "train/grad_norm"),
    "tokens/s": ("perf/throughput",),
}
BARS = "▁▂▃▄▅▆▇█"
VALUES, VALUES_OF_MEMORY = 30, 20  # the last ones that are drawn
MOST_ROWS, MOST_FINDINGS, LEAST_LOG, MOST_LOG = 6, 3, 3, 20
LINES_OF_STOP = 3  # of one thing that stops the run: a first error may have thousands of characters
LINES, COLUMNS = 40, 80  # of a picture whose terminal is not known
STALE_S = 30.0  # a record is written every 5 s
MINUTE_S, GROWS, GROWS_MIB = 60.0, 0.05, 50.0  # what grows by more than both in a minute is red
SLOW = "run.slow-rank"
_COLOURS = {"error": "red", "failed": "red", "warning": "yellow", "running": "cyan", "succeeded": "green"}


def take_picture(run: Run, log: str, now: float, *, age_s: float = 0.0, training: str = "") -> dict[str, Any]:
    """Return what is to be seen of a run.

    Args:
        run: from its record.
        log: the end of its log.
        now: in seconds since the epoch.
        age_s: of the record.
        training: what the training says of itself now; empty if it was not asked.
    """
    goes_on = run.status == "running"
    took_s = max(0.0, now - (run.started or now)) if goes_on else run.took_s
    phase = next((phase.name for phase in reversed(run.phases) if goes_on and phase.end_s is None), None)
    paused = [
        (pause, duration(max(0.0, (took_s or 0.0) - pause.start_s))) for pause in run.pauses if pause.end_s is None
    ]
    option = name_option(run.cluster.get("name") or DEFAULT_NAME).split()
    stops = [  # the command first: what follows may be cut
        f"{render.command('raydebug', 'attach', one.id, *option)}: paused for {since}: {one.where} ({one.who})"
        for one, since in paused
        if goes_on
    ]
    slow = [finding.get("what") for finding in run.findings if finding.get("code") == SLOW]
    if run.first_error is not None:
        stops.append(f"first error: {run.first_error.get('text', '')}")
    return {
        "version": 1,
        "id": run.id,
        "status": run.status,
        "took_s": took_s,
        "age_s": round(age_s, 1),
        "now": training or phase,
        "step": run.steps[-1]["step"] if run.steps else None,
        "step_age_s": max(0.0, (took_s or 0.0) - run.steps[-1]["end_s"]) if run.steps else None,
        "step_s": run.median_step_s,
        "stops": stops,
        "slow_rank": slow[-1] if slow else None,
        "findings": [finding for finding in run.findings if finding.get("code") != SLOW][-MOST_FINDINGS:],
        "metrics": [*_metrics(run)],
        "memory": sorted(_memory(run.memory), key=lambda row: (row["process"] != NODE, -row["mib"])),
        "gpus": [*_memory(run.gpus)],
        "log": [*filter(str.strip, render.visible_log(log, colour=False).splitlines())][-MOST_LOG:],
    }


def _metrics(run: Run) -> Iterator[dict[str, Any]]:
    for label, names in METRICS.items():
        for name in [metric for metric in names if any(metric in step["metrics"] for step in run.steps)][:1]:
            values = [step["metrics"][name] for step in run.steps if name in step["metrics"]]
            yield {"label": label, "name": name, "values": values[-VALUES:]}
    if run.steps:
        yield {"label": "step, seconds", "name": "", "values": [step["seconds"] for step in run.steps][-VALUES:]}


def _memory(measured: Sequence[ProcessMemory | GpuLoad]) -> Iterator[dict[str, Any]]:
    for series in measured:
        last_s, mib, *busy = series.samples[-1]
        earlier = [sample for sample in series.samples if sample[0] <= last_s - MINUTE_S]
        at_s, before, *_ = (earlier or series.samples[:1])[-1]  # of a long run there is less than one sample a minute
        change = (mib - before) * MINUTE_S / max(MINUTE_S, last_s - at_s)
        name = series.name if isinstance(series, GpuLoad) else series.process
        about = {"process": name, "node": series.node, "mib": mib, "last_minute_mib": change}
        values = [value for _, value, *_ in series.samples[-VALUES_OF_MEMORY:]]
        yield {**about, "values": values, **({"busy": busy[0]} if busy else {})}


def sparkline(values: Sequence[float]) -> str:
    """Return values as bars; a value that is no finite number is an exclamation mark.

    >>> sparkline([0, 1, 2, float("nan")]), sparkline([3.0, 3.0]), sparkline([])
    ('▁▅█!', '▁▁', '')
    """
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0) / 2, max(known, default=0.0) / 2  # of halves the difference is finite, too
    span = high - low or 1.0
    return "".join(BARS[round(7 * ((value / 2 - low) / span))] if math.isfinite(value) else "!" for value in values)


def draw(picture: Mapping[str, Any], lines: int = LINES, columns: int = COLUMNS) -> RenderableType:
    """Return a picture for rich; no line is wider than the terminal, and most of them have room in it.

    Args:
        picture: the data.
        lines: of the terminal.
        columns: of the terminal.
    """
    from rich.console import Group

    status, step = picture["status"], ""
    if picture["step"] is not None:
        ago = f", {duration(picture['step_age_s'], whole=True)} ago" if status == "running" else ""
        step = f"  step {picture['step']}{ago}, median {duration(picture['step_s'])}"
    took = f"{'for' if status == 'running' else 'after'} {duration(picture['took_s'], whole=True)}"
    parts: list[RenderableType] = [_text(f"{picture['id']}  {status} {took}{step}", f"bold {_COLOURS.get(status, '')}")]
    if status == "running" and picture["age_s"] > STALE_S:
        age = duration(picture["age_s"], whole=True)
        parts.append(_text(f"this is {age} old: no `raydebug run` follows the job any more", "yellow"))
    parts += [_text(f"now: {picture['now']}", "cyan")] if picture["now"] else []
    for reason in picture["stops"][:MOST_FINDINGS]:
        parts += _wrapped(_text(reason, "bold yellow"), columns)
    parts += [_text(picture["slow_rank"], "yellow")] if picture["slow_rank"] else []
    for finding in picture["findings"]:
        severity = finding.get("severity", "")
        parts.append(_text(f"{severity}: {finding.get('what', '')}", _COLOURS.get(severity, "")))
    left = lines - len(parts) - 2
    for title, rows, widths in (
        ("steps", [*_step_rows(picture)], (14, 10, VALUES, 20)),
        ("memory, and its change in the last minute in MiB", [*_memory_rows(picture)], (34, 9, 9, VALUES_OF_MEMORY)),
    ):
        if rows:
            parts += [_text(title, "bold"), _table(rows, widths)]
            left -= len(rows) + 1
    log = picture["log"][-max(LEAST_LOG, min(MOST_LOG, left)) :]
    return Group(*parts, *([_text("log", "bold")] if log else []), *(_text(line, "dim") for line in log))


def _step_rows(picture: Mapping[str, Any]) -> Iterator[list[Text]]:
    for metric in picture["metrics"]:
        bars = _text(sparkline(metric["values"]), "green")
        yield [_text(metric["label"]), _text(figure(metric["values"][-1])), bars, _text(metric["name"], "dim")]


def _memory_rows(picture: Mapping[str, Any]) -> Iterator[list[Text]]:
    several = len({row["node"] for row in picture["memory"]}) > 1
    for one in [*picture["memory"][:MOST_ROWS], *picture["gpus"][:MOST_ROWS]]:
        name, change = f"{one['process']} on {one['node']}" if several else one["process"], one["last_minute_mib"]
        name = f"{one['busy']:.0f} % busy: {name}" if "busy" in one else name
        style = "bold red" if change > max(GROWS_MIB, GROWS * one["mib"]) else "dim"
        yield [_text(name), _text(mebibytes(one["mib"])), _text(f"{change:+,.0f}", style),
               _text(sparkline(one["values"]), "blue")]  # fmt: skip


def _table(rows: Sequence[Sequence[Text]], widths: Sequence[int]) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for number, width in enumerate(widths):
        table.add_column(justify="right" if number in (1, len(rows[0]) - 2) else "left", max_width=width, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _wrapped(text: Text, columns: int) -> list[Text]:
    """Return the lines of a text, and what is not shown of it as an ellipsis."""
    from rich.console import Console

    lines = [*text.wrap(Console(width=columns), columns, overflow="fold", no_wrap=False)]
    if len(lines) > LINES_OF_STOP:
        lines[LINES_OF_STOP - 1].truncate(columns - 1)
        lines[LINES_OF_STOP - 1].append("\N{HORIZONTAL ELLIPSIS}")
    return lines[:LINES_OF_STOP]


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(render.visible(text.expandtabs(4), keep=""), style=style, no_wrap=True, overflow="ellipsis")
