"""Delays the answers to wrong tokens."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from raydebug.gateway import logs

FREE_TRIES = 10  # a mistyped or stale token is an accident
WITHIN_S = 60.0
DELAY_S = 1.0


class AuthThrottle:
    """Delays answers to wrong tokens after FREE_TRIES in a minute; the right token is never delayed.

    One count for all clients, because all of them come from the same loopback address.
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=FREE_TRIES + 1)

    def delay_s(self) -> float:
        """Count a wrong token, and return the delay of its answer in seconds."""
        now = time.monotonic()
        self._times.append(now)
        return DELAY_S if len(self._times) > FREE_TRIES and now - self._times[0] < WITHIN_S else 0.0

    async def delay_answer(self, client: str, peer: object) -> None:
        """Count a wrong token of a client (`logs.name_client`), audit it, and wait before the answer."""
        logs.audit("refuse", client, stranger=peer, reason="wrong token")
        await asyncio.sleep(self.delay_s())
