"""Who did what to which pause, one line each in the gateway's log; never an expression, never a value (S31)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raydebug import render

if TYPE_CHECKING:
    from raydebug.gateway.pauses import Pause

log = logging.getLogger("raydebug.gateway")


def note(deed: str, client: str, pause: Pause | None = None, **more: object) -> None:
    """Write a line.

    Args:
        deed: `ask`, `attach`, `detach`, `steal`, `resume`, `watch` or `refuse`.
        client: who, as `title_of` words it.
        pause: which pause of which process.
        more: further facts, none of them out of the process.
    """
    facts = [] if pause is None else [f"pause={pause.id}", f'process="{_quoted(pause.process.title)}"']
    facts += [f"{name}={_quoted(str(value))}" for name, value in more.items()]
    log.info("audit: %s", " ".join([deed, *facts, f"client={client}"]))


def title_of(name: str, peer: object) -> str:
    """Return a client's name and address, as one word of a log line: the name is the client's own choice."""
    address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?"
    return f'"{_quoted(name)}"@{address}'


def _quoted(text: str) -> str:
    return render.visible(text, keep="").replace('"', "'")
