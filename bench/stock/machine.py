"""What happens beside Ray on its machine: F62, F63 and S4 on stock Ray."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from typing import Any

import psutil

from bench.stock.client import Client
from bench.stock.head import Head

Saw = dict[str, Any]
BUSY, BUSY_S, STOPPED_S, WATCH_S = 24, 120.0, 60.0, 60.0


async def busy(head: Head) -> Saw:
    """F62: 24 busy processes for 120 s while two tasks are paused; then the raylet is stopped for 60 s."""
    head.start("faults.py", "stop", "-")
    head.wait_paused(2)
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    await asyncio.sleep(BUSY_S)
    for burner in burners:
        burner.kill()
        burner.wait()
    saw: Saw = {"after the load": await _attached(head)}
    raylet = _raylet(head)
    raylet.send_signal(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    raylet.send_signal(signal.SIGCONT)
    await asyncio.sleep(10.0)
    alive = raylet.is_running() and raylet.status() != psutil.STATUS_ZOMBIE
    gone = "the raylet has ended: its GCS had declared it dead"
    saw["after the stop"] = await _attached(head) if alive else gone
    return saw


async def _attached(head: Head) -> str:
    rows = head.wait_paused(2, within_s=30)
    for row in rows:
        await (await Client.attach(row)).leave()
    return f"{len(rows)} pauses listed and attached"


async def raylet_killed(head: Head) -> Saw:
    """F63: the raylet is killed: what `ray start --block` and the node table say."""
    raylet = _raylet(head)
    start = raylet.parent()
    begin = time.monotonic()
    raylet.kill()
    saw: Saw = {}
    while time.monotonic() - begin < WATCH_S and set(saw) < {"ray start ended after s", "node shown dead after s"}:
        if "ray start ended after s" not in saw and (start is None or not start.is_running()):
            saw["ray start ended after s"] = round(time.monotonic() - begin, 1)
        try:
            states = [row["state"] for row in head.ask("/api/v0/nodes")]
        except OSError:
            states = []
        if "node shown dead after s" not in saw and "DEAD" in states:
            saw["node shown dead after s"] = round(time.monotonic() - begin, 1)
        await asyncio.sleep(0.5)
    neither = "`ray start --block` has not ended, and the node table has not shown the node as dead"
    return saw or {f"within {WATCH_S:.0f} s": neither}


async def folders(head: Head) -> Saw:
    """S4: what another user may do in Ray's folders."""
    head.start("faults.py", "stop", "-")
    head.wait_paused(1)
    modes = {}
    for path in (p for p in sorted(head.folder.rglob("*")) if p.is_dir() and not p.is_symlink()):
        mode = path.stat().st_mode & 0o7777
        if mode & 0o002 and not mode & 0o1000:
            modes["/".join(path.relative_to(head.folder).parts[2:]) or path.name] = f"{mode:04o}"
    return {"folders whose files every user may replace": dict(list(modes.items())[:12])}


def _raylet(head: Head) -> psutil.Process:
    (raylet,) = [process for process in head.processes() if process.name() == "raylet"]
    return raylet
