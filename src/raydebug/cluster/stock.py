"""A Ray cluster that raydebug did not start, by the address of its dashboard."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from raydebug.cluster.state import STOCK, Cluster, clusters_dir
from raydebug.errors import Exit, RaydebugError
from raydebug.settings.debugger import DEFAULT_MODE


def cluster_at(address: str, environ: Mapping[str, str] = os.environ) -> Cluster:
    """Return the cluster whose dashboard answers at an address.

    Args:
        address: `http://HEAD:8265`, or `HEAD:8265`.
        environ: where Ray's own variables name the token.

    Raises:
        RaydebugError: that is no address of a dashboard.
    """
    dashboard = address if "://" in address else f"http://{address}"
    parts = urlsplit(dashboard)
    try:
        named = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        named, port = None, None
    if not named or port is None:
        raise RaydebugError(
            f"{address!r} is no address of a Ray dashboard",
            cause="--address takes the dashboard's, as `ray start --head` prints it; not ray://, and not `auto`",
            fix="write --address http://HEAD:8265",
            code="cluster.bad-address",
            exit_code=Exit.USAGE,
        )
    return Cluster(
        name=f"{parts.scheme}://{parts.netloc}",
        id="",
        kind=STOCK,
        folder=clusters_dir(),
        temp_dir=clusters_dir(),
        python=sys.executable,
        ports={},
        cpus=0,
        gpus=0,
        debugger=DEFAULT_MODE,
        flavour="",
        created=0.0,
        joined={"dashboard": f"{parts.scheme}://{parts.netloc}", "door": "", "token_file": token_path(environ)},
    )


def token_path(environ: Mapping[str, str]) -> str:
    """Return the file in which Ray itself would look for the token; empty where there is none.

    Source: ray 2.60.0 _private/authentication/authentication_token_setup.py; RAY_AUTH_TOKEN comes before it.
    """
    path = environ.get("RAY_AUTH_TOKEN_PATH") or str(Path.home() / ".ray" / "auth_token")
    return path if Path(path).is_file() else ""
