"""The record of each cluster, by name, in the user's state folder: what another command needs to reach it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from raydebug.cluster.private_folders import make_private, remove_private
from raydebug.errors import RaydebugError, UsageError
from raydebug.settings.files import atomic_write, state_dir

DEFAULT_NAME = "default"
TOKEN_BYTES = 32
UNWRITABLE = "make the folder yours, or name another one: XDG_STATE_HOME=DIR"
FULL = "free some room there, or name another folder: XDG_STATE_HOME=DIR"
KEPT_LOG_BYTES, KEPT_LOGS = 256 * 1024, 100  # of a cluster that has failed: of each log, and how many of Ray's
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


@dataclasses.dataclass(frozen=True)
class Remote:
    """How a cluster is reached that `up` has not started on this machine, and what its nodes have; empty for others.

    Args:
        dashboard: URL of Ray's dashboard.
        gateway: HOST:PORT of its gateway, for clients on this machine; empty without one.
        token_file: on this machine; empty without one.
        asks_token: whether Ray asks for the token.
        dashboard_uid: user of the process of this machine that had the dashboard's port then; None: not known.
        head: address of the head.
        gcs: Ray's own address.
        logs: Ray's folder of logs on the nodes.
        folder: of the nodes, with the token's file; empty where raydebug starts no jobs of its own on them.
        prepared: Ray's ids of the nodes that have this file; empty where all have it from their start.
        dial: HOST:PORT where processes reach the gateway; empty where they have it from their start.
        client_port: of the gateway on the head's loopback.
        job: Ray's id of the gateway's job; empty where it is none.
        through: a command that runs a program on the head, such as `ssh HEAD`; empty where this is the head.
        head_dashboard: URL of the dashboard on the head's loopback, where `dashboard` is that of a tunnel.
        called_in: folder that `up` was called in: `through` may name files there.
        node_folder: folder of its `raydebug node` programs, as this machine has it; empty for another cluster.
        slurm_job: id of the job of Slurm that it runs in; empty outside of one.
        job_ends: when Slurm ends that job, in seconds since 1970; 0 where that is not known.
    """

    dashboard: str = ""
    gateway: str = ""
    token_file: str = ""
    asks_token: bool = True
    dashboard_uid: int | None = None
    head: str = ""
    gcs: str = ""
    logs: str = ""
    folder: str = ""
    prepared: list[str] = dataclasses.field(default_factory=list)
    dial: str = ""
    client_port: int = 0
    job: str = ""
    through: str = ""
    head_dashboard: str = ""
    called_in: str = ""
    node_folder: str = ""
    slurm_job: str = ""
    job_ends: float = 0.0

    @property
    def far(self) -> dict[str, int]:
        """The ports on the head's loopback that a tunnel leads to, by purpose."""
        dashboard = (urlsplit(self.head_dashboard).port or 80) if self.head_dashboard else 0
        found = {"gateway": self.client_port, "dashboard": dashboard}
        return {purpose: port for purpose, port in found.items() if port}

    @property
    def join_url(self) -> str:
        """What `up --join` takes."""
        return self.node_folder or self.head_dashboard or self.dashboard


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster, and how to reach it.

    Args:
        id: unique; every process of the cluster carries it in its environment.
        kind: `local`, `compose` or `joined`; without a record (find.py) `joined`, `by-hand` or `stock`.
        folder: its folder in the state directory: token, logs, status.
        temp_dir: private folder of a local cluster for Ray's temp dir and sockets, removed when the cluster ends.
        python: the interpreter whose environment Ray runs in.
        ports: by purpose; see up.PURPOSES.
        supervisor_pid, supervisor_birth: the supervisor of a local one (process.birth_of); the tunnel to the head
            (tunnel.py) of a joined one.
        owner: pid of the `run` that started a local one, which ends with the last `run` that uses it; 0: it stays.
        project: folder of this machine that a compose cluster has as /workspace.
        user: `UID:GID` that its containers run as.
        files: its compose files.
        settings: variables of the compose files that `up` chose for it.
        remote: how it is reached, for one that is not started on this machine by `up` (`is_remote`).
        ray: the version of Ray in the cluster's Python, or in the lock of containers; empty where it is not known.
    """

    name: str
    id: str
    kind: str
    folder: Path
    temp_dir: Path
    python: str
    ports: dict[str, int] = dataclasses.field(default_factory=dict)
    cpus: int = 0
    gpus: int = 0
    debugger: str = ""
    flavour: str = ""
    created: float = 0.0
    supervisor_pid: int = 0
    supervisor_birth: str = ""
    owner: int = 0
    project: str = ""
    user: str = ""
    files: list[str] = dataclasses.field(default_factory=list)
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    workers: int = 0
    prefork: bool = False
    remote: Remote = Remote()
    ray: str = ""

    @property
    def is_local(self) -> bool:
        """Whether its processes are processes of this machine, without containers."""
        return self.kind == "local"

    @property
    def is_remote(self) -> bool:
        """Whether `up` has not started it on this machine."""
        return bool(self.remote.dashboard)

    def with_remote(self, **known: Any) -> Cluster:
        """Return it with other fields of `remote`."""
        return dataclasses.replace(self, remote=dataclasses.replace(self.remote, **known))

    @property
    def least_poll_s(self) -> float:
        """How long to wait between two looks at least; each may be a command of its own: a login, a step of Slurm.

        A job of Slurm has 40,000 steps at most (slurm.conf(5), MaxStepCount).
        """
        return 3.0 if self.remote.through else 0.0

    @property
    def is_joined(self) -> bool:
        """Whether `up --join` has joined it: its gateway is a job there, or belongs to its `raydebug node`."""
        return bool(self.remote.job or self.remote.node_folder)

    @property
    def is_of_nodes(self) -> bool:
        """Whether raydebug asks its nodes by jobs there (NodeRunner): they have the token."""
        return bool(self.remote.folder or self.remote.node_folder)

    @property
    def has_gateway(self) -> bool:
        """Whether it has a gateway; one that raydebug has no part in (`stock`) has none."""
        return not self.is_remote or bool(self.remote.gateway)

    @property
    def host(self) -> str:
        """Where this machine reaches it: nothing of it listens, or is published, beyond loopback."""
        return "127.0.0.1"

    @property
    def address(self) -> str:
        """Ray's own address (GCS), as the cluster's own processes use it."""
        if self.is_local:
            return f"{self.host}:{self.ports['gcs']}"
        return self.remote.gcs or "head:6379"

    @property
    def dashboard(self) -> str:
        """URL of the dashboard and the Jobs API."""
        return self.remote.dashboard or f"http://{self.host}:{self.ports['dashboard']}"

    @property
    def gateway_host(self) -> str:
        """Where clients of the gateway connect."""
        return self.remote.gateway.rpartition(":")[0] if self.is_remote else self.host

    @property
    def gateway_port(self) -> int:
        """The gateway's port for clients."""
        return int(self.remote.gateway.rpartition(":")[2]) if self.is_remote else self.ports["gateway"]

    @property
    def ray_dir(self) -> Path:
        """Ray's own temp dir. Ray opens it to every user, so it is in a private folder."""
        return self.temp_dir / "r"

    @property
    def ray_logs(self) -> Path:
        """Folder of Ray's log files on a local cluster's node."""
        return self.ray_dir / "session_latest" / "logs"

    @property
    def pool_socket(self) -> Path:
        """Unix socket of the pre-forked processes; outside of `ray_dir`, in the private folder."""
        return self.temp_dir / "pool.sock"

    @property
    def pool_status(self) -> Path:
        """File with the state of the pre-forked processes."""
        return self.folder / "pool.json"

    @property
    def numbers_file(self) -> Path:
        """File with the numbers that pauses and breakpoints of a local cluster have."""
        return self.folder / "numbers"

    @property
    def token_file(self) -> Path:
        """File with the cluster's token, for its owner only."""
        return Path(self.remote.token_file) if self.is_remote else self.folder / "token"

    @property
    def repair(self) -> str:
        """What repairs a cluster on other machines, or the way to it, in words; empty for another one."""
        if not self.is_joined:
            return ""
        does = "opens the way there again" if self.remote.node_folder else "starts it again"
        return f"`raydebug up --join {self.remote.join_url}{name_option(self.name)}` {does}"

    @property
    def dashboard_token(self) -> str:
        """What Ray's dashboard gets; where Ray asks for no token, the gateway's is not sent there."""
        return self.token if self.remote.asks_token else ""

    @property
    def token(self) -> str:
        """The cluster's token; empty for one without a gateway that asks for none.

        Raises:
            RaydebugError: its file cannot be read.
        """
        if not self.has_gateway and (given := os.environ.get("RAY_AUTH_TOKEN")):
            return given
        if not self.has_gateway and not self.remote.token_file:
            return ""
        try:
            return self.token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            anew = (
                f"`raydebug down{name_option(self.name)}`, then `raydebug up{name_option(self.name)}` makes a new one"
            )
            raise UsageError(
                f"the token of cluster '{self.name}' cannot be read",
                cause=f"{self.token_file}: {getattr(error, 'strerror', None) or error}",
                fix=(self.is_joined and self.repair)
                or ("correct that file, or its name in your environment" if self.is_remote else anew),
                code="auth.no-token",
            ) from error


def clusters_dir(*, make: bool = False) -> Path:
    """Return the folder that holds a folder per cluster; one that is there is made private.

    Only what writes has it made where it is missing: a verb that only reads works without.
    """
    folder = state_dir() / "clusters"
    if make or os.path.isdir(folder):  # noqa: PTH112 - False, not an error, in a folder that is closed to us
        with writing(folder):
            make_private(folder)
    return folder


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into the error that the state folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            "raydebug cannot write its state",
            cause=f"{path}: {error.strerror or error}",
            fix=FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else UNWRITABLE,
            code="state.unwritable",
        ) from error


def check_name(name: str) -> str:
    """Return the name of a cluster, checked: it becomes the name of a folder.

    Raises:
        RaydebugError: it cannot be one.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a cluster's name",
            cause="--name takes up to 32 small letters, digits, '-' and '_'",
            fix="use a name such as `--name mine`",
            code="cluster.bad-name",
        )
    return name


def make_folder(name: str) -> Path:
    """Return a cluster's folder, made private."""
    folder = clusters_dir(make=True) / check_name(name)
    with writing(folder):
        make_private(folder)
    return folder


def save_cluster(cluster: Cluster) -> None:
    """Write a cluster's record."""
    document = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(cluster).items()}
    _write_json(cluster.folder / "cluster.json", document)


def read_record(name: str) -> Cluster | None:
    """Return the cluster that `up` has recorded under a name; None without a record.

    Raises:
        RaydebugError: the name cannot be one, or the record cannot be read.
    """
    path = clusters_dir() / check_name(name) / "cluster.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        document |= {"folder": Path(document["folder"]), "temp_dir": Path(document["temp_dir"])}
        document["remote"] = Remote(**document["remote"])
        document["ports"] = {purpose: int(port) for purpose, port in document["ports"].items()}
        return Cluster(**document)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RaydebugError(
            f"the record of cluster '{name}' cannot be read",
            cause=f"{path}: {error}",
            fix=UNWRITABLE if isinstance(error, PermissionError) else f"remove the folder {path.parent}",
            code="cluster.bad-record",
        ) from error


def known_names() -> list[str]:
    """Return the names of all recorded clusters."""
    found = (path.parent.name for path in clusters_dir().glob("*/cluster.json"))
    return [name for name in found if _NAME.fullmatch(name)]


def forget(cluster: Cluster) -> None:
    """Remove a cluster's record and files, except its ports: the next cluster of its name takes them again."""
    for path in cluster.folder.glob("*"):
        if path.is_dir() and not path.is_symlink():
            remove_private(path)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        atomic_write(cluster.folder / "ports.json", json.dumps(cluster.ports))


def kept_logs(name: str) -> Path:
    """Return the folder with the logs of the last cluster of a name that has failed; it may not exist."""
    return state_dir() / "failed" / check_name(name)


def keep_logs(cluster: Cluster) -> Path:
    """Copy the end of each log of a local cluster that has failed to a folder that outlives it; return the folder.

    Ray's own logs are in its folder `ray`. What cannot be read or written is left out.
    """
    kept = kept_logs(cluster.name)
    logs = [(path, kept) for path in sorted(cluster.folder.glob("*.log*"))]
    logs += [(path, kept / "ray") for path in sorted(cluster.ray_logs.glob("*"))[:KEPT_LOGS]]
    for path, folder in logs:
        with contextlib.suppress(OSError):
            if path.is_file():
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - KEPT_LOG_BYTES))
                    keep_log(folder / path.name, file.read())
    return kept


def keep_log(path: Path, end: bytes) -> None:
    """Write the end of a log to a folder of `kept_logs`, if that is possible."""
    with contextlib.suppress(OSError, RaydebugError):
        make_private(path.parent)
        atomic_write(path, end[-KEPT_LOG_BYTES:])


def without_token(cluster: Cluster, alive: Mapping[str | None, str]) -> str:
    """Return on which nodes no process can pause, as they came after `up --join`, in words; empty for none.

    Args:
        cluster: any.
        alive: the addresses of its nodes, by Ray's id.
    """
    known = cluster.remote.prepared
    ips = sorted(ip for node_id, ip in alive.items() if node_id not in known)
    if not known or not ips:
        return ""
    there = ", ".join(ips[:3]) + (f" and {len(ips) - 3} more" if len(ips) > 3 else "")
    again = f"`raydebug up --join {cluster.remote.join_url}{name_option(cluster.name)}`"
    return f"no breakpoints on {there}: `up --join` has not prepared it; {again} prepares all nodes"


def name_option(name: str) -> str:
    """Return the ` --name NAME` suffix for suggested commands; empty for the default name."""
    return "" if name == DEFAULT_NAME else f" --name {name}"


def make_token(folder: Path) -> Path:
    """Write a fresh 256-bit token that only its owner can read, and return the file."""
    path = folder / "token"
    with writing(path):
        path.unlink(missing_ok=True)
        # O_EXCL: never write through an older file, or a link that another user has put there.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            import secrets  # 6 ms that no other command has to pay

            file.write(secrets.token_hex(TOKEN_BYTES))
        path.chmod(0o600)
    return path


def write_status(cluster: Cluster, status: dict[str, Any]) -> None:
    """Write what the supervisor sees, for `read_status`."""
    _write_json(cluster.folder / "status.json", status)


def read_status(cluster: Cluster) -> dict[str, Any]:
    """Return the status that the supervisor last wrote.

    `gateway` is why the gateway stays down, `ray` is {"state", "since", "reason"} of a Ray that is slow or hung,
    `since` in seconds since 1970; both are None while all is well.
    """
    unknown: dict[str, Any] = {"phase": "starting", "reason": None, "gateway": None, "ray": None}
    try:
        return {**unknown, **json.loads((cluster.folder / "status.json").read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError):
        return unknown


def _write_json(path: Path, document: dict[str, Any]) -> None:
    with writing(path):
        atomic_write(path, json.dumps(document, indent=2))
