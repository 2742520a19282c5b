"""Python programs that pause below a gateway, for the console's tests: the real hook and the real gateway, no Ray."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway_under_test import GatewayUnderTest

LIMIT_S = 60.0  # for a busy machine

Run = Callable[..., tuple[int, str, str]]

STEPS = """# Two stops of a training.

import numpy

class Trainer:
    def update(self, batch, *, scale=2.0):
        total = 0
        breakpoint()
        for item in batch:
            total += item
        loss = total * scale
        return loss

def outer():
    weights = numpy.arange(6.0).reshape(2, 3)
    result = Trainer().update([1, 2, 3])
    again = result + 1
    return again

outer()
breakpoint()
print("finished", flush=True)
"""

# Every rank stops twice; the size, the weights and the other array of rank 2 are not those of the others.
TRAINING = """import os, sys
import numpy

def update(step):
    rank, global_step = int(os.environ.get("RANK") or -1), step
    size = 128 if rank < 2 else 127
    weights = numpy.arange(6.0)
    weights[3] += 0.25 * (rank == 2)
    same = numpy.ones((2, 2))
    other = numpy.ones(2 + (rank == 2))
    breakpoint()
    total = size + step
    return total

def crash():
    raise ValueError("rank 2 has bad data")

for step in (1, 2):
    update(step)
    if os.environ.get("CRASHES"):
        crash()
print("finished", flush=True)
"""


class PausedProgram:
    """A program under the hook.

    Args:
        gateway: its gateway.
        folder: where its file and what it prints go.
        body: its text.
        limit_s: within how many seconds it pauses.
        variables: of its environment; `RANK` is 0 where they do not say otherwise.
    """

    def __init__(
        self, gateway: GatewayUnderTest, folder: Path, body: str, limit_s: float = LIMIT_S, **variables: str
    ) -> None:
        self._gateway = gateway
        self._limit_s = limit_s
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        self.job = folder / "job.py"
        self.job.write_text(body)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(self.job)], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env={**gateway.environment, "RANK": "0", **variables},
            )  # fmt: skip

    @property
    def said(self) -> str:
        """All that it printed so far."""
        return self._out.read_text()

    @property
    def complained(self) -> str:
        """All that it wrote on stderr so far."""
        return self._err.read_text()

    @property
    def pause(self) -> dict[str, Any]:
        """Its pause as the gateway lists it, waited for where it is still to come."""
        from raydebug.client.gateway_client import fetch_pauses

        deadline = time.monotonic() + self._limit_s
        while time.monotonic() < deadline and self.process.poll() is None:
            for pause in fetch_pauses(self._gateway):  # type: ignore[arg-type]
                if pause["pid"] == self.process.pid:
                    return pause
            time.sleep(0.02)
        raise AssertionError(f"it does not pause (exit code {self.process.poll()}):\n{self.complained}")

    @property
    def id(self) -> str:
        return str(self.pause["id"])

    def close(self) -> None:
        """End the process, and wait until the gateway knows."""
        from raydebug.client.gateway_client import fetch_pauses

        self.process.kill()
        self.process.wait()
        with contextlib.suppress(Exception):  # the gateway may be gone before it
            while any(pause["pid"] == self.process.pid for pause in fetch_pauses(self._gateway)):  # type: ignore[arg-type]
                time.sleep(0.02)
