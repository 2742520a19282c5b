"""What is known of this machine's folders on the nodes of a joined cluster: which they share, and the copies of others.

A file of a copy has another name on the nodes. Users see the names that files have here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from raydebug.cluster.locks import flock, open_lock
from raydebug.cluster.state import Cluster, writing
from raydebug.settings.files import atomic_write

PACKAGE_PREFIX = "_ray_pkg_"  # of the name of a copy (ray 2.41.0 to 2.60.0 _private/runtime_env/packaging.py)
FILE = "folders.json"
KEPT_COPIES = 30


class KnownFolders(TypedDict):
    """The document.

    Args:
        created: the time of the join that `shared` is of; joining again asks the nodes again.
        shared: whether the nodes share a folder of this machine.
        copies: the folder here of each copy, by its path on the nodes; the newest first.
    """

    created: float
    shared: dict[str, bool]
    copies: dict[str, str]


def read_known(cluster: Cluster) -> KnownFolders:
    """Return what is known; nothing where the file cannot be read."""
    found = KnownFolders(created=cluster.created, shared={}, copies={})
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads((cluster.folder / FILE).read_text(encoding="utf-8"))
        found["copies"] = document["copies"]
        if document["created"] == cluster.created:
            found["shared"] = document["shared"]
    return found


def note_shared(cluster: Cluster, here: Path, *, shared: bool) -> None:
    """Remember for a folder, until the cluster is joined again, whether the nodes share it."""
    with _changing(cluster) as known:
        known["shared"][str(here)] = shared


def note_copy(cluster: Cluster, here: Path, copy: str, in_use: Sequence[str] = ()) -> None:
    """Remember the newest copy of a folder, and of the others the last ones and those that these command lines name."""
    with _changing(cluster) as known:
        others = [(path, of) for path, of in known["copies"].items() if path != copy]
        used = [(path, of) for path, of in others[KEPT_COPIES - 1 :] if any(path in line for line in in_use)]
        known["copies"] = dict([(copy, str(here)), *others[: KEPT_COPIES - 1], *used])


def copies_on(cluster: Cluster) -> dict[str, str]:
    """Return the folder here of each copy, by its path on the nodes; the newest first."""
    return read_known(cluster)["copies"] if cluster.is_of_nodes else {}


def with_local_names(cluster: Cluster, text: str, *, is_json: bool = False) -> str:
    """Return a text that the cluster has sent, with the names that files of copies have here."""
    if PACKAGE_PREFIX in text:
        for copy, here in copies_on(cluster).items():
            text = text.replace(copy, json.dumps(here)[1:-1] if is_json else here)
    return text


@contextlib.contextmanager
def _changing(cluster: Cluster) -> Iterator[KnownFolders]:
    """Yield what is known, and write it; another verb that notes something waits meanwhile."""
    with writing(cluster.folder), open_lock(f"{cluster.name}.folders") as lock:
        flock(lock, fcntl.LOCK_EX)
        known = read_known(cluster)
        yield known
        atomic_write(cluster.folder / FILE, json.dumps(known))
