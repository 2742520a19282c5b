"""`python -m bench.pythons PYTHON...`: the speed of Python calls after a pause, on Pythons that take turns. No Ray.

Each PYTHON is an interpreter with raydebug and debugpy installed. Writes PYTHONS.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import measuring
from raydebug.cluster.up import choose_ports
from raydebug.dap import DapSession

ROOT = Path(__file__).resolve().parent.parent
REPETITIONS = 5
WAIT_S = 120.0
SETTLE_S = 0.5  # after leaving, until the process counts as left
PROGRAM = """\
import json, os, platform, sys, threading, time
sys.path.insert(0, sys.argv[1])
from bench.target import ns_per_call

def work():
    ns = {"before": ns_per_call()}
    breakpoint()
    ns["attached"] = ns_per_call()
    open("timed", "w").close()
    while not os.path.exists("left"):
        time.sleep(0.05)
    ns["left"] = ns_per_call()
    thread = threading.Thread(target=lambda: ns.update(thread=ns_per_call()))
    thread.start()
    thread.join()
    tool = sys.monitoring.get_tool(0) if sys.version_info >= (3, 12) else None
    print(json.dumps({"python": platform.python_version(), "tool": tool, "ns": ns}))

work()
"""
COLUMNS = {"attached": "resumed, client attached", "left": "client left", "thread": "in a new thread, client left"}


async def one_pause(python: str) -> dict[str, object]:
    """Pause a process of this Python once, and return what it measured."""
    with tempfile.TemporaryDirectory(prefix="rd-bench-") as name:
        folder, token = Path(name), secrets.token_hex(32)
        (folder / "token").write_text(token)
        (folder / "program.py").write_text(PROGRAM)
        ports = choose_ports({"gateway": 0}, {}, ())
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAYDEBUG_", "RAY_DEBUG"))}
        environment = {**clean, "RAYDEBUG_TOKEN_PATH": str(folder / "token")}
        argv = [sys.executable, "-m", "raydebug.gateway", "--client-port", str(ports["gateway"])]
        gateway = _run([*argv, "--dial-port", str(ports["dial"])], environment)
        program = None
        try:
            session = await _connect(ports["gateway"])
            dial = {**environment, "RAYDEBUG_GATEWAY": f"127.0.0.1:{ports['dial']}"}
            program = _run([python, "program.py", str(ROOT)], dial, folder)
            await session.request("initialize", {"clientName": "bench"})
            await session.request("attach", {"token": token, "target": "next"}, timeout_s=WAIT_S)
            await session.request("configurationDone")
            thread = (await session.next_event("stopped", timeout_s=WAIT_S))["body"]["threadId"]
            await session.request("continue", {"threadId": thread})
            async with asyncio.timeout(WAIT_S):
                while not (folder / "timed").exists():  # noqa: ASYNC110 - a file, from another process
                    await asyncio.sleep(0.05)
            await session.close()
            await asyncio.sleep(SETTLE_S)
            (folder / "left").touch()
            printed, _ = program.communicate(timeout=WAIT_S)
            measured: dict[str, object] = json.loads(printed)
            return measured
        finally:
            for process in (program, gateway):
                if process is not None:
                    process.kill()
                    process.wait()


def _run(argv: list[str], environment: dict[str, str], folder: Path = ROOT) -> subprocess.Popen[bytes]:
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(argv, cwd=folder, env=environment, stdout=pipe, stderr=nowhere)


async def _connect(port: int) -> DapSession:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await DapSession.connect("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)


def main() -> None:
    """Measure each Python, by turns, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    options = parser.parse_args()
    before = measuring.machine()
    found: dict[str, list[dict[str, object]]] = {}
    for _ in range(options.repetitions):
        for python in options.pythons:
            one = asyncio.run(one_pause(python))
            found.setdefault(str(one["python"]), []).append(one)
    after = measuring.machine()
    lines = [
        f"| Python | ns a call before | {' | '.join(COLUMNS.values())} | `sys.monitoring` tool left |",
        "|---" * 6 + "|",
    ]
    for version, runs in found.items():
        nanoseconds = [run["ns"] for run in runs]
        ratios = [[ns[column] / ns["before"] for ns in nanoseconds] for column in COLUMNS]  # type: ignore[index]
        cells = [f"{statistics.median(column):.2f} ({min(column):.2f}-{max(column):.2f})" for column in ratios]
        speed = statistics.median(ns["before"] for ns in nanoseconds)  # type: ignore[index]
        tools = ", ".join(sorted({str(run["tool"]) for run in runs}))
        lines.append(f"| {version} | {speed:.1f} | {' | '.join(cells)} | {tools} |")
    text = (
        "# Calls after a pause, by Python\n\nGenerated by `python -m bench.pythons`: Python calls in a plain process, "
        "multiples of the time before its\nfirst pause (median, least and most).\n\n"
        f"{before['date']}, {before['machine']}, {before['cores']} cores, debugpy {before['debugpy']}, raydebug "
        f"{before['raydebug']}; {options.repetitions}\nrepetitions, by turns; load average (1, 5, 15 min) "
        f"{before['load']} before, {after['load']} after.\n\n" + "\n".join(lines) + "\n"
    )
    (ROOT / "bench" / "PYTHONS.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
