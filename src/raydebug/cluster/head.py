"""Whether a cluster's head is there, and why not: in the words of its container, its supervisor or its dashboard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from raydebug.cluster import state
from raydebug.cluster.dashboard import why_no_gcs
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError

LOST = ("session.process-gone", "session.gateway-gone")  # console/session.py


def why_gone(cluster: Cluster) -> str | None:
    """Return why the head's GCS does not answer; None where it does.

    Raises:
        TimeoutError: it may just be slow, or out of reach.
    """
    try:
        said = why_no_gcs(cluster)
    except TimeoutError:  # on a busy machine a dashboard without its GCS says so only after some tries
        if _has_gcs_server(cluster):
            raise
        said = "its gcs_server has ended"
    if said is None:
        return None
    with contextlib.suppress(RaydebugError):  # an engine that is gone too
        return _keeper_says(cluster) or said
    return said


def _has_gcs_server(cluster: Cluster) -> bool:
    """Say whether the head's own processes include its GCS; True where that cannot be seen."""
    programs: list[str] = []
    with contextlib.suppress(RaydebugError, ValueError):
        if cluster.kind == "compose":
            from raydebug.cluster import compose

            programs = compose.programs_of_head(cluster)
        elif cluster.kind == "local":
            from raydebug.cluster import local

            programs = local.programs(cluster)
    return not programs or any("/gcs_server" in program for program in programs)


def _keeper_says(cluster: Cluster) -> str | None:
    """Ask whoever keeps the head's processes what became of them."""
    if cluster.kind == "compose":
        from raydebug.cluster import compose

        heads = [c for c in compose.containers(cluster) if c.service == "head"]
        return compose.explain(heads[0]) if heads else "its containers are gone"
    if cluster.kind == "local":
        from raydebug.cluster import local

        if not local.is_alive(cluster):
            return "its supervisor is gone (killed, or the machine was restarted)"
        return state.read_status(cluster).get("reason")
    return None


@contextlib.contextmanager
def named_if_lost(cluster: Cluster) -> Iterator[None]:
    """Say of a debug session that is lost whether its end was the head's: the gateway sees only that a process ended.

    Raises:
        RaydebugError: what was raised within, or `session.head-gone`.
    """
    try:
        yield
    except RaydebugError as failure:
        why = None
        if failure.code in LOST:
            with contextlib.suppress(TimeoutError):
                why = why_gone(cluster)
        if why is None:
            raise
        suffix = state.name_option(cluster.name)
        raise RaydebugError(
            f"session lost: head of cluster '{cluster.name}' is gone",
            cause=f"{why}; {failure.cause}",
            fix=f"see `raydebug ps{suffix}`; `raydebug up{suffix}` brings it back, its jobs are lost",
            code="session.head-gone",
            exit_code=Exit.SESSION_LOST,
        ) from failure
