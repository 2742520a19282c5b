"""Plant deaths in jobs of a real cluster, and print what `run` says of each: `python planted_deaths.py [KIND...]`.

The second node of the cluster, which dies in some of them, has its own process ids where this user may have that.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

import runs
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.state import Cluster
from raydebug.jobs.deaths import fetch_deaths
from raydebug.runs.folder import load_run

KINDS = {  # of death, and of the certificate
    "sigkill": "sigkill",
    "sigterm": "sigterm",
    "sigsegv": "sigsegv",
    "sigabrt": "sigabrt",
    "sigbus": "sigbus",
    "thread-exit": "os-exit",
    "os-exit": "os-exit",
    "sys-exit": "exit-code",
    "fork-child": "sigsegv",
    "disk-full": "disk-full",
    "ray-kill": "ray-kill",
    "driver-gone": "sigkill",
    "engine": "sigkill",
    "cgroup-oom": "kernel-oom-container",
    "ray-oom": "ray-oom",
    "raylet-killed": "raylet-ended",
    "ray-stop": "ray-stop",
    "node-lost": "node-lost",
    "container-stopped": "node-stopped",
}
PRIVILEGED = ("cgroup-oom", "node-lost", "container-stopped")
ON_SECOND = ("ray-oom", "raylet-killed", "ray-stop", "node-lost", "container-stopped")
GROUP_MIB = 300
# A local cluster is on loopback, where Ray starts no other node (ray 2.60 scripts.py `start`, services.py).
STARTS = """
import sys, ray._private.ray_constants as constants, ray._private.services as services
from ray.scripts.scripts import main
services.get_node_ip_address = lambda *_, **__: "127.0.0.1"
constants.ENABLE_RAY_CLUSTER = True
sys.exit(main())
"""
CGROUP = Path("/sys/fs/cgroup/memory/raydebug-planted")


@contextlib.contextmanager
def cgroup() -> Iterator[Path]:
    """A cgroup of version 1 or 2 with a limit."""
    folder = CGROUP if CGROUP.parent.is_dir() else Path("/sys/fs/cgroup") / CGROUP.name
    folder.mkdir(exist_ok=True)
    limit = "memory.limit_in_bytes" if CGROUP.parent.is_dir() else "memory.max"
    (folder / limit).write_text(str(GROUP_MIB * 2**20))
    try:
        yield folder
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


@contextlib.contextmanager
def second_node(cluster: Cluster, kind: str) -> Iterator[psutil.Process]:
    """Start another node of the cluster, and end it; gives the process whose end takes all of it along."""
    supervisor = psutil.Process(cluster.supervisor_pid)
    raylet = next(one for one in supervisor.children(recursive=True) if one.name() == "raylet")
    environ = {name: value for name, value in raylet.environ().items() if not name.startswith("RAY_RAYLET")}
    used = psutil.virtual_memory().percent / 100
    if kind == "ray-oom":
        environ |= {"RAY_memory_usage_threshold": f"{used + 0.05:.3f}", "RAY_memory_monitor_refresh_ms": "100"}
    argv = [
        cluster.python, "-P", "-c", STARTS, "start", "--block", "--disable-usage-stats",
        f"--address=127.0.0.1:{cluster.ports['gcs']}", "--node-ip-address=127.0.0.1", "--num-cpus=1", "--num-gpus=0",
        "--object-store-memory=100000000", f'--resources={{"node-of-{kind}": 1}}', "--log-color=false",
    ]  # fmt: skip
    if kind in ("node-lost", "container-stopped"):
        argv = ["unshare", "--pid", "--fork", "--mount-proc", *argv]
    log = tempfile.TemporaryFile()  # noqa: SIM115
    top = psutil.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
    try:
        dashboard = Dashboard(cluster)

        def is_up() -> bool:
            return any(f"node-of-{kind}" in one["resources_total"] for one in dashboard.living_nodes())

        try:
            runs.wait_for(is_up, "a node", 90)
        except AssertionError as error:
            log.seek(0)
            raise AssertionError(f"{error}, exit code {top.poll()}: {log.read()[-1500:].decode()}") from error
        yield top
    finally:
        for one in [*top.children(recursive=True), top]:
            with contextlib.suppress(psutil.Error):
                one.kill()
        top.wait()
        log.close()


def end_second(kind: str, top: psutil.Process) -> None:
    """End the second node."""
    below = top.children(recursive=True)
    raylet = next(one for one in below if one.name() == "raylet")
    if kind == "raylet-killed":
        raylet.kill()
    elif kind == "ray-stop":  # ray 2.60 scripts.py `stop`: SIGTERM to each of Ray's processes
        for one in below:
            with contextlib.suppress(psutil.Error):
                one.terminate()
    elif kind == "node-lost":
        top.children()[0].kill()  # init of the namespace: the kernel kills all others
    else:  # as `docker stop`
        raylet.terminate()
        time.sleep(1.0)
        top.children()[0].kill()


def plant(cluster: Cluster, kind: str) -> dict[str, Any]:
    """Plant a death in a job; return its row of the table."""
    planted = Path(tempfile.mkdtemp()) / "who"
    with contextlib.ExitStack() as stack:
        group = [str(stack.enter_context(cgroup()))] if kind == "cgroup-oom" else []
        top = stack.enter_context(second_node(cluster, kind)) if kind in ON_SECOND else None
        start = stack.enter_context(runs.starting_runs(cluster))
        run = start("--", sys.executable, "deaths.py", kind, str(planted), *group)
        runs.wait_for(planted.exists, "the victim", 60, run)
        time.sleep(0.05)
        pid, at = (float(word) for word in planted.read_text().split()[:2])
        victim = psutil.Process(int(pid)) if psutil.pid_exists(int(pid)) else None
        if kind in ("sigkill", "sigterm"):
            time.sleep(1)
            at = time.time()
            assert victim is not None
            victim.send_signal(getattr(signal, kind.upper()))
        if top is not None and kind != "ray-oom":
            time.sleep(1)
            at = time.time()
            end_second(kind, top)
        said_at = first_word(run)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.process.wait(30)
        document, output = load_run("last").document, run.text
        ended = fetch_deaths(cluster, document["id"])
    certificates = document.get("deaths", [])
    said = [one["text"] for one in certificates if one["text"] in output]
    told = output[output.rfind(f"job {document['id']} ") :].splitlines()
    first = next((one for one in certificates if one["pid"] == int(pid)), next(iter(certificates), {}))
    if kind in ("cgroup-oom", "ray-oom"):  # it has begun to take memory then
        at = next((one["at"] for one in ended if one.get("pid") == int(pid)), at)
    return {
        "kind": kind, "right": first.get("kind") == KINDS[kind], "named": first.get("kind"), "said": said,
        "after_s": said_at and said_at - at, "told": told, "certificates": certificates, "ended": ended,
        "output": output,
    }  # fmt: skip


def first_word(run: runs.Run) -> float | None:
    """Wait until a run says a certificate; return when, in seconds since 1970."""
    limit = time.monotonic() + 40
    while time.monotonic() < limit:
        has_ended = run.process.poll() is not None
        if "death:" in run.text or "process-death" in run.text:
            return time.time()
        if has_ended:
            return None
        time.sleep(0.02)
    return None


def main(kinds: list[str], keep: str | None = None) -> int:
    """Plant each kind and print the table; return how many were not named."""
    rows = []
    end = time.monotonic() + float(os.environ.get("PLANTED_S") or 3600)
    with runs.private_state(), runs.local_cluster("planted") as cluster:
        for kind in kinds or KINDS:
            if time.monotonic() > end:
                break
            if kind in PRIVILEGED and os.geteuid():
                print(f"{kind:18} left out: it needs root")
                continue
            try:
                row = plant(cluster, kind)
            except Exception as error:  # noqa: BLE001 - the others are planted nevertheless
                row = {
                    "kind": kind, "right": False, "named": f"{type(error).__name__}: {error}"[-1500:], "after_s": None,
                    "said": [],
                }  # fmt: skip
            rows.append(row)
            after = "-" if row["after_s"] is None else f"{row['after_s']:.2f} s"
            print(
                f"{kind:18} {'yes' if row['right'] else 'NO ':3} {after:>7}  {row['named']}: {'; '.join(row['said'])}",
                flush=True,
            )
            if keep:
                Path(keep).write_text(json.dumps(rows))
    print(f"{sum(row['right'] for row in rows)} of {len(rows)} named")
    return sum(not row["right"] for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
