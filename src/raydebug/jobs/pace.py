"""How often a run is looked at: at first often, and never for more than a hundredth of the time."""

from __future__ import annotations

import asyncio
import time

# A look takes processors of the training for some milliseconds: in raydebug, the gateway, Ray's dashboard and its GCS.
SHARE = 100  # nobody who has waited an hour for a run notices two seconds more
MOST_S = 2.0


class Pace:
    """The waits between looks at one run: a hundredth of its age, and a hundred times what the last look took.

    Args:
        least_s: seconds of the first waits.
        most_s: seconds of the longest ones.
    """

    def __init__(self, least_s: float, most_s: float = MOST_S) -> None:
        self._least_s, self._most_s = least_s, max(least_s, most_s)
        self._began = self._looked = time.monotonic()

    async def wait(self) -> None:
        """Wait until the next look; one begins at the end of the wait before it."""
        now = time.monotonic()
        wanted_s = max(self._least_s, (now - self._began) / SHARE, SHARE * (now - self._looked))
        await asyncio.sleep(min(wanted_s, self._most_s))
        self._looked = time.monotonic()
