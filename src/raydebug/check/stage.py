"""What a rung of the ladder is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raydebug.check.finding import Finding
from raydebug.check.subject import Subject


@dataclass(frozen=True)
class Checked:
    """What a stage found.

    Args:
        findings: what is wrong, or to know.
        read: the files that it depends on, as the cluster calls them; empty where it depends on more than files.
    """

    findings: list[Finding]
    read: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """One rung.

    Args:
        name: its word.
        budget_s: how long it should take on two cores.
        check: looks, and returns what it found.
        needs_command: whether there must be a training command.
    """

    name: str
    budget_s: float
    check: Callable[[Subject], Checked]
    needs_command: bool = True
