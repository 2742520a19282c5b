"""Asks a cluster's gateway for its pauses, and words them."""

from __future__ import annotations

import contextlib
import http.client
import json
from pathlib import Path
from typing import Any

from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError

TIMEOUT_S = 5.0
Pause = dict[str, Any]


def fetch_pauses(cluster: Cluster) -> list[Pause]:
    """Return the cluster's pauses, oldest first, as `raydebug paused --json` shows them.

    Raises:
        RaydebugError: the gateway does not answer, or refuses the token.
    """
    where = f"{cluster.gateway_host}:{cluster.gateway_port}"
    # http.client and not httpx: this is asked twice a second and by every shell completion; it starts in 10 ms.
    connection = http.client.HTTPConnection(cluster.gateway_host, cluster.gateway_port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/pauses", headers={"Authorization": f"Bearer {cluster.token}"})
        answer = connection.getresponse()
        document = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RaydebugError(
            f"the gateway of cluster '{cluster.name}' does not answer",
            cause=f"GET http://{where}/pauses: {error or type(error).__name__}",
            fix=f"see what is wrong with `raydebug ps --name {cluster.name}`",
            code="gateway.no-answer",
            exit_code=Exit.SESSION_LOST,
        ) from error
    finally:
        connection.close()
    if answer.status != 200:
        raise RaydebugError(
            f"the gateway refused to list the pauses of cluster '{cluster.name}'",
            cause=f"{where} said: {document.get('error', {}).get('message', answer.status)}",
            fix=f"the token is in {cluster.token_file}; `raydebug up` writes it anew",
            code="auth.wrong-token",
            exit_code=Exit.USAGE,
        )
    pauses: list[Pause] = document["pauses"]
    return pauses


def name_owner(pause: Pause) -> str:
    """Return who paused, in a few words: rank, actor or task, pid."""
    rank = "" if pause.get("rank") is None else f"rank {pause['rank']} "
    who = pause.get("actor") or pause.get("task") or ("driver" if pause.get("job_id") else "process")
    return f"{rank}{who} pid {pause.get('pid')}"


def name_place(pause: Pause) -> str:
    """Return where it stands: file:line function; an installed package's file without the way to it."""
    file = str(pause.get("file")).rpartition("/site-packages/")[2]
    with contextlib.suppress(ValueError):
        file = str(Path(file).relative_to(Path.cwd()))
    return f"{file}:{pause.get('line')} {pause.get('function') or ''}".rstrip()


def age(seconds: float) -> str:
    """Return a time span as people say it."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
