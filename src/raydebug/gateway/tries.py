"""Wrong tokens: whoever guesses is answered slowly; the right token never waits."""

from __future__ import annotations

import asyncio
import time
from collections import deque

FREE = 10  # a mistyped or stale token is an accident
WITHIN_S = 60.0
DELAY_S = 1.0


class WrongTries:
    """The wrong tokens of the last minute, whoever sent them: all clients come from the same loopback."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=FREE + 1)

    def delay_s(self) -> float:
        """Count a wrong token, and return how long its answer waits."""
        now = time.monotonic()
        self._times.append(now)
        return DELAY_S if len(self._times) > FREE and now - self._times[0] < WITHIN_S else 0.0

    async def answer_late(self) -> None:
        """Count a wrong token, and wait as long as its answer has to."""
        await asyncio.sleep(self.delay_s())
