"""raydebug: every stop of a distributed Ray + vLLM + verl run, within reach of one command."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # importing typing would cost every Python below a cluster 17 ms
if TYPE_CHECKING:
    from collections.abc import Iterable


def breakpoint(  # noqa: A001 - the built-in's name, with conditions
    when: object = True,  # positions with defaults: Python calls nothing faster
    every: int = 1,
    rank: int | Iterable[int] | None = None,
    once: bool = False,
    max: int | None = None,  # noqa: A002 - the word of --break
    timeout: float | None = None,
    log: str | None = None,
) -> None:
    """Pause here for a debugger, if all conditions hold; outside a cluster of raydebug's it does nothing.

    Args:
        when: any value; pause only if it is true.
        every: pause at each such time only: 100 for the 100th, the 200th, ... Counts are those of one process.
        rank: only in this rank of the training group, or in these.
        once: at most once in a process.
        max: at most so many times in a process.
        timeout: go on by itself after so many seconds without a debugger; default: the cluster's limit.
        log: do not pause; write this text to the job's log.
    """
