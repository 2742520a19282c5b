"""Waits until the containers of a cluster are healthy, telling the phase each is in; says why one is not."""

from __future__ import annotations

import time
from collections.abc import Callable

from raydebug.cluster import engine, interrupts
from raydebug.cluster.compose import UP_TIMEOUT_S, project_of
from raydebug.cluster.engine import Container, Engine
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError

REFUSED = 2  # exit code of an entrypoint that does not like what it was given
MOST_RESTARTS = 3
ENGINE_AWAY_S = 20.0  # an engine that restarts is back by then


def wait_until_ready(found: Engine, cluster: Cluster, on_phase: Callable[[str], None]) -> None:
    """Return when every container is healthy.

    Raises:
        RaydebugError: one ended and will again, or it took too long; in its own last words.
    """
    deadline = time.monotonic() + UP_TIMEOUT_S
    said = ""
    restarts = {c.id: c.restarts for c in look_patiently(found, cluster, on_phase)}
    while time.monotonic() < deadline:
        interrupts.raise_if_pressed()
        now = look_patiently(found, cluster, on_phase)
        phase = ", ".join(f"{c.service} {c.health or c.state}" for c in now)
        if phase != said:
            said = phase
            on_phase(phase)
        for one in now:
            _refuse_ended(one, restarts.get(one.id, 0), found)
        if now and all(c.is_ready for c in now):
            return
        time.sleep(0.2)
    raise RaydebugError(
        f"cluster '{cluster.name}' was not healthy after {UP_TIMEOUT_S:.0f} s",
        cause=f"it was still at: {said}",
        fix="try again on a quieter machine, or look with `docker compose ps`",
        code="cluster.timeout",
        exit_code=Exit.TIMEOUT,
    )


def _refuse_ended(one: Container, restarts_before: int, found: Engine) -> None:
    # The restart policy starts what has ended again: what an entrypoint refuses, it will refuse then too.
    refused = one.state == "restarting" and one.exit_code == REFUSED
    if one.state in ("exited", "dead") or refused or one.restarts - restarts_before >= MOST_RESTARTS:
        raise RaydebugError(
            f"{one.name} did not start",
            cause=f"it ended with exit code {one.exit_code}: {found.last_words(one)}",
            fix=f"read all that it said: docker logs {one.name} (before: raydebug --debug up)",
            code="cluster.not-up",
        )


def look_patiently(found: Engine, cluster: Cluster, on_phase: Callable[[str], None]) -> list[Container]:
    """Return the cluster's containers; an engine that restarts is waited for."""
    deadline = time.monotonic() + ENGINE_AWAY_S
    while True:
        interrupts.raise_if_pressed()
        try:
            return found.containers(project_of(cluster.name))
        except RaydebugError as failure:
            if failure.code != engine.UNUSABLE or time.monotonic() > deadline:
                raise
            on_phase("the Docker engine does not answer; waiting for it")
        time.sleep(1.0)
