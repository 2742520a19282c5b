"""What debugging sets in a job's environment: Ray's variables of each debugger mode, wider time limits of others."""

from __future__ import annotations

from collections.abc import Mapping

from raydebug.errors import UsageError
from raydebug.protocol.variables import (
    FLIGHT_RECORDER,
    GROUP_TIMEOUT,
    NCCL_HEARTBEAT,
    OLD_FLIGHT_RECORDER,
    RAY_DEBUG,
    RAY_DEBUG_POST_MORTEM,
)

# What Ray does with the two: ray/util/rpdb.py:298, 322, 338 (2.60.0).
MODES: dict[str, dict[str, str]] = {
    "off": {RAY_DEBUG: "0", RAY_DEBUG_POST_MORTEM: "0"},
    "breakpoint": {RAY_DEBUG: "1", RAY_DEBUG_POST_MORTEM: "0"},
    "post-mortem": {RAY_DEBUG: "1", RAY_DEBUG_POST_MORTEM: "1"},
    "legacy": {RAY_DEBUG: "legacy", RAY_DEBUG_POST_MORTEM: "0"},
    "legacy-post-mortem": {RAY_DEBUG: "legacy", RAY_DEBUG_POST_MORTEM: "1"},
}
DEFAULT_MODE = "breakpoint"

_ALLOWED = {RAY_DEBUG: ("0", "1", "legacy"), RAY_DEBUG_POST_MORTEM: ("0", "1")}


def mode_variables(mode: str) -> dict[str, str]:
    """Return Ray's variables for a debugger word.

    Raises:
        RaydebugError: there is no such word.
    """
    if mode not in MODES:
        raise UsageError(
            f"there is no debugger '{mode}'",
            cause=f"--debugger takes one of: {', '.join(MODES)}",
            fix="use `--debugger post-mortem` to stop at crashes, `--debugger breakpoint` for breakpoints only",
            code="debugger.unknown",
        )
    return dict(MODES[mode])


def mode_of(environ: Mapping[str, str]) -> str:
    """Return the debugger word that Ray's variables in an environment amount to.

    Raises:
        RaydebugError: a RAY_DEBUG* variable that Ray would silently ignore, or would take for another one.
    """
    for name, value in sorted(environ.items()):
        if not name.startswith(RAY_DEBUG):
            continue
        if value not in _ALLOWED.get(name, ()):
            known = f"{name} takes {', '.join(_ALLOWED[name])}" if name in _ALLOWED else "Ray has no such variable"
            raise UsageError(
                f"{name}={value} means nothing to Ray",
                cause=f"{known}: with what your environment has, breakpoints or crashes silently do not stop",
                fix=f"unset {name}; to stop at crashes use `--debugger post-mortem`",
                code="debugger.unknown-variable",
            )
    wanted = (environ.get(RAY_DEBUG, "1"), environ.get(RAY_DEBUG_POST_MORTEM, "0"))
    for word, variables in MODES.items():
        if tuple(variables.values()) == wanted:
            return word
    return "off"  # RAY_DEBUG=0 with post-mortem on: Ray would open its legacy debugger; off means off


def choose_mode(flag: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the debugger word in force and where it came from: the flag, the environment, or the default.

    Raises:
        RaydebugError: an unknown word or variable, a flag that clashes with the environment, or the legacy debugger
            from the environment alone.
    """
    from_environment = mode_of(environ)
    is_set = RAY_DEBUG in environ or RAY_DEBUG_POST_MORTEM in environ
    if flag is None and from_environment.startswith("legacy"):
        raise UsageError(
            f"{RAY_DEBUG}=legacy is set in your environment",
            cause="it chooses Ray's legacy debugger: no editor, no --break, one client for each pause",
            fix=f"unset {RAY_DEBUG}; if you want that debugger, add `--debugger {from_environment}`",
            code="debugger.legacy",
        )
    if flag is None:
        return (from_environment, "environment") if is_set else (DEFAULT_MODE, "default")
    mode_variables(flag)
    if is_set and from_environment != flag:
        set_ones = " ".join(f"{n}={environ[n]}" for n in _ALLOWED if n in environ)
        raise UsageError(
            f"--debugger {flag} clashes with your environment",
            cause=f"{set_ones} means '{from_environment}'",
            fix=f"unset {' '.join(n for n in _ALLOWED if n in environ)}",
            code="debugger.clash",
        )
    return flag, "flag"


# Time limits of others that would end a paused rank, or processes that wait for it

WIDE_S = 24 * 3600


# Not here: Ray's health checks (they ask raylets, which no pause stops).
TIME_LIMITS = (
    # A collective that waits for a paused rank: torch's process groups (600 s for NCCL alone, 1800 s for others; verl's
    # are others, as it asks for gloo and NCCL together). torch 2.11 and 2.13 distributed/constants.py; verl 0.9.1
    # utils/distributed.py:89, called without a limit (its key nccl_timeout is read by nothing); raised by
    # worker/torch_hooks.py.
    GROUP_TIMEOUT,
    # A process whose NCCL collective hangs: torch's monitor kills it after 480 s.
    # torch 2.11 csrc/distributed/c10d/ProcessGroupNCCL.hpp
    NCCL_HEARTBEAT,
    # vLLM's engine, when one of its workers does not answer for 300 s.
    # vllm 0.24 and 0.28 envs.py; v1/executor/multiproc_executor.py
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
    # The start of vLLM, when its engine does not come up in 600 s. vllm 0.24 and 0.28 envs.py; v1/engine/core_client.py
    "VLLM_ENGINE_READY_TIMEOUT_S",
)
RECORDED_COLLECTIVES = 2000


def recorder_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that turns on torch's flight recorder, from which `stacks` reads; the user's setting wins.

    torch 2.11 and 2.13 record as many by default (csrc/distributed/c10d/FlightRecorder.hpp), older ones none.
    """
    given = FLIGHT_RECORDER in environ or OLD_FLIGHT_RECORDER in environ
    return {} if given else {FLIGHT_RECORDER: str(RECORDED_COLLECTIVES)}


def widened(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that widen every limit which the user has not set."""
    return {name: str(WIDE_S) for name in TIME_LIMITS if name not in environ}
