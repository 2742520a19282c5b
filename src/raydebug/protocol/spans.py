"""What a process says of the spans that have ended in it: phases, parts of samples, requests to an engine."""

from __future__ import annotations

from typing import TypedDict

from raydebug.protocol.records import Name

MOST_AT_ONCE = 1000  # spans of one answer; a record holds no longer list (records.py)
REQUEST = "request"  # the name of a request to an engine


class SpanRecord(TypedDict, total=False):
    """A span; its times are nanoseconds of the process's CLOCK_MONOTONIC."""

    name: Name
    began_ns: int
    ended_ns: int
    thread: int
    task: int  # of asyncio
    of: Name  # the number of a step, the uid of a sample, the id of a request
    note: Name  # the tools of a sample
    first_ns: int  # of a request: its first output
    prompt: int  # its tokens
    tokens: int  # that were made


class SpansRecord(TypedDict, total=False):
    """The answer to `spans`, and what a process says of itself as it ends.

    The gateway adds when it has sent the question and received the answer: so the clocks of nodes are compared.
    """

    spans: list[SpanRecord]
    lost: int  # spans that were dropped since the last answer
    more: bool  # the process has more of them
    now_ns: int  # of the process's CLOCK_MONOTONIC
    wall_ns: int  # what the process's own clock is ahead of it
    sent_ns: int  # of the gateway's CLOCK_MONOTONIC, as are the next
    received_ns: int
    gateway_wall_ns: int  # what the gateway's clock is ahead of it
