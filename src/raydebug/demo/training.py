"""The demo's training: `raydebug run` in a process of its own, its log read as it arrives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from raydebug import process
from raydebug.errors import Exit, RaydebugError
from raydebug.jobs.phases import Phases
from raydebug.render import without_ansi

STEP = re.compile(r"\bstep:\d+ - .*")


class Training:
    """One run of the training.

    Args:
        arguments: what follows `raydebug run`.
        folder: where it runs; its log is written there.
    """

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.log = folder / "job.log"
        self.steps: list[str] = []
        self.phases = Phases(time.monotonic())
        self._last = "(nothing yet)"
        with self.log.open("wb") as output:
            argv = [sys.executable, "-m", "raydebug", "run", *arguments]
            self.process: subprocess.Popen[bytes] = process.start(argv, env=os.environ, output=output, cwd=folder)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        """Whether the job still runs."""
        return self.process.poll() is None

    @property
    def last_line(self) -> str:
        """What the log said last."""
        return self._last

    def wait(self, limit_s: float) -> int:
        """Wait for the end of the job and return its exit code.

        Raises:
            RaydebugError: it did not end within limit_s seconds.
        """
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise RaydebugError(
                f"the training did not end within {limit_s:.0f} s",
                cause=f"its log said last: {self._last}",
                fix=f"read {self.log}",
                code="demo.timeout",
                exit_code=Exit.TIMEOUT,
            ) from error
        self._reader.join(timeout=5)
        return code

    def stop(self) -> None:
        """End the job as Ctrl-C does."""
        if self.is_running:
            self.process.send_signal(2)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def _read(self) -> None:
        with self.log.open(encoding="utf-8", errors="replace") as log:
            while True:
                running = self.is_running
                line = log.readline()
                if not line:
                    if not running:
                        return
                    time.sleep(0.1)
                    continue
                self._take(without_ansi(line))

    def _take(self, line: str) -> None:
        self.phases.take(line, time.monotonic())
        if line.strip():
            self._last = line.strip()[:160]
        found = STEP.search(line)
        if found:
            self.steps.append(found.group())
