"""The folder in which the nodes of a cluster find each other, wherever a launcher has started them (node.py).

`token` is the cluster's token, `cluster.json` where the head is, `nodes/HOST.json` how a node is, and `.raydebug` says
that all of them are raydebug's: a folder with other files is never written to. The folder is private
and usually on a shared file system. What is read is checked: a file that is broken is an error with a reason.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, TypedDict, cast

from raydebug.cluster import state
from raydebug.cluster.private_folders import check_private, make_private
from raydebug.errors import RaydebugError, UsageError
from raydebug.protocol import records
from raydebug.settings.debugger import MODES
from raydebug.settings.files import NotPlainText, atomic_write, open_private, read_json

HEAD_FILE, NODES, MARK = "cluster.json", "nodes", ".raydebug"
BYTES_MAX = 64 * 1024
LOCAL_DISK = "/tmp"  # noqa: S108 - mkdtemp; not TMPDIR, which may be on NFS, and all nodes have the temp dir of the head
UP, FAILED, ENDED = "up", "failed", "ended"  # phases besides what a start is at
_IP, _PATH, _WORD = r"\d{1,3}(\.\d{1,3}){3}", r"/[\w./+@-]+", r"[\w.+-]+"
_PORT = r"([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
_TOKEN = re.compile(r"[\w.-]{16,}", re.ASCII)
_HOST = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*")  # becomes the name of a file
FORMS = {  # of what the head says, as regular expressions
    "id": "[0-9a-f]{32}", "host": _HOST.pattern, "ip": _IP, "gcs": f"{_IP}:{_PORT}", "dial": f"{_IP}:{_PORT}",
    "client_port": _PORT, "dashboard_port": _PORT, "python": _PATH, "ray": _WORD, "flavour": _WORD,
    "debugger": "|".join(MODES), "temp_dir": r"/tmp/rd-\w+",  # noqa: S108 - it is made private, and removed in the end
}  # fmt: skip


class Head(TypedDict):
    """Where the head of a cluster is, and what the other nodes take from it.

    `client_port` (of the gateway) and `dashboard_port` are on its loopback, `gcs` and `dial` are ADDRESS:PORT. `life`
    is that of the launcher's job, which may be started again: the file of an earlier one is none.
    """

    id: str
    host: str
    ip: str
    gcs: str
    dial: str
    client_port: int
    dashboard_port: int
    temp_dir: str
    python: str
    ray: str
    flavour: str
    debugger: str
    gpus: int
    nodes: int
    life: str


class NodeState(TypedDict):
    """How a node is: `phase` is UP, FAILED, ENDED, or what its start is at."""

    host: str
    ip: str
    role: str
    phase: str
    reason: str | None
    gateway: str | None


def state_of(
    host: str, ip: str, phase: str, *, is_head: bool, reason: str | None = None, gateway: str | None = None
) -> NodeState:
    """Return how a node is."""
    role = "head" if is_head else "worker"
    return NodeState(host=host, ip=ip, role=role, phase=phase, reason=reason, gateway=gateway)


def make(folder: Path) -> None:
    """Make the folder of a cluster and its token, as far as they are missing.

    Raises:
        RaydebugError: another user could access or replace it, or it has files of the user's.
    """
    with state.writing(folder):
        if not folder.exists():
            make_private(folder)
    check_private(folder)
    mark(folder)
    if not os.path.lexists(folder / "token"):
        state.make_token(folder)


def mark(folder: Path) -> None:
    """Mark an empty folder as raydebug's: from now on files in it are replaced and removed.

    Raises:
        RaydebugError: it has files, and no mark.
    """
    with state.writing(folder):
        if os.path.lexists(folder / MARK):
            return
        if any(folder.iterdir()):
            raise UsageError(
                f"{folder} is not a folder of raydebug's", cause=f"it has other files, and no {MARK}",
                fix="name a folder that is empty, or does not exist yet", code="node.folder",
            )  # fmt: skip
        open_private(folder / MARK, "wb").close()


def check(folder: Path) -> None:
    """Check that the folder and the token in it are this user's alone.

    Raises:
        RaydebugError: they are not, or there is no token.
    """
    check_private(folder)
    try:
        check_private(folder / "token", is_file=True)
        problem = "" if (folder / "token").stat().st_size else "it is empty"
    except RaydebugError as error:
        problem = error.cause
    if problem:
        raise UsageError(
            f"{folder / 'token'} is no token of yours alone",
            cause=problem,
            fix=f"remove {folder}; the head of the cluster makes it with a new token",
            code="node.token",
        )


def take_copy(text: str) -> Path:
    """Make a folder of this host alone of what the head's folder has: `cat cluster.json token`; return it.

    Raises:
        RaydebugError: it is something else.
    """
    import tempfile  # with `random`; every verb reads the record of a cluster

    try:
        document, end = json.JSONDecoder().raw_decode(text)
        head = records.read(document, Head, "it")
        problem, token = what_is_wrong(head), text[end:].strip()
        if not problem and not _TOKEN.fullmatch(token):
            problem = "no token follows"
    except (ValueError, RecursionError) as error:
        problem = str(error)
    if problem:
        raise UsageError(
            "standard input does not say where the head is", cause=problem,
            fix=f"cat FOLDER/{HEAD_FILE} FOLDER/token | ssh HOST raydebug node --join -, with the head's folder",
            code="node.bad-file",
        )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="rd-", dir=LOCAL_DISK))
    mark(folder)
    atomic_write(folder / "token", token)
    publish(folder, head)
    return folder


def publish(folder: Path, head: Head) -> None:
    """Say where the head is; from now on the other nodes join."""
    check_private(folder)
    with state.writing(folder):
        atomic_write(folder / HEAD_FILE, json.dumps(head, indent=2))


def find_head(folder: Path) -> Head | None:
    """Return where the head is; None as long as it has not said so.

    Raises:
        RaydebugError: the file is broken.
    """
    path = folder / HEAD_FILE
    try:
        if path not in folder.iterdir():  # a client of NFS may remember that the file is not there
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _broken(folder, error.strerror or str(error)) from error
    try:
        head = records.read(read_json(path, bytes_max=BYTES_MAX, what="it"), Head, "it")
        problem = what_is_wrong(head)
    except (NotPlainText, records.BadRecord) as error:
        problem = str(error)
    if problem:
        if not os.path.lexists(path):  # the head has ended meanwhile
            return None
        raise _broken(path, problem)
    return head


def forget_head(folder: Path) -> None:
    """Say that there is no head (any more): no node joins, and those that have joined end."""
    check_private(folder)
    with state.writing(folder):
        (folder / HEAD_FILE).unlink(missing_ok=True)


def forget_nodes(folder: Path) -> None:
    """Remove what the nodes of an earlier life have said."""
    check_private(folder)
    with state.writing(folder):
        for path in (folder / NODES).glob("*.json"):
            path.unlink(missing_ok=True)


def say_node(folder: Path, node: NodeState) -> None:
    """Say how a node is."""
    check_private(folder)
    with state.writing(folder):
        (folder / NODES).mkdir(mode=0o700, exist_ok=True)
        atomic_write(folder / NODES / f"{node['host']}.json", json.dumps(node))


def list_nodes(folder: Path) -> list[NodeState]:
    """Return how each node is, the head first, as far as they have said so; of a broken file that it is broken."""
    found: list[NodeState] = []
    try:
        names = sorted(path.name for path in (folder / NODES).iterdir() if path.suffix == ".json")
    except OSError:
        return []
    for name in names:
        if not _HOST.fullmatch(name):
            continue
        host, problem = name.removesuffix(".json"), None
        try:
            node = records.read(read_json(folder / NODES / name, bytes_max=BYTES_MAX, what="it"), NodeState, "it")
            if not {"ip", "role", "phase"} <= node.keys():
                problem = "it lacks a field"
        except (NotPlainText, records.BadRecord) as error:
            problem = str(error)
        if problem:
            node = state_of(host, "?", "unknown", is_head=False, reason=f"{folder / NODES / name}: {problem}")
        found.append({**node, "host": host, "reason": node.get("reason"), "gateway": node.get("gateway")})
    return sorted(found, key=lambda node: node["role"] != "head")


def what_is_wrong(head: Head) -> str:
    """Return what is missing or impossible; empty for nothing. Pure."""
    for name in Head.__annotations__:
        if name not in head:
            return f"it lacks {name}"
        if name in FORMS and not re.fullmatch(FORMS[name], str(cast(dict[str, Any], head)[name]), re.ASCII):
            return f"its {name} has the wrong form"
    return ""


def _broken(path: Path, cause: Any) -> RaydebugError:
    return RaydebugError(
        f"{path} cannot be read", cause=str(cause), fix="end the cluster, remove this folder, and start it again",
        code="node.bad-file",
    )  # fmt: skip
