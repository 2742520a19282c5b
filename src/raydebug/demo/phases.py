"""How long each part of the demo's training took, read off its log as it arrives. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# What the training's log says when a phase has ended. Source: verl 0.9.1 trainer/ppo/v1/trainer_base.py, as it prints.
ENDS: tuple[tuple[str, str], ...] = (
    ("driver and trainer started", r"create worker group"),
    ("model load (FSDP2 engine)", r"actor and ref model engine initialized"),
    ("vLLM ready", r"LLMServerManager:"),
    ("first step", r"\bstep:1 - "),
    ("second step", r"\bstep:2 - "),
)


@dataclass
class Phases:
    """Collects the moments at which phases ended; time spent paused is not the training's.

    Args:
        started: when the job was submitted, in seconds of the monotonic clock.
    """

    started: float
    ended: dict[str, float] = field(default_factory=dict)
    paused_s: float = 0.0

    def take(self, line: str, now: float) -> None:
        """Note what a line of the log says to have ended."""
        for name, pattern in ENDS:
            if name not in self.ended and re.search(pattern, line):
                self.ended[name] = now - self.paused_s

    def rows(self) -> list[tuple[str, float]]:
        """Return each phase with its seconds, in the order in which they ended."""
        rows = []
        before = self.started
        for name, moment in sorted(self.ended.items(), key=lambda item: item[1]):
            rows.append((name, moment - before))
            before = moment
        return rows

    @property
    def training_s(self) -> float:
        """Seconds from submission to the end of the second step, pauses not counted."""
        return self.ended.get("second step", self.started) - self.started
