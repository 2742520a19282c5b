"""Which pauses of a cluster belong to one prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Pause = dict[str, Any]


@dataclass(frozen=True)
class Selection:
    """What `attach all`, `--ranks` and `--job` ask for.

    Args:
        ranks: only these; None: all, those without a rank too.
        job: only of this job, by its submission id or Ray's own job id.
        steal: also pauses that other clients hold.
    """

    ranks: frozenset[int] | None = None
    job: str | None = None
    steal: bool = False

    def __str__(self) -> str:
        words = "pauses" if self.ranks is None else f"ranks {', '.join(map(str, sorted(self.ranks)))}"
        return words if self.job is None else f"{words} of job {self.job}"

    def takes(self, pause: Pause) -> bool:
        """Say whether a pause belongs to it, whoever holds the pause."""
        if self.ranks is not None and pause.get("rank") not in self.ranks:
            return False
        return self.job is None or self.job in (pause.get("job"), pause.get("job_id"))

    def split(self, pauses: Iterable[Pause]) -> tuple[list[Pause], list[Pause]]:
        """Return the pauses to take, by rank, then oldest first; and those that others hold."""
        mine = [pause for pause in pauses if self.takes(pause)]
        free = [pause for pause in mine if self.steal or pause.get("state") == "waiting"]
        free.sort(key=lambda pause: (pause.get("rank") is None, pause.get("rank") or 0))
        return free, [pause for pause in mine if not self.steal and pause.get("state") != "waiting"]

    def missing(self, pauses: Iterable[Pause]) -> set[int]:
        """Return the ranks that are asked for and not among these pauses."""
        return set(self.ranks or ()) - {pause["rank"] for pause in pauses if pause.get("rank") is not None}
