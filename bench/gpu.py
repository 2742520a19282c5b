"""`python -m bench.gpu`: a process on a GPU before, during and after a pause, beside stock debugpy.

Each repetition starts three programs one after the other: one without a debugger, one that pauses at the gateway, one
that pauses under stock debugpy (`debugpy.listen`, as Ray's debugger does). Each times Python calls and kernel launches
before its pause and after the client has left. Needs an NVIDIA GPU and torch; no Ray.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import measuring
from bench.doors import Held, attach_to_stock, take_from_gateway
from raydebug.cluster.up import choose_ports

WAIT_S = 120.0
ALONE, RAYDEBUG, STOCK = "no debugger", "raydebug", "stock debugpy"
PROGRAM = """
import json, os, sys, time
import torch
x = torch.ones(1024, device="cuda")
whole = torch.full((64 << 20,), 0.5, device="cuda")  # 256 MiB
def called():
    pass
def ns_per_call():
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter_ns()
        for _ in range(20_000):
            called()
        best = min(best, (time.perf_counter_ns() - start) / 20_000)
    return best
def us_per_launch():
    best = float("inf")
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(2_000):
            x.add_(1)
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter_ns() - start) / 2_000_000)
    return best
def pause():
    before = time.perf_counter()
    breakpoint()
    time.sleep(0)
us_per_launch()
seen = {"calls_before": ns_per_call(), "launches_before": us_per_launch()}
if sys.argv[1] == "listen":
    import debugpy
    debugpy.listen(("127.0.0.1", int(sys.argv[2])))
    print("listening", flush=True)
    debugpy.wait_for_client()
if sys.argv[1] != "alone":
    pause()
    sys.stdin.readline()
seen |= {"calls_after": ns_per_call(), "launches_after": us_per_launch()}
print(json.dumps(seen), flush=True)
"""
FIGURES = {
    "first_stack": ("first pause -> stack shown (stock: debugpy is imported and listens before)", "s"),
    "tensor": ("min, max, mean of 256 MiB on the GPU, evaluated at the pause", "ms"),
    "calls_before": ("a Python call before the pause", "ns"),
    "calls_after": ("... after the client has left", "ns"),
    "launches_before": ("a kernel launch before the pause", "us"),
    "launches_after": ("... after the client has left", "us"),
}
LOOK = "[float(f(whole)) for f in (whole.__class__.min, whole.__class__.max, whole.__class__.mean)]"


class Gateway:
    """What `take_from_gateway` needs of a cluster."""

    gateway_host = "127.0.0.1"

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_hex(32)
        self.token_path = folder / "token"
        self.token_path.write_text(self.token)
        ports = choose_ports({"gateway": 0}, {}, ())
        self.gateway_port, self.dial_port = ports["gateway"], ports["dial"]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run it."""
        argv = [sys.executable, "-m", "raydebug.gateway", "--client-port", str(self.gateway_port)]
        argv += ["--dial-port", str(self.dial_port)]
        environment = {**os.environ, "RAYDEBUG_TOKEN_PATH": str(self.token_path)}
        process = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE)
        try:
            assert process.stderr is not None
            while b"listening" not in process.stderr.readline():
                assert process.poll() is None
            yield
        finally:
            process.terminate()
            process.wait()


async def measure(side: str, gateway: Gateway) -> dict[str, float]:
    """Run one program of a side and return its figures."""
    port, environment = 0, {k: v for k, v in os.environ.items() if not k.startswith("RAYDEBUG_")}
    arguments = ["alone"]
    if side == RAYDEBUG:
        arguments = ["breakpoint"]
        environment |= {"RAYDEBUG_GATEWAY": f"127.0.0.1:{gateway.dial_port}"}
        environment |= {"RAYDEBUG_TOKEN_PATH": str(gateway.token_path)}
    if side == STOCK:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        arguments = ["listen", str(port)]
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *arguments, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    seen: dict[str, float] = {}
    if side != ALONE:
        if side == RAYDEBUG:
            held: Held = await take_from_gateway(gateway)  # type: ignore[arg-type]
        else:
            await asyncio.wait_for(program.stdout.readline(), WAIT_S)
            held = await attach_to_stock(gateway, {"ip": "127.0.0.1", "debugger_port": port})  # type: ignore[arg-type]
        seen["first_stack"] = held.seen["stack"] - float(await held.evaluate("before"))
        await held.evaluate(LOOK)
        start = time.perf_counter()
        await held.evaluate(LOOK)
        seen["tensor"] = (time.perf_counter() - start) * 1000
        await held.go_on()
        await held.leave()
        await asyncio.sleep(0.5)  # until the process counts as left
        program.stdin.write(b"\n")
    printed, _ = await asyncio.wait_for(program.communicate(), WAIT_S)
    return {**seen, **json.loads(printed.splitlines()[-1])}


def main() -> None:
    """Measure, and save the table or print the raw numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print the raw numbers")
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {key: {} for key in FIGURES}
    with tempfile.TemporaryDirectory(prefix="rd-bench-") as folder:
        gateway = Gateway(Path(folder))
        with gateway.running():
            for _ in range(options.repetitions):
                for side in (ALONE, RAYDEBUG, STOCK):
                    for key, value in asyncio.run(measure(side, gateway)).items():
                        found[key].setdefault(side, []).append(value)
    if options.json:
        print(json.dumps(found))
        return
    about = f"Python {platform.python_version()}; {_torch()}; {options.repetitions} repetitions."
    columns = ("figure", ALONE, RAYDEBUG, STOCK)
    rows = [
        (title, *(_cell(found[key].get(side), unit) for side in (ALONE, RAYDEBUG, STOCK)))
        for key, (title, unit) in FIGURES.items()
    ]
    measuring.save_program("gpu", "A process on a GPU, before and after a pause", about, columns, rows)


def _cell(values: list[float] | None, unit: str) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.3g} {unit} ({min(values):.3g}-{max(values):.3g})"


def _torch() -> str:
    program: Any = "import torch; print('torch', torch.__version__, 'on', torch.cuda.get_device_name())"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
