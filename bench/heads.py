"""Two Ray heads side by side on loopback: one of `raydebug up`, one without anything of raydebug in its environment.

Both are started with the same flags and a token of their own, and both end with the `with` block, come what may.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from raydebug.cluster import local, state
from raydebug.cluster.environment import cluster_environment, ray_command
from raydebug.cluster.state import Cluster
from raydebug.cluster.up import UpOptions, choose_ports

UP_TIMEOUT_S = 90.0
END_TIMEOUT_S = 6.0
MARK = "RAY_BENCH_MARK"  # finds what the stock head leaves behind: debugpy's adapters have no parent


@contextlib.contextmanager
def both(**more: str) -> Iterator[tuple[Cluster, Cluster]]:
    """Run raydebug's head and the stock head; yield them in this order.

    Args:
        more: environment variables of both.
    """
    folder = Path(tempfile.mkdtemp(prefix="rd-bench-"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")  # the user's own clusters are neither seen nor touched
    for name in [n for n in os.environ if n.startswith(("RAY_", "RAYDEBUG_"))]:
        del os.environ[name]
    os.environ.update(more)
    try:
        with _ours() as ours, _stock(folder, ours) as stock:
            yield ours, stock
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def client_environment(cluster: Cluster) -> dict[str, str]:
    """Return what a driver outside the cluster needs to connect to it."""
    needed = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(cluster.token_file),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # stay on loopback, as the heads do
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return {**os.environ, **needed}


@contextlib.contextmanager
def _ours() -> Iterator[Cluster]:
    wish = UpOptions(name="bench")
    cluster, _ = local.bring_up(wish)
    try:
        yield cluster
    finally:
        left = local.take_down(cluster)
        if left:
            print(f"still there after raydebug's own way down: pids {left}")


@contextlib.contextmanager
def _stock(folder: Path, ours: Cluster) -> Iterator[Cluster]:
    home = folder / "stock"
    home.mkdir()
    state.make_token(home)
    cluster = replace(
        ours,
        name="stock",
        id=secrets.token_hex(8),
        folder=home,
        temp_dir=Path(tempfile.mkdtemp(prefix="rs-")),
        ports=choose_ports({}, {}, ours.ports.values()),
    )
    plain = cluster_environment(os.environ, cluster, {})
    plain = {k: v for k, v in plain.items() if not k.startswith(("RAYDEBUG_", "RAY_DEBUG"))}
    with (home / "ray.log").open("wb") as log:
        head = subprocess.Popen(
            ray_command(cluster),
            env={**plain, MARK: cluster.id},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we end it ourselves
        )
    try:
        _wait_until_up(cluster, head, home / "ray.log")
        yield cluster
    finally:
        _end(head, cluster)
        shutil.rmtree(cluster.temp_dir, ignore_errors=True)


def _wait_until_up(cluster: Cluster, head: subprocess.Popen[bytes], log: Path) -> None:
    request = urllib.request.Request(
        f"{cluster.dashboard}/api/v0/nodes", headers={"Authorization": f"Bearer {cluster.token}"}
    )
    deadline = time.monotonic() + UP_TIMEOUT_S
    while time.monotonic() < deadline and head.poll() is None:
        with contextlib.suppress(OSError, urllib.error.HTTPError), urllib.request.urlopen(request, timeout=2) as answer:
            if b'"ALIVE"' in answer.read():
                return
        time.sleep(0.2)
    raise RuntimeError(f"the stock head did not come up: {log.read_text(errors='replace')[-500:]}")


def _end(head: subprocess.Popen[bytes], cluster: Cluster) -> None:
    """End the stock head with SIGTERM, and what it leaves (debugpy's adapters outlive their workers) with SIGKILL."""
    head.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        head.wait(timeout=END_TIMEOUT_S)
    left = [one for one in psutil.process_iter() if _is_of(one, cluster)]
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(left, timeout=2)
    head.wait()


def _is_of(process: Any, cluster: Cluster) -> bool:
    try:
        return bool(process.environ().get(MARK) == cluster.id)
    except (psutil.Error, OSError):
        return False
