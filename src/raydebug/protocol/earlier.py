"""The control channel of 0.1 (commit e505644): events without ids both ways, matched by their names.

A gateway of this version asks such a worker, and a worker of this version answers such a gateway. This file can go,
with the branches that use it and what `earlier.py` marks, in the second release after 0.1: no job of 0.1 runs then.
"""

from __future__ import annotations

from raydebug.protocol import wire
from raydebug.protocol.wire import Message

ASKED = {name: name for name in ("describe", "stacks", "frames", "pause", "breaks", "withdraw")}
ASKED["save-pause"] = "savePause"
"""By question: the event that asks it."""
QUESTION_OF = {event: name for name, event in ASKED.items()}
ANSWERED = {"describe": "described", "stacks": "stacked", "frames": "framesSent", "pause": "refused"}
"""By question: the event that answers it."""


def request(number: int, name: str, body: Message) -> Message:
    """Return the event that asks a question; its number is in the body of `frames`, which then has it in the answer."""
    return wire.event(number, ASKED[name], {**body, "request": number} if name == "frames" else body)


def answers(message: Message, name: str, number: int, body: Message) -> bool:
    """Return whether an event answers a question; those of one name without a `request` are answered together."""
    if name not in ANSWERED or message.get("event") != ANSWERED[name]:
        return False
    sent: Message = found if isinstance(found := message.get("body"), dict) else {}
    if name == "stacks" and isinstance(threads := sent.get("threads"), list) and threads:
        has_digests = any(isinstance(one, dict) and "digest" in one for one in threads)
        return has_digests == bool(body.get("digests"))
    expected: object = request(number, name, body)["body"].get("request")
    return sent.get("request") == expected


def answer(number: int, name: str, body: Message, found: Message) -> Message | None:
    """Return the event that answers the event of a question; None if 0.1 waits for none."""
    if name not in ANSWERED:
        return None
    return wire.event(number, ANSWERED[name], {**found, "request": body["request"]} if "request" in body else found)
