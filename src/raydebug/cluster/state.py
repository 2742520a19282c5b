"""What is remembered of each cluster, by name, in the user's state folder."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raydebug.errors import Exit, RaydebugError
from raydebug.settings.debugger import mode_of
from raydebug.settings.paths import state_dir
from raydebug.worker import names

DEFAULT_NAME = "default"
STOCK = "stock"  # the kind of a cluster that has no gateway: cluster/stock.py
# Set in a Dev Container (.devcontainer): the cluster that its network belongs to.
DASHBOARD_VARIABLE, DOOR_VARIABLE = "RAYDEBUG_DASHBOARD", "RAYDEBUG_DOOR"
TOKEN_BYTES = 32
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster that `up` started; everything that another command needs to reach it.

    Args:
        name: the user's name for it.
        id: unique; every process of the cluster carries it in its environment.
        kind: `local` or `compose`; `joined` and `stock` are clusters that this machine has no record of.
        folder: its folder in the state directory: token, logs, status.
        temp_dir: Ray's own folder, short because of the length limit of unix sockets.
        python: the interpreter whose environment Ray runs in.
        ports: by purpose; see ports.py.
        debugger: the cluster's debugger word.
        supervisor_pid, supervisor_started: the process that keeps a local one, told apart by its start time.
        project: folder of this machine that a compose cluster has as /workspace.
        workers: how many worker nodes a compose cluster has.
        warm: whether it keeps a pool of processes with the heavy imports done (raydebug/zygotes).
        joined: for a cluster that we are inside of: its dashboard, door and token file, from the environment.
    """

    name: str
    id: str
    kind: str
    folder: Path
    temp_dir: Path
    python: str
    ports: dict[str, int]
    cpus: int
    gpus: int
    debugger: str
    flavour: str
    created: float
    supervisor_pid: int = 0
    supervisor_started: float = 0.0
    project: str = ""
    workers: int = 0
    warm: bool = False
    joined: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def host(self) -> str:
        """Where this machine reaches it: nothing of it listens, or is published, beyond loopback."""
        return "127.0.0.1"

    @property
    def address(self) -> str:
        """Ray's own address (GCS), as the cluster's own processes use it."""
        return f"{self.host}:{self.ports['gcs']}" if self.kind == "local" else "head:6379"

    @property
    def dashboard(self) -> str:
        """URL of the dashboard and the Jobs API."""
        if self.joined:
            return self.joined["dashboard"]
        return f"http://{self.host}:{self.ports['dashboard']}"

    @property
    def gateway_host(self) -> str:
        """Where clients of the gateway connect."""
        return self.joined["door"].rpartition(":")[0] if self.joined else self.host

    @property
    def gateway_port(self) -> int:
        """The gateway's port for clients."""
        return int(self.joined["door"].rpartition(":")[2]) if self.joined else self.ports["gateway"]

    @property
    def pool_socket(self) -> Path:
        """Where a warm cluster's processes ask for their start."""
        return self.temp_dir / "warm.sock"

    @property
    def pool_status(self) -> Path:
        """What the pool of a warm cluster says of itself."""
        return self.folder / "pool.json"

    @property
    def token_file(self) -> Path:
        """File with the cluster's token, for its owner only."""
        return Path(self.joined["token_file"]) if self.joined else self.folder / "token"

    @property
    def token(self) -> str:
        """The cluster's token; empty for a stock cluster that asks for none."""
        if self.kind == STOCK and (given := os.environ.get("RAY_AUTH_TOKEN")):
            return given
        if self.kind == STOCK and not self.joined["token_file"]:
            return ""
        return self.token_file.read_text(encoding="ascii").strip()


def clusters_dir() -> Path:
    """Return the folder that holds a folder per cluster, made private."""
    folder = state_dir() / "clusters"
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_mode & 0o777 != 0o700:
            folder.chmod(0o700)
    return folder


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say in three lines that the state folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise RaydebugError(
            "raydebug cannot write its state",
            cause=f"{path}: {error.strerror or error}",
            fix="make the folder yours, or name another one: XDG_STATE_HOME=DIR",
            code="state.unwritable",
            exit_code=Exit.USAGE,
        ) from error


def check_name(name: str) -> str:
    """Return the name if it can be one.

    Raises:
        RaydebugError: it cannot; names become folders.
    """
    if not _NAME.fullmatch(name):
        raise RaydebugError(
            f"{name!r} cannot be a cluster's name",
            cause="--name takes up to 32 small letters, digits, '-' and '_'",
            fix="use a name such as `--name mine`",
            code="cluster.bad-name",
            exit_code=Exit.USAGE,
        )
    return name


def make_folder(name: str) -> Path:
    """Return a cluster's folder, made private."""
    folder = clusters_dir() / check_name(name)
    with _writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def save_cluster(cluster: Cluster) -> None:
    """Write a cluster's file, whole or not at all."""
    document = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(cluster).items()}
    write_json(cluster.folder / "cluster.json", document)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    fresh = path.with_suffix(f".{os.getpid()}.new")
    with _writing(path):
        fresh.write_text(json.dumps(document, indent=2), encoding="utf-8")
        fresh.replace(path)


def find_cluster(name: str) -> Cluster | None:
    """Return what is remembered of a cluster; None where there is none by this name."""
    path = clusters_dir() / check_name(name) / "cluster.json"
    if name == DEFAULT_NAME and (inside := _cluster_around_us()):
        return inside
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Cluster(**{**document, "folder": Path(document["folder"]), "temp_dir": Path(document["temp_dir"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise RaydebugError(
            f"the record of cluster '{name}' cannot be read",
            cause=f"{path}: {error}",
            fix=f"remove the folder {path.parent}",
            code="cluster.bad-record",
        ) from error


def _cluster_around_us() -> Cluster | None:
    """Return the cluster whose network this process is in (a Dev Container), when its environment names it."""
    joined = {
        "dashboard": os.environ.get(DASHBOARD_VARIABLE, ""),
        "door": os.environ.get(DOOR_VARIABLE, ""),
        "token_file": os.environ.get(names.TOKEN_PATH, ""),
    }
    if not all(joined.values()):
        return None
    return Cluster(
        name=DEFAULT_NAME,
        id=os.environ.get(names.CLUSTER_ID, ""),
        kind="joined",
        folder=clusters_dir(),
        temp_dir=clusters_dir(),
        python=sys.executable,
        ports={},
        cpus=0,
        gpus=0,
        debugger=mode_of(os.environ),
        flavour=os.environ.get("RAYDEBUG_FLAVOUR", "core"),
        created=0.0,
        joined=joined,
    )


def load_cluster(name: str = DEFAULT_NAME) -> Cluster:
    """Return a cluster by name.

    Raises:
        RaydebugError: there is none.
    """
    cluster = find_cluster(name)
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


def name_option(name: str) -> str:
    """Return what a command that we recommend needs behind it to mean this cluster: ` --name NAME`, or nothing."""
    return "" if name == DEFAULT_NAME else f" --name {name}"


def known_names() -> list[str]:
    """Return the names of all clusters that are remembered."""
    return [p.parent.name for p in clusters_dir().glob("*/cluster.json")]


def make_token(folder: Path) -> Path:
    """Write a fresh 256-bit token that only its owner can read, and return the file."""
    path = folder / "token"
    with _writing(path):
        path.unlink(missing_ok=True)
        # O_EXCL: neither an older file nor a link that somebody laid there is written through.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            import secrets  # 6 ms, which no other command need wait for

            file.write(secrets.token_hex(TOKEN_BYTES))
        path.chmod(0o600)
    return path


def read_status(cluster: Cluster) -> dict[str, Any]:
    """Return what the supervisor last wrote: {"phase", "reason", "at"}."""
    try:
        status: dict[str, Any] = json.loads((cluster.folder / "status.json").read_text(encoding="utf-8"))
        return status
    except (OSError, ValueError):
        return {"phase": "starting", "reason": None}


@contextlib.contextmanager
def only_one(name: str) -> Iterator[None]:
    """Hold the lock of a cluster's name while it is brought up; the kernel frees it when its holder dies.

    Raises:
        RaydebugError: another `up` of this name is at work.
    """
    path = clusters_dir() / f"{check_name(name)}.lock"
    with _writing(path):
        file = path.open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RaydebugError(
                f"another `raydebug up` of cluster '{name}' is at work",
                cause=f"it holds the lock {path}",
                fix="wait for it, or choose another name with --name",
                code="cluster.starting",
                exit_code=Exit.TAKEN,
            ) from error
        yield


@contextlib.contextmanager
def choosing_ports(name: str) -> Iterator[list[int]]:
    """Hold the lock under which ports are chosen, and give the ports of all other clusters."""
    path = clusters_dir() / "ports.lock"
    with _writing(path):
        file = path.open("w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        others = (find_cluster(other) for other in known_names() if other != name)
        yield [port for other in others if other is not None for port in other.ports.values()]


def remembered_ports(folder: Path) -> dict[str, int]:
    """Return the ports that an earlier cluster in this folder had."""
    with contextlib.suppress(OSError, ValueError):
        ports: dict[str, int] = json.loads((folder / "ports.json").read_text())
        return ports
    return {}


def forget(cluster: Cluster) -> None:
    """Remove all that is remembered of a cluster, but its ports: the next one of its name takes them again."""
    for path in cluster.folder.glob("*"):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (cluster.folder / "ports.json").write_text(json.dumps(cluster.ports))
