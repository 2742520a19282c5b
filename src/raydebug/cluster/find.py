"""Find a cluster: the record of `up` under its name, or one that raydebug did not start and has no record of.

Three kinds have no record: `by-hand` was started by `docker compose up` and is found by the labels of its containers;
`joined` is the one whose network this process is in (a Dev Container), named by the environment; `stock` is any Ray
cluster, named by the address of its dashboard, and has no gateway.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from raydebug.cluster.state import (
    DEFAULT_NAME,
    Cluster,
    Remote,
    check_name,
    clusters_dir,
    known_names,
    name_option,
    read_record,
)
from raydebug.errors import RaydebugError, UsageError
from raydebug.protocol import variables
from raydebug.settings.debugger import DEFAULT_MODE, mode_of

if TYPE_CHECKING:
    from raydebug.cluster.compose.engine import Container

CLUSTER_LABEL = "org.raydebug.cluster"  # docker-compose.yml
TOKEN_MOUNT = "/run/secrets/raydebug_token"  # noqa: S105 - a path in every container
# Which service publishes which port, and the address of that inside.
PORTS = {"dashboard": ("head", 8265, variables.DASHBOARD), "gateway": ("gateway", 5678, variables.GATEWAY_CLIENTS)}


def choose_name(given: str | None, fits: Callable[[str], bool] | None = None) -> str:
    """Return the name of a verb's cluster: the given one, that of RAYDEBUG_CLUSTER, `default`, or the only one.

    Args:
        given: by the user; None for nothing.
        fits: for a verb that starts a cluster where none is: whether it may take the one of this name. None: it may
            take any; where several are there it gets `default`, and `load_cluster` lists them.

    Raises:
        RaydebugError: several clusters fit.
    """
    if name := given or os.environ.get(variables.CLUSTER):
        return name
    names: list[str] = []
    with contextlib.suppress(RaydebugError):  # said by what needs a cluster
        names = known_names()
    if DEFAULT_NAME in names or cluster_around_us() is not None:
        return DEFAULT_NAME
    fitting = sorted(names if fits is None else filter(fits, names))
    if len(fitting) > 1 and fits is not None:
        raise UsageError(
            "several clusters run, and none is named",
            cause=f"these run: {', '.join(fitting)}",
            fix=f"name one: --name {fitting[0]}, or {variables.CLUSTER}={fitting[0]} in the environment; --name"
            f" {DEFAULT_NAME} starts another one",
            code="cluster.ambiguous",
        )
    return fitting[0] if len(fitting) == 1 else DEFAULT_NAME


def find_cluster(name: str) -> Cluster | None:
    """Return a recorded cluster, or, under the default name, the one around this process; None without either."""
    check_name(name)
    around = cluster_around_us() if name == DEFAULT_NAME else None
    return around or read_record(name)


def load_cluster(name: str = DEFAULT_NAME) -> Cluster:
    """Return a cluster by name, also one that `docker compose up` started.

    Raises:
        RaydebugError: there is none.
    """
    cluster = find_cluster(name) or find_by_labels(name)
    if cluster is None:
        others = ", ".join(sorted(known_names()))
        raise RaydebugError(
            f"there is no cluster '{name}'",
            cause=f"these run: {others}" if others else "`raydebug up` has started none, or it was taken down",
            fix=f"start it with `raydebug up{name_option(name)}`"
            + (", or name one that runs with --name" if others else ""),
            code="cluster.not-found",
        )
    return cluster


def cluster_around_us(environ: Mapping[str, str] = os.environ) -> Cluster | None:
    """Return the cluster whose network this process is in, where the environment names it (a Dev Container)."""
    dashboard, gateway = environ.get(variables.DASHBOARD, ""), environ.get(variables.GATEWAY_CLIENTS, "")
    token_file = environ.get(variables.TOKEN_PATH, "")
    if not (dashboard and gateway and token_file):
        return None
    remote = Remote(dashboard, gateway, token_file, dial=environ.get(variables.GATEWAY, ""))
    return _unmanaged("joined", DEFAULT_NAME, environ, remote)


def cluster_at(address: str, environ: Mapping[str, str] = os.environ) -> Cluster:
    """Return the cluster whose dashboard answers at an address: `http://HEAD:8265`, or `HEAD:8265`.

    Raises:
        RaydebugError: it is not the address of a dashboard.
    """
    why = None
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.username is not None:  # it would be printed, and sent instead of the token
            address = f"{parts.scheme}://...@{parts.netloc.rpartition('@')[2]}"
            why = "it has a user and a password; Ray's dashboard takes a token, which raydebug sends itself"
        elif parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            why = "it takes the dashboard's, as `ray start --head` prints it; not ray://"
        elif not re.fullmatch(r"[\w.:%-]+", parts.hostname):
            why = f"{parts.hostname!r} is not the name of a host"
        elif parts.path not in ("", "/"):
            why = f"{parts.path} follows the port: a dashboard behind a path is not supported"
        else:
            parts.hostname.encode("idna").decode("idna")  # each part has 1 to 63 characters
    except ValueError as error:
        why = str(error)
    if why is not None:
        raise UsageError(
            f"{address!r} is not the address of a Ray dashboard",
            cause=why,
            fix="write it as http://HEAD:8265",
            code="cluster.bad-address",
        )
    url = f"{parts.scheme}://{parts.netloc}"
    # Where Ray itself would look for the token (2.60.0, _private/authentication/authentication_token_setup.py);
    # RAY_AUTH_TOKEN comes before it.
    token = environ.get("RAY_AUTH_TOKEN_PATH") or str(Path.home() / ".ray" / "auth_token")
    return _unmanaged("stock", url, {}, Remote(url, "", token if Path(token).is_file() else ""))


def find_by_labels(name: str) -> Cluster | None:
    """Return the cluster of a compose project; the default name means the only one on this machine.

    Raises:
        RaydebugError: the default name could mean several, or this user cannot read the cluster's token (exit 2).
    """
    from raydebug.cluster.compose import engine  # the docker SDK
    from raydebug.cluster.compose.project import project_of

    try:
        services = engine.connect().labelled(CLUSTER_LABEL)
    except RaydebugError:
        return None  # without an engine there is none
    return pick_by_labels(name, services, recorded={project_of(name) for name in known_names()})


def pick_by_labels(name: str, services: list[Container], recorded: set[str]) -> Cluster | None:
    """Return the cluster that a name means among the running ones.

    Args:
        name: a compose project, or the default name.
        services: the running containers of all clusters on this machine.
        recorded: projects of clusters that this user's `up` started; the default name never means them.

    Raises:
        RaydebugError: as `find_by_labels` does.
    """
    projects = sorted({service.project for service in services if service.service == "head"} - recorded)
    if name == DEFAULT_NAME and len(projects) > 1:
        raise UsageError(
            "several clusters of docker compose run here",
            cause=f"their compose projects are: {', '.join(projects)}",
            fix=f"name one: --name {projects[0]}",
            code="cluster.ambiguous",
        )
    wanted = projects[0] if name == DEFAULT_NAME and projects else name
    return _by_hand(wanted, {s.service: s for s in services if s.project == wanted}) if wanted in projects else None


def _by_hand(project: str, services: dict[str, Container]) -> Cluster:
    head = services["head"]
    token = Path(head.mounts.get(TOKEN_MOUNT, ""))
    if not os.access(token, os.R_OK):
        raise UsageError(
            f"the token of cluster '{project}' cannot be read",
            cause=f"its containers have it from {token}, which uid {os.getuid()} cannot read on this machine",
            fix="run this as the owner of that file, on the machine of the Docker engine",
            code="auth.no-token",
        )
    # In the host's own network (deploy/compose-rdma.yml) nothing is published: the addresses inside are the host's.
    addresses = {}
    for part, (service, port, variable) in PORTS.items():
        published = services[service].published.get(port) if service in services else None
        addresses[part] = f"127.0.0.1:{published}" if published else head.environ.get(variable, "")
    environ = {**head.environ, variables.CLUSTER_ID: head.labels[CLUSTER_LABEL]}
    dashboard = f"http://{addresses['dashboard'].removeprefix('http://')}"
    remote = Remote(dashboard, addresses["gateway"], str(token))
    return _unmanaged("by-hand", project, environ, remote, head.mounts.get("/workspace", ""))


def _unmanaged(kind: str, name: str, environ: Mapping[str, str], remote: Remote, project: str = "") -> Cluster:
    """Return a cluster without a record; `environ` is its environment, as far as that is known."""
    return Cluster(
        name=name,
        id=environ.get(variables.CLUSTER_ID, ""),
        kind=kind,
        folder=clusters_dir(),
        temp_dir=clusters_dir(),
        python=sys.executable,
        debugger=mode_of(environ) if environ else DEFAULT_MODE,
        flavour=environ.get("RAYDEBUG_FLAVOUR", "core") if environ else "",
        project=project,
        remote=remote,
    )
