"""Asks a cluster's gateway by HTTP, through the one port that every client uses."""

from __future__ import annotations

import json
import socket
from typing import Any

import h11

from raydebug.cluster.state import Cluster, name_option
from raydebug.errors import Exit, RaydebugError

TIMEOUT_S = 5.0
RECEIVE_BYTES = 64 * 1024


def ask(cluster: Cluster, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send one request with the cluster's token and return the JSON document of its answer.

    Raises:
        RaydebugError: the gateway does not answer, or refuses.
    """
    where = f"{cluster.gateway_host}:{cluster.gateway_port}"
    try:
        status, text = _talk(cluster, method, path, None if body is None else json.dumps(body).encode("ascii"))
        document: dict[str, Any] = json.loads(text)
    except (OSError, h11.ProtocolError, ValueError) as error:
        raise RaydebugError(
            f"the gateway of cluster '{cluster.name}' does not answer",
            cause=f"{method} http://{where}{path}: {error or type(error).__name__}",
            fix=f"see what is wrong with `raydebug ps{name_option(cluster.name)}`",
            code="gateway.no-answer",
            exit_code=Exit.SESSION_LOST,
        ) from error
    if status in (401, 403):
        raise RaydebugError(
            f"the gateway refused the token of cluster '{cluster.name}'",
            cause=f"{where} said: {document.get('error', {}).get('message', status)}",
            fix=f"the token is in {cluster.token_file}; `raydebug up` writes it anew",
            code="auth.wrong-token",
            exit_code=Exit.USAGE,
        )
    if status != 200:
        raise RaydebugError(
            f"the gateway of cluster '{cluster.name}' refused a request",
            cause=f"{method} {path}: {document.get('error', {}).get('message', status)}",
            fix=f"is it of another version? `raydebug down{name_option(cluster.name)}` and `up` start it anew",
            code="gateway.refused",
        )
    return document


def _talk(cluster: Cluster, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
    """Send one request and return the answer's status and body.

    Not by httpx or http.client: this is asked twice a second and by every shell completion, and http.client alone loads
    email and ssl, 20 ms where h11 takes 8.
    """
    http = h11.Connection(h11.CLIENT)
    headers = [("Host", f"{cluster.gateway_host}:{cluster.gateway_port}"), ("Authorization", f"Bearer {cluster.token}")]
    headers.append(("Content-Length", str(len(body or b""))))
    with socket.create_connection((cluster.gateway_host, cluster.gateway_port), timeout=TIMEOUT_S) as connection:
        request = h11.Request(method=method, target=path, headers=headers)
        parts = [http.send(part) or b"" for part in (request, h11.Data(data=body or b""), h11.EndOfMessage())]
        connection.sendall(b"".join(parts))
        status, received = 0, b""
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                data = connection.recv(RECEIVE_BYTES)
                if not data and not status:
                    raise ConnectionResetError("it closed the connection and said nothing")
                http.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                received += event.data
    return status, received
