"""Values of a process that are too long to be shown: refused, without an end to the session."""

from __future__ import annotations

import logging
import re

from raydebug.dap import wire
from raydebug.dap.wire import Message

log = logging.getLogger("raydebug.gateway")

# pydevd writes a response's own fields before its body (debugpy 1.8.22, pydevd_schema.py, `to_dict` of each response).
_ANSWERS = re.compile(rb'"request_seq":\s*(\d+).{0,80}?"command":\s*"(\w+)"')


def refuse_oversized(length: int, head: bytes) -> Message:
    """Return what stands in for a message of pydevd that is over the limit: the refusal of the request it answers."""
    answered = _ANSWERS.search(head)
    mib, limit_mib = length / 2**20, wire.MAX_BODY_BYTES / 2**20
    text = f"the answer has {mib:.0f} MiB, more than the {limit_mib:.0f} MiB that are shown"
    if answered is None:
        log.warning("a message of a process was passed over: %d bytes", length)
        return wire.event(0, "output", {"category": "important", "output": f"raydebug: {text}\n"})
    to = {"seq": int(answered[1]), "command": answered[2].decode("ascii", "replace")}
    return wire.refusal(0, to, text)
