"""How often a run is looked at: at first often, later less."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydebug.cluster.state import Cluster

# A look takes processors of the training for some milliseconds: in raydebug, the gateway, Ray's dashboard and its GCS.
# Nobody who has waited an hour for a run notices two seconds more.
AGE_DIVISOR, MOST_S = 100, 2.0


class Pace:
    """The waits between looks at one run: a hundredth of its age, within bounds.

    Args:
        cluster: where each look may be a command of its own, a login or a step of Slurm, the waits are longer.
        least_s: seconds of the first waits.
        most_s: seconds of the longest ones.
        age_divisor: another part of its age.
        can_wait: nobody waits for what is looked at: it takes a tenth of such commands.
    """

    def __init__(
        self,
        cluster: Cluster,
        least_s: float,
        most_s: float = MOST_S,
        *,
        age_divisor: int = AGE_DIVISOR,
        can_wait: bool = False,
    ) -> None:
        self._least_s = max(least_s, (10 if can_wait else 1) * cluster.least_poll_s)
        self._most_s = max(most_s, self._least_s, 2 * cluster.least_poll_s)
        self._age_divisor = age_divisor
        self._began = time.monotonic()

    async def wait(self, least_s: float = 0.0) -> None:
        """Wait until the next look, and this long at least."""
        age_s = time.monotonic() - self._began
        await asyncio.sleep(max(least_s, min(max(self._least_s, age_s / self._age_divisor), self._most_s)))
