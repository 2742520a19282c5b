"""Time limits of others that would end a paused rank, or those that wait for it; `run` widens them. Data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raydebug.protocol import variables

WIDE_S = 24 * 3600


@dataclass(frozen=True)
class Watchdog:
    """One limit.

    Args:
        variable: the environment variable that sets it, in seconds.
        default_s: what it is without.
        ends: what it does when it strikes.
        source: where this is written.
    """

    variable: str
    default_s: int
    ends: str
    source: str


# Not here: Ray's health checks (they ask raylets, which no pause stops).
WATCHDOGS = (
    Watchdog(
        variables.GROUP_TIMEOUT,
        600,
        "a collective that waits for a paused rank: torch's process groups (600 s for NCCL alone, 1800 s for others; "
        "verl's are others, as it asks for gloo and NCCL together)",
        "torch 2.11 and 2.13 distributed/constants.py; verl 0.9.1 utils/distributed.py:89, called without a limit (its "
        "key nccl_timeout is read by nothing); raised by worker/watchdogs.py",
    ),
    Watchdog(
        variables.NCCL_HEARTBEAT,
        480,
        "a process whose NCCL collective hangs: torch's monitor kills it",
        "torch 2.11 csrc/distributed/c10d/ProcessGroupNCCL.hpp",
    ),
    Watchdog(
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        300,
        "vLLM's engine, when one of its workers does not answer",
        "vllm 0.24 and 0.28 envs.py; v1/executor/multiproc_executor.py",
    ),
    Watchdog(
        "VLLM_ENGINE_READY_TIMEOUT_S",
        600,
        "the start of vLLM, when its engine does not come up",
        "vllm 0.24 and 0.28 envs.py; v1/engine/core_client.py",
    ),
)


def widened(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that widen every limit which the user has not set."""
    return {w.variable: str(WIDE_S) for w in WATCHDOGS if w.variable not in environ}
