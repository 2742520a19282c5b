"""Waiting for programs on a GPU: importing torch and making a CUDA context takes seconds."""

from __future__ import annotations

import time

from paused_programs import PausedProgram

START_LIMIT_S = 120.0  # `import torch`, a CUDA context, and what a program compiles before it pauses


def ended(program: PausedProgram, limit_s: float = START_LIMIT_S) -> tuple[int, str]:
    """Wait for a program's end and return its exit code with what it printed."""
    return program.process.wait(limit_s), program.said


def wait_for(program: PausedProgram, word: str) -> None:
    """Wait until a program has printed a word."""
    deadline = time.monotonic() + START_LIMIT_S
    while word not in program.said:
        assert program.process.poll() is None, program.complained
        assert time.monotonic() < deadline, program.complained
        time.sleep(0.02)
