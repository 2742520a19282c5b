"""Asks a cluster's gateway by HTTP, through the one port that every client uses."""

from __future__ import annotations

import http.client
import json
from typing import Any

from raydebug.cluster.state import Cluster, name_option
from raydebug.errors import Exit, RaydebugError

TIMEOUT_S = 5.0


def ask(cluster: Cluster, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send one request with the cluster's token and return the JSON document of its answer.

    Raises:
        RaydebugError: the gateway does not answer, or refuses.
    """
    where = f"{cluster.gateway_host}:{cluster.gateway_port}"
    # http.client and not httpx: this is asked twice a second and by every shell completion; it starts in 10 ms.
    connection = http.client.HTTPConnection(cluster.gateway_host, cluster.gateway_port, timeout=TIMEOUT_S)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, body=sent, headers={"Authorization": f"Bearer {cluster.token}"})
        answer = connection.getresponse()
        document: dict[str, Any] = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RaydebugError(
            f"the gateway of cluster '{cluster.name}' does not answer",
            cause=f"{method} http://{where}{path}: {error or type(error).__name__}",
            fix=f"see what is wrong with `raydebug ps{name_option(cluster.name)}`",
            code="gateway.no-answer",
            exit_code=Exit.SESSION_LOST,
        ) from error
    finally:
        connection.close()
    if answer.status in (401, 403):
        raise RaydebugError(
            f"the gateway refused the token of cluster '{cluster.name}'",
            cause=f"{where} said: {document.get('error', {}).get('message', answer.status)}",
            fix=f"the token is in {cluster.token_file}; `raydebug up` writes it anew",
            code="auth.wrong-token",
            exit_code=Exit.USAGE,
        )
    if answer.status != 200:
        raise RaydebugError(
            f"the gateway of cluster '{cluster.name}' refused a request",
            cause=f"{method} {path}: {document.get('error', {}).get('message', answer.status)}",
            fix=f"is it of another version? `raydebug down{name_option(cluster.name)}` and `up` start it anew",
            code="gateway.refused",
        )
    return document
