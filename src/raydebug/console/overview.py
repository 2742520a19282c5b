"""Commands that speak of every rank at the prompt: ranks, diff."""

from __future__ import annotations

import io
from pathlib import Path

from raydebug.console.command import Command
from raydebug.console.debugger import Debugger
from raydebug.console.diff import compare
from raydebug.console.screen import duration, exception_text
from raydebug.render import visible

_COLUMNS = ("", "rank", "state", "where", "step", "paused for")


async def _ranks(debugger: Debugger, argument: str) -> str:
    peers = debugger.peers()
    return table([_row(peer, current=peer is debugger) for peer in peers])


def table(rows: list[tuple[str, ...]]) -> str:
    """Return rows below the overview's headings, in columns as wide as they need."""
    widths = [max(len(row[index]) for row in (_COLUMNS, *rows)) for index in range(len(_COLUMNS))]
    out = io.StringIO()
    for row in (_COLUMNS, *rows):
        out.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
    return out.getvalue().rstrip("\n")


def _row(debugger: Debugger, *, current: bool) -> tuple[str, ...]:
    session = debugger.session
    frame = session.stack.frame
    name = debugger.label.removeprefix("rank ") if debugger.label.startswith("rank ") else debugger.label
    if session.running:
        return (">" if current else "", name, "running", "", "", "")
    state = str(session.pause.get("kind") or "breakpoint")
    where = f"{Path(frame.path).name}:{frame.line} {frame.function}" if frame else "?"
    if session.post_mortem:
        state = "post-mortem"
        where += f": {exception_text(session.exception, session.pause)}"
    elif session.stop.get("reason") in ("step", "pause"):
        state = "step"
    step = session.pause.get("step")
    told = "-" if step is None else str(step)
    return (
        ">" if current else "",
        name,
        state,
        visible(where, keep=""),
        visible(told, keep=""),
        duration(session.paused_for_s),
    )


async def _diff(debugger: Debugger, argument: str) -> str:
    expression = debugger.expression(argument)
    peers = [peer for peer in debugger.peers() if not peer.session.running]
    running = [f"{peer.label}: runs" for peer in debugger.peers() if peer.session.running]
    return "\n".join([await compare(peers, expression), *running] if peers else running)


COMMANDS = (
    Command(("ranks",), "ranks", "Every rank at this prompt: state, place, step, how long.", _ranks, bare=True,
            of_all=True),
    Command(("diff",), "diff EXPR", "The value at every rank, equal ones together; tensors: how far apart.", _diff,
            needs="EXPR", of_all=True),
)  # fmt: skip
