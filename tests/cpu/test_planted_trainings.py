"""`run --hang-after` on stalls and on slow healthy work in a real tiny verl training on this CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "planted_trainings.py"
LONG = "RAYDEBUG_TEST_LONG"


@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    os.environ.get(LONG) != "1",
    reason=f"takes 20 minutes: {LONG}=1 nox -s cpu -- tests/cpu/test_planted_trainings.py",
)
def test_planted_stalls() -> None:
    """Each planted stall is reported within 20 s after the limit with its process and word; healthy work is not."""
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
