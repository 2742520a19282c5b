"""What `tensor EXPR` looks like."""

from __future__ import annotations

from collections.abc import Sequence

from raydebug.console.paint import Paint
from raydebug.dap.wire import Message
from raydebug.render import visible


def draw(found: Message, paint: Paint | None = None) -> str:
    """Return the description as a few calm lines.

    Raises:
        ValueError: it describes no tensor; the text says what it is.
    """
    if "error" in found:
        raise ValueError(str(found["error"]))
    paint = paint or Paint()
    facts = [found["type"], shape(found["shape"]), found["dtype"], found["device"]]
    if found.get("requires_grad"):
        facts.append("requires_grad")
    lines = [paint("  ".join(facts), "bold")]
    if "placements" in found:
        lines.append(f"  {part(found)}; the values below are this rank's")
    if found.get("layout"):
        lines.append(f"  {found['layout']}; the values below are the stored ones")
    spread = [f"{name} {number(found[name])}" for name in ("min", "max", "mean", "std") if name in found]
    if spread:
        lines.append("  " + "  ".join(spread))
    if "nan" in found:
        bad = found["nan"] or found["inf"]
        counts = f"  NaN {found['nan']}  Inf {found['inf']}"
        if bad:
            counts += (
                f"  (the line above is of the {found['finite']} finite values)" if spread else "  (no finite value)"
            )
        lines.append(paint(counts, "red", "bold") if bad else counts)
    if "first" in found:
        more = ", ..." if found["numel"] > len(found["first"]) else ""
        lines.append(f"  first [{', '.join(number(item) for item in found['first'])}{more}]")
    if "note" in found:
        lines.append(f"  {found['note']}")
    return visible("\n".join(lines), keep="\n\x1b" if paint.colour else "\n")


def shape(sizes: Sequence[object]) -> str:
    """Return a shape as `[4x8]`."""
    return f"[{'x'.join(map(str, sizes)) or 'scalar'}]"


def part(found: Message) -> str:
    """Return which part of a distributed tensor a rank holds."""
    local, how = shape(found.get("local_shape", [])), ", ".join(found["placements"])
    if "part" not in found:
        return f"all of it {local} by {how}"
    index, count = found["part"]
    return f"{'share' if found.get('partial') else 'shard'} {index} of {count} {local} by {how}"


def number(value: object) -> str:
    """Return a number as briefly as it stays telling."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
