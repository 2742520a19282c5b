"""What `tensor EXPR` looks like."""

from __future__ import annotations

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
    shape = "x".join(str(size) for size in found["shape"]) or "scalar"
    facts = [found["type"], f"[{shape}]", found["dtype"], found["device"]]
    if found.get("requires_grad"):
        facts.append("requires_grad")
    lines = [paint("  ".join(facts), "bold")]
    if "placements" in found:
        local = "x".join(str(size) for size in found.get("local_shape", [])) or "scalar"
        lines.append(f"  local shard [{local}] of {', '.join(found['placements'])}; the values below are this rank's")
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


def number(value: object) -> str:
    """Return a number as briefly as it stays telling."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
