"""Sizes, moments, counts and changes as text for people. Pure."""

from __future__ import annotations

import math

from raydebug.render import MINUS, duration, moment


def since_start(value: float) -> str:
    """Return a moment of the run with its seconds, also after hours: 3m12s, 23h52m10s."""
    if value < 3599.5:
        return duration(value)
    minutes, rest = divmod(round(value), 60)
    return f"{minutes // 60}h{minutes % 60:02d}m{rest:02d}s"


def tick(value: float, step: float) -> str:
    """Return a moment on the time axis, with the precision of its ticks."""
    if value == 0:
        return "0"
    if step < 1:
        return f"{value:.{max(0, math.ceil(-math.log10(step)))}f} s"
    if step < 60 and value < 60:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m" if step >= 60 else f"{hours}h{minutes:02d}m{rest:02d}"
    return f"{minutes}m{rest:02d}s" if step < 60 or not minutes else f"{minutes}m"


def mebibytes(value: float | None) -> str:
    """Return a size that is given in MiB as text; ? for None."""
    if value is None:
        return "?"
    if value == 0:
        return "0 MiB"
    if value < 0.9995:
        return f"{value * 1024:.3g} KiB"
    if value < 1023.5:
        return f"{value:.0f} MiB" if value >= 99.95 else f"{value:.3g} MiB"
    gibibytes = value / 1024
    return f"{gibibytes:#.3g} GiB" if gibibytes < 99.95 else f"{gibibytes:,.0f} GiB"


def figure(value: float) -> str:
    """Return a metric with four significant digits."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else f"{MINUS}inf"
    size = abs(value)
    shown = f"{size:,.0f}" if value == int(value) and size < 1e7 else f"{size:.4g}"
    return (MINUS if value < 0 else "") + shown


def between(start: float | None, end: float | None) -> str:
    """Return a time range; the date is given once when both ends share it."""
    first, last = moment(start), moment(end)
    if last == "?":
        return f"since {first}" if first != "?" else ""
    same = first[:10] == last[:10]
    return f"{first.removesuffix(' UTC')} to {last[11:] if same else last}"


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: 1 pause, 5,000 pauses."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def share(part: float, whole: float) -> str:
    """Return a part as a percentage."""
    if whole <= 0:
        return ""
    percentage = 100 * part / whole
    return "<1 %" if 0 < percentage < 0.995 else f"{percentage:.0f} %"


def change(before: float, after: float) -> str:
    """Return the change of a time span as a signed percentage; empty if it was 0 before."""
    if before <= 0:
        return ""
    percentage = 100 * (after - before) / before
    if abs(percentage) < 0.5:
        return "\N{PLUS-MINUS SIGN}0 %"
    if percentage >= 900:
        return f"\N{MULTIPLICATION SIGN}{after / before:.3g}"
    return f"{'+' if percentage > 0 else MINUS}{abs(percentage):.0f} %"
