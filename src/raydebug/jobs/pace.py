"""How often a run is looked at: at first often, and never for more than a hundredth of the time."""

from __future__ import annotations

import asyncio
import time

# A look takes processors of the training for some milliseconds: in raydebug, the gateway, Ray's dashboard and its GCS.
SHARE = 100  # nobody who has waited an hour for a run notices two seconds more
MOST_S = 2.0


class Pace:
    """The waits between looks at one run: a part of its age, and a hundred times what the last look took.

    Args:
        least_s: seconds of the first waits.
        most_s: seconds of the longest ones.
        part: 100 for a hundredth of its age.
    """

    def __init__(self, least_s: float, most_s: float = MOST_S, *, part: int = SHARE) -> None:
        self._least_s, self._most_s, self._part = least_s, max(least_s, most_s), part
        self._began = self._looked = time.monotonic()

    async def wait(self, least_s: float = 0.0) -> None:
        """Wait until the next look, this long at least; a look begins at the end of the wait before it."""
        now = time.monotonic()
        wanted_s = max(self._least_s, (now - self._began) / self._part, SHARE * (now - self._looked))
        await asyncio.sleep(max(least_s, min(wanted_s, self._most_s)))
        self._looked = time.monotonic()
