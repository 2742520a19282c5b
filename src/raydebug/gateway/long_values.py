"""Values of a process that are too long to be looked into: passed on as they are, or refused."""

from __future__ import annotations

import logging
import re

from raydebug.dap import wire
from raydebug.dap.wire import Message

log = logging.getLogger("raydebug.gateway")

# pydevd writes a response's own fields before its body, but its `seq` last, and the number of its command behind that
# (debugpy 1.8.22, pydevd_schema.py, `to_dict` of each response; pydevd_base_schema.py; pydevd_net_command.py:77). Only
# of these two requests: in what answers the others files are named.
TAIL_BYTES = 80
_PASSED = re.compile(
    rb'\{"type": "response", "request_seq": (\d+), "success": true, "command": "(evaluate|variables)", "body": (?=\{)'
)
_SEQ = re.compile(rb', "seq": \d+(?:, "pydevd_cmd_id": \d+)?\}$')
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


def pass_through(message: bytes) -> Message | None:
    """Return a long response with its body unparsed; None for a message that has to be looked into."""
    head, tail = _PASSED.match(message), _SEQ.search(message, max(0, len(message) - TAIL_BYTES))
    if head is None or tail is None:
        return None
    body = wire.RawBody(memoryview(message)[head.end() : tail.start()])
    return {"type": "response", "request_seq": int(head[1]), "success": True, "command": head[2].decode(), "body": body}
