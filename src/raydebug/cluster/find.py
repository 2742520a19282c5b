"""Find a cluster by name: the record of `up`, the one around this process, or one started by docker compose."""

from __future__ import annotations

from raydebug.cluster.state import DEFAULT_NAME, Cluster, check_name, known_names, name_option, read_record
from raydebug.cluster.unmanaged import cluster_around_us, find_by_labels
from raydebug.errors import RaydebugError


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
